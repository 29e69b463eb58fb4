"""What a dataset refuses, and how it behaves as a guest in somebody's process."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from packing_udfs import contract
from packing_udfs.encode.processor import ProcessorError
from packing_udfs.reader import PackedDataset, StateError
from packing_udfs.stream.resume import State
from tests.reader.conftest import packs_of, rewrite_info

PROCESSOR = str(Path(__file__).parents[2] / "jobs/demo/processor")


def open_packed(folder, **options) -> PackedDataset:
    return PackedDataset(str(folder), **{"global_batch_size": 4, "decode": None} | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, r"seed is 0, this dataset has 1"),
        ({"global_batch_size": 8}, r"global_batch_size is 4, this dataset has 8"),
        ({"shuffle": False}, r"shuffle is True, this dataset has False"),
        ({"balance": False}, r"balance is True, this dataset has False"),
        ({"end": "pad"}, r"end is 'drop', this dataset has 'pad'"),
    ],
)
def test_a_state_of_other_options_is_refused(packed, options, message):
    state = open_packed(packed).state_dict()
    with pytest.raises(StateError, match=message):
        open_packed(packed, **options).load_state_dict(state)


def test_a_state_of_other_data_or_code_is_refused(packed, tmp_path):
    state = open_packed(packed).state_dict()
    other = shutil.copytree(packed, tmp_path / "other")
    rewrite_info(other, {"note": "another run"})
    with pytest.raises(StateError, match=r"fingerprint is '[0-9a-f]{64}', the manifest here is '[0-9a-f]{64}'"):
        open_packed(other).load_state_dict(state)
    for key, version in (("version", 2), ("order_version", 1)):
        with pytest.raises(StateError, match=f"{key} is 0, this code .* {version}"):
            open_packed(packed).load_state_dict({**state, key: 0})
    with pytest.raises(StateError, match=r"its keys are \['epoch'\]"):
        open_packed(packed).load_state_dict({"epoch": 1})


def test_the_state_is_what_its_type_says(packed):
    state = open_packed(packed).state_dict()
    assert {name: type(value) for name, value in state.items()} == State.__annotations__


def test_a_state_between_micro_batches_needs_the_same_cut(packed):
    state = next(iter(open_packed(packed, micro_batch_size=1)))["state"]
    assert (state["step"], state["lane"]) == (0, 1)
    with pytest.raises(StateError, match="between the micro-batches of a step, after 1 lanes"):
        open_packed(packed, micro_batch_size=2).load_state_dict(state)
    with pytest.raises(StateError, match="between the micro-batches of a step"):
        open_packed(packed, rank=0, world_size=4).load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch_size": 5, "rank": 0, "world_size": 2}, "global_batch_size=5: must be a multiple of world_size"),
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"global_batch_size": 51}, r"global_batch_size=51: .* has 50 packs in 'train'"),
        ({"micro_batch_size": 3}, "micro_batch_size=3: must divide the 4 packs"),
        ({"rank": 2, "world_size": 2}, r"rank=2, world_size=2: rank must be in \[0, world_size\)"),
        ({"rank": 1}, "give both or none"),
        ({"end": "repeat"}, "end='repeat'"),
        ({"decode": "numpy"}, "decode='numpy'"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"global_batch_size": 4.0}, r"global_batch_size=4\.0: must be an integer"),
        ({"global_batch_size": True}, "global_batch_size=True: must be an integer"),
        ({"seed": None}, "seed=None: must be an integer"),
        ({"retry_seconds": "60"}, "retry_seconds='60': must be a number"),
        ({"retry_seconds": float("nan")}, "retry_seconds=nan: must be a number"),
        ({"range_size": 0}, "range_size=0: must be an integer, at least 1"),
        ({"block_size": 0}, "block_size=0: must be an integer, at least 1"),
        ({"blank": True}, "blank=True, mrope=False: both need the processor"),
        ({"mrope": True}, "blank=False, mrope=True: both need the processor"),
        ({"revision": "main"}, "is a folder, which has no revision 'main'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(packed, options, message):
    with pytest.raises(ValueError, match=message):
        open_packed(packed, **options)


def test_a_number_may_be_of_numpy(packed):
    batches = [packs_of(batch) for batch in open_packed(packed, seed=np.int64(3), micro_batch_size=np.int32(2))]
    assert batches == [packs_of(batch) for batch in open_packed(packed, seed=3, micro_batch_size=2)]


@pytest.mark.parametrize(
    ("key", "value"),
    [("step", 13), ("step", -1), ("step", 2.5), ("step", True), ("epoch", -1), ("epoch", "3"), ("epoch", 1 << 70),
     ("lane", -1), ("lane", 1.0), ("lane", None)],
)  # fmt: skip
def test_a_position_that_is_none_is_refused(packed, key, value):
    dataset = open_packed(packed)
    with pytest.raises(StateError, match=rf"reader state: {key} is {value!r}, must be an integer from 0 to \d+"):
        dataset.load_state_dict(dataset.state_dict() | {key: value})


@pytest.mark.parametrize("name", ["no/such/folder", "nowhere", "/nowhere", "~/nowhere", "hf://models/a/b",
                                  "hf://datasets/a"])  # fmt: skip
def test_names_of_nothing_are_refused(name):
    with pytest.raises(ValueError, match=r"must be hf://|is no folder here"):
        open_packed(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"split": "validation"}, "is of the split 'validation', not of 'train'"), ({"seq_len": None}, "seq_len is None")],
)
def test_a_manifest_that_cannot_be_this_splits_is_refused(packed, tmp_path, changes, message):
    other = shutil.copytree(packed, tmp_path / "other")
    rewrite_info(other, changes)
    with pytest.raises(contract.ContractError, match=message):
        open_packed(other)


def test_a_manifest_of_another_contract_is_refused(packed, tmp_path):
    other = shutil.copytree(packed, tmp_path / "other")
    rewrite_info(other, {"contract": 3})
    with pytest.raises(contract.ContractError, match="contract version 3 is not 2"):
        open_packed(other)


@pytest.fixture(scope="module")
def with_processor(packed, tmp_path_factory):
    """The dataset as if the demo's processor had packed it."""
    from packing_udfs.encode import processor

    folder = shutil.copytree(packed, tmp_path_factory.mktemp("with_processor"), dirs_exist_ok=True)
    fingerprint = processor.fetch(PROCESSOR).fingerprint
    rewrite_info(folder, {"processor": {"name": PROCESSOR, "revision": None, "fingerprint": fingerprint}})
    return folder


def test_another_processor_is_refused_and_the_right_one_used(packed, with_processor):
    with pytest.raises(ProcessorError, match=r"the dataset was packed with owner/model .*, fingerprint ffff"):
        open_packed(packed, processor=PROCESSOR)
    batch = next(iter(open_packed(with_processor, processor=PROCESSOR, global_batch_size=1)))
    assert "images" not in batch
    assert ("pixel_values" in batch) == bool(len(batch["image_sizes"]))
    with pytest.raises(ValueError, match="processor=dict: must be its folder or Hub repository"):
        open_packed(with_processor, processor={})


def test_what_a_processor_cannot_do_is_said(with_processor):
    with pytest.raises(ValueError, match="mrope=True: Idefics3Processor has one position per token"):
        open_packed(with_processor, processor=PROCESSOR, mrope=True)
    sizes = [len(batch["image_sizes"]) for batch in open_packed(with_processor, global_batch_size=1)]
    blank = open_packed(with_processor, processor=PROCESSOR, global_batch_size=1, prefetch=0, blank=True)
    blank.seek(0, sizes.index(0))
    assert next(iter(blank))["pixel_values"].shape == (1, 1, 3, 512, 512)


def test_rank_and_world_size_come_from_torch_distributed(packed, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(next(iter(open_packed(packed)))["sample_ids"]) == 4, "the environment is not read"
    torch_distributed = __import__("torch").distributed
    torch_distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert open_packed(packed).cut.rank == 0
        monkeypatch.setattr(torch_distributed, "get_rank", lambda: 1)
        monkeypatch.setattr(torch_distributed, "get_world_size", lambda: 2)
        inferred, given = open_packed(packed), open_packed(packed, rank=1, world_size=2)
        assert [packs_of(b) for b in inferred] == [packs_of(b) for b in given]
    finally:
        torch_distributed.destroy_process_group()


def test_the_loops_process_does_not_guess_where_workers_are(packed):
    dataset = open_packed(packed)
    batches = iter(DataLoader(dataset, batch_size=None, num_workers=1))
    state = next(batches)["state"]
    with pytest.raises(StateError, match=r"use batch\['state'\]"):
        dataset.state_dict()
    dataset.load_state_dict(state)
    assert dataset.state_dict() == state
    inline = open_packed(packed)
    assert inline.state_dict()["step"] == 0
    assert next(iter(inline))["state"] == inline.state_dict() == state


def test_leaving_the_loop_leaves_no_thread(packed):
    before = set(threading.enumerate())
    for _ in open_packed(packed, prefetch=4):
        break
    assert set(threading.enumerate()) <= before
    with pytest.raises(contract.ContractError, match="step 1"):
        fail_in_the_loop(open_packed(packed, prefetch=4))
    assert set(threading.enumerate()) <= before


def fail_in_the_loop(dataset):
    for batch in dataset:
        raise contract.ContractError(f"step {batch['state']['step']}")


RUN = """
import sys
sys.modules["pyspark"] = None
from packing_udfs.reader import PackedDataset
heavy = [name for name in ("transformers", "datasets", "pydantic", "pandas") if name in sys.modules]
assert not heavy, heavy
dataset = PackedDataset({folder!r}, global_batch_size=4, micro_batch_size=1)
batches = iter({loader})
print(next(batches)["state"]["lane"], [name for name in ("transformers", "datasets") if name in sys.modules])
"""


@pytest.mark.parametrize("options", [None, "num_workers=0", "num_workers=2, persistent_workers=True"])
def test_needs_no_spark_or_transformers_and_exits_in_the_middle_of_an_epoch(packed, options):
    loader = f"DataLoader(dataset, batch_size=None, {options})" if options else "dataset"
    script = "from torch.utils.data import DataLoader" + RUN.format(folder=str(packed), loader=loader)
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 []\n", "")


NO_THREAD = """
import os, time
from packing_udfs.reader import PackedDataset
before = {{*os.listdir("/proc/self/task")}}
num = sum(1 for _ in PackedDataset({folder!r}, global_batch_size=4, decode="bytes"))
end = time.monotonic() + 5  # ours have ended, and are there for a moment still
while (left := {{*os.listdir("/proc/self/task")}} - before) and time.monotonic() < end:
    time.sleep(0.01)
print(num, len(left))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="only Linux lists a process's threads there")
@pytest.mark.parametrize("manifest", [True, False])
def test_no_thread_of_arrow_is_left(packed, tmp_path, manifest):
    """One asks for the interpreter when it lets go of our memory: in the middle of a fork, which hangs (one in 3,000
    where a DataLoader forked just after the manifest was read), or when the interpreter has ended, which aborts."""
    folder = shutil.copytree(packed, tmp_path / "packed", ignore=None if manifest else lambda *_: {"manifest"})
    done = subprocess.run([sys.executable, "-c", NO_THREAD.format(folder=str(folder))], capture_output=True, text=True)
    num_batches = len(PackedDataset(str(packed), global_batch_size=4))
    assert num_batches > 1
    assert (done.returncode, done.stdout) == (0, f"{num_batches} 0\n"), done.stderr
