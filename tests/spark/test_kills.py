"""A job killed at any moment leaves the repository at its old commit, and the next run goes through."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.spark.conftest import HERE, demo_tree, files_of

pytestmark = pytest.mark.slow


def start_job(tmp_path, tree: dict) -> subprocess.Popen:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(tree))
    command = [sys.executable, "-m", "jobs.pack", "--config", str(path), "--spark-conf", str(HERE / "test.conf")]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def wait_for(hub, route: str, process: subprocess.Popen, times: int = 1, seconds: float = 180) -> None:
    """Until the Hub has answered `route` so many times since the log was cleared."""
    end = time.monotonic() + seconds
    while sum(record.route == route for record in hub.requests.records()) < times:
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < end, f"no request to {route}"
        time.sleep(0.05)


@contextmanager
def killed(process: subprocess.Popen, hub) -> Iterator[None]:
    """SIGKILL to all of a job at the end of what is in here; the Hub's faults end too."""
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
        hub.faults.clear()


@pytest.mark.parametrize(
    ("route", "times", "fault"),
    [
        ("list_tree", 1, {}),  # planning
        ("preupload", 1, {"route": "put_xorb", "delay": 1.0, "times": None}),  # the first shards going up
        ("put_shard", 3, {"route": "put_shard", "delay": 1.0, "times": None}),  # the last, two were done before
        ("put_shard", 4, {"route": "commit", "reset": "before", "times": None}),  # all up, and no commit gets through
    ],
)
def test_a_killed_job_changes_nothing(run_demo, source, session_hub, api, tmp_path, route, times, fault):
    repo = f"user/killed-{route.replace('_', '-')}-{times}"
    before = run_demo(repo)["commit"]
    session_hub.requests.clear()
    if fault:
        session_hub.inject(**fault)
    process = start_job(tmp_path, demo_tree(repo, shards={"seed": 3}))
    with killed(process, session_hub):
        wait_for(session_hub, route, process, times)
    assert api.dataset_info(repo).sha == before
    after = run_demo(repo, shards={"seed": 3})
    assert api.dataset_info(repo).sha == after["commit"] != before
    assert len([path for path in files_of(api, repo) if path.startswith("data/")]) == 4


def test_a_job_killed_behind_its_commit_is_complete(run_demo, source, session_hub, api, tmp_path):
    repo = "user/killed-late"
    before = run_demo(repo)["commit"]
    session_hub.requests.clear()
    late = session_hub.inject(route="commit", reset="after")  # the commit is made and its answer never comes
    process = start_job(tmp_path, demo_tree(repo, shards={"seed": 3}))
    with killed(process, session_hub):
        wait_for(session_hub, "commit", process)
    assert late.hits == 1
    complete = api.dataset_info(repo).sha
    assert complete != before
    assert run_demo(repo, shards={"seed": 3})["commit"] == complete  # nothing is left to do


def test_an_interrupted_job_says_so_and_leaves_no_process(run_demo, source, session_hub, api, tmp_path):
    """Ctrl-C goes to every process of the terminal; the Hub is slow, so that shards are on their way."""
    before = run_demo("user/interrupted")["commit"]
    session_hub.requests.clear()
    session_hub.inject(route="preupload", delay=2.0, times=None)
    process = start_job(tmp_path, demo_tree("user/interrupted", shards={"seed": 3}))
    try:
        wait_for(session_hub, "preupload", process)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=90)
    finally:
        session_hub.faults.clear()
    assert process.returncode == 130
    assert err.decode().strip().endswith("unless the commit was on its way")
    assert b"Traceback" not in err
    wait_for_end(process.pid)
    assert api.dataset_info("user/interrupted").sha == before


def test_a_terminated_job_leaves_no_process_and_the_old_commit(run_demo, source, session_hub, api, tmp_path):
    """SIGTERM is how a scheduler stops a driver: to its process alone. Java and the Python workers go with it."""
    before = run_demo("user/terminated")["commit"]
    slow = session_hub.inject(route="preupload", delay=2.0, times=None)
    process = start_job(tmp_path, demo_tree("user/terminated", shards={"seed": 3}))
    try:
        while not slow.hits:
            assert process.poll() is None, process.stderr.read().decode()
            time.sleep(0.05)
        process.terminate()
        process.communicate(timeout=90)
    finally:
        session_hub.faults.clear()
    assert process.returncode == -signal.SIGTERM
    wait_for_end(process.pid)
    assert api.dataset_info("user/terminated").sha == before


def wait_for_end(group: int, seconds: float = 30) -> None:
    """Until no process of the group is left."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError("a process is left")
