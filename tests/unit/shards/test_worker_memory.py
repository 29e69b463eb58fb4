"""A Python worker of Spark encodes without torch; a process that wants torch afterwards still finds it."""

import importlib.util
import json
import subprocess
import sys

import pytest

from jobs.shards.worker_memory import give_back, torch_left_out
from tests.unit.demo_samples import DEMO

_WORKER = """
import json, sys
from jobs.shards.udf import _encoder
from jobs.shards.worker_memory import torch_left_out
from packing_udfs.encode.processor import fetch

early = [name for name in ("transformers", "torch") if name in sys.modules]
with torch_left_out():
    encoder = _encoder(fetch(sys.argv[1]), "assistant")
said = [{"type": "image", "text": None}, {"type": "text", "text": "What is it?"}]
answer = {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]}
(sample,) = encoder.encode([[{"role": "user", "content": said}, answer]], [[(64, 64)]])
late = [name for name in ("transformers", "torch") if name in sys.modules]
import torch
print(json.dumps([early, late, sample.input_ids.tolist(), torch.arange(3).sum().item()]))
"""


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="with torchvision, torch is needed")
def test_a_worker_encodes_without_torch():
    from packing_udfs.encode.encoder import Encoder
    from packing_udfs.encode.processor import fetch

    command = [sys.executable, "-c", _WORKER, str(DEMO / "processor")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "PyTorch" not in done.stderr
    early, late, ids, total = json.loads(done.stdout.splitlines()[-1])
    assert (early, late, total) == ([], ["transformers"], 3)
    said = [{"type": "image", "text": None}, {"type": "text", "text": "What is it?"}]
    answer = {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]}
    encoder = Encoder(fetch(str(DEMO / "processor")).load())  # here, where torch is
    (sample,) = encoder.encode([[{"role": "user", "content": said}, answer]], [[(64, 64)]])
    assert ids == sample.input_ids.tolist()


def test_where_transformers_is_loaded_nothing_is_left_out():
    import transformers  # noqa: F401

    before = sys.modules.get("torch", "absent")
    with torch_left_out():
        assert sys.modules.get("torch", "absent") is before


def test_giving_back_is_harmless():
    give_back()
    give_back()
