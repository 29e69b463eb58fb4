"""A bounded run of `tests.reader.soak`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_after_fifty_kills_no_sample_is_lost_or_repeated():
    command = [sys.executable, "-W", "ignore", "-m", "tests.reader.soak", "--kills", "50"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)
    assert (counts["lost"], counts["repeated"]) == (0, 0)
    assert counts["kills"] >= 50
    assert counts["killed_workers"] >= 5
    assert counts["samples"] > 1000 * counts["epochs"]
