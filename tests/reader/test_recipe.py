"""A training script, killed and started again under torchrun, has the loss curve of one that was not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.reader.conftest import write_dataset

RECIPE = Path(__file__).with_name("recipe.py")
pytestmark = pytest.mark.slow


def start(folder, output: Path, *options: str, num_processes=2) -> subprocess.Popen:
    output.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    root = RECIPE.parents[2]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONPATH": str(root)}
    command += [str(RECIPE), str(folder), str(output), *options]
    return subprocess.Popen(command, env=env, cwd=root, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors


def losses(output: Path) -> list[float]:
    """Of each step up to the last checkpoint."""
    return torch.load(output / "checkpoint")["losses"] if (output / "checkpoint").exists() else []


def kill(process: subprocess.Popen, output: Path, after: int) -> None:
    """SIGKILL launcher and ranks once they wait behind step `after`."""
    while len(losses(output)) < after:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.2)
    process.kill()
    for file in output.glob("pid*"):
        os.kill(int(file.read_text()), signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A dataset of 42 packs, 6 steps of 8 an epoch, and beside it a run over two epochs."""
    root = tmp_path_factory.mktemp("recipe")
    folder = write_dataset(root / "packed", [[4] * 5, [4] * 5 + [2]])
    finish(start(folder, root / "whole"))
    assert len(losses(root / "whole")) == 12
    return root


@pytest.mark.parametrize(("after", "workers"), [(4, "0"), (9, "2")])
def test_killed_and_resumed_is_as_if_nothing_had_happened(runs, after, workers):
    output = runs / f"killed{after}"
    kill(start(runs / "packed", output, "--workers", workers, f"--pause-after={after}"), output, after)
    finish(start(runs / "packed", output, "--workers", "0"))
    expected = losses(runs / "whole")
    assert losses(output) == expected
    assert expected[-1] < expected[0] - 1, "and it learns"


def test_resumed_on_one_rank_it_differs_by_rounding(runs):
    output = runs / "killed4one"
    kill(start(runs / "packed", output, "--pause-after=4"), output, 4)
    finish(start(runs / "packed", output, num_processes=1))
    assert losses(output) == pytest.approx(losses(runs / "whole"), rel=1e-3)
