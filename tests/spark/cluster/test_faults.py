"""What dies or fails on a standalone cluster: the dataset is that of local mode, or the one that was there before."""

import errno
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd

from jobs.cluster.standalone import HOSTS
from tests.spark.cluster.conftest import Application, kill, leftovers, packs, processes, until
from tests.spark.conftest import files_of

NUM_SHARDS = 4


def num_requests(hub, route: str, path: str = "") -> int:
    return sum(record.route == route and path in record.path for record in hub.requests.records())


def test_the_bytes_are_those_of_local_mode(application, cluster, same_packs):
    """Driver and workers, two hosts: shuffle order differs from run to run. No shard stays on a disk."""
    before = leftovers(cluster)
    answer = application.run("user/on-cluster")
    assert answer.keys() == {"commit"}, answer
    assert leftovers(cluster) <= before
    same_packs("user/on-cluster")


def die_mid_shard(application, faults, repo: str, victims) -> dict:
    """Run a job and kill `victims()` while the first shard is being uploaded."""
    slow = faults(route="preupload", delay=4.0, times=2)
    application.start(repo)
    until(lambda: slow.hits, "no shard was uploaded")
    assert kill(victims())
    return application.answer()


def test_killed_python_workers_are_replaced(application, cluster, faults, session_hub, same_packs):
    answer = die_mid_shard(application, faults, "user/killed-python", lambda: busy(cluster, "pyspark.daemon"))
    assert answer.keys() == {"commit"}, answer
    assert num_requests(session_hub, "preupload") > NUM_SHARDS
    same_packs("user/killed-python")


def test_a_killed_executor_takes_its_shuffle_files_along(application, cluster, faults, session_hub, same_packs):
    """Shards that wait find nothing to fetch (FetchFailed), and the stage before, which reads the Hub, runs again."""
    source = "/datasets/user/demo-source/resolve/"

    def executor() -> list[int]:
        nonlocal num_reads
        num_reads = num_requests(session_hub, "resolve", source)
        return busy(cluster, "CoarseGrainedExecutorBackend")

    num_reads = 0
    answer = die_mid_shard(application, faults, "user/killed-executor", executor)
    assert answer.keys() == {"commit"}, answer
    assert num_requests(session_hub, "resolve", source) > num_reads > 0
    stages = [event["Stage Info"] for event in application.events_of("SparkListenerStageSubmitted")]
    assert max(stage["Stage Attempt ID"] for stage in stages) >= 1
    same_packs("user/killed-executor")


def busy(cluster, word: str) -> list[int]:
    """The processes of one host."""
    return next(found for host in HOSTS if (found := processes(cluster, host, word)))


def test_a_killed_worker_daemon_changes_nothing(application, cluster, faults, same_packs):
    """Its executor ends with it; the other host does the rest."""
    try:
        answer = die_mid_shard(application, faults, "user/killed-daemon", lambda: [cluster.daemons[HOSTS[1]].pid])
        assert answer.keys() == {"commit"}, answer
        assert cluster.daemons[HOSTS[1]].wait(30) == -9
        same_packs("user/killed-daemon")
    finally:
        until(lambda: application.hosts() == [HOSTS[0]] * 2, "the executor has not moved")
        cluster.start_worker(HOSTS[1])
        cluster.wait_for_workers(len(HOSTS))
        kill(processes(cluster, HOSTS[0], "CoarseGrainedExecutorBackend")[:1])  # the next starts where more is free
        until(lambda: application.hosts() == [*HOSTS], "the executor has not moved back")


def test_a_hub_in_trouble_on_every_route_changes_nothing(application, run_demo, faults, api):
    """A rate limit, a closed connection, a busy moment, and at last a commit whose answer never comes."""
    storm = [
        faults(route="preupload", status=429, headers={"Retry-After": "1"}),
        faults(route="put_xorb", reset="before"),
        faults(route="put_shard", status=503),
        faults(route="commit", status=503),
        faults(route="commit", reset="after"),
    ]
    answer = application.run("user/stormed", shards={"seed": 11})  # new bytes: what the Hub has is not sent again
    assert [fault.hits for fault in storm] == [1] * len(storm)
    assert answer == {"commit": api.dataset_info("user/stormed").sha}
    assert len(api.list_repo_commits("user/stormed", repo_type="dataset")) == 2
    run_demo("user/calm", shards={"seed": 11})
    assert packs(api, "user/stormed") == packs(api, "user/calm")


def test_somebody_elses_commit_in_between_stays(application, faults, api, same_packs):
    slow = faults(route="preupload", delay=2.0)
    application.start("user/contested")
    until(lambda: slow.hits, "no shard was uploaded")
    notes = [CommitOperationAdd("notes.txt", b"mine")]
    theirs = api.create_commit("user/contested", notes, commit_message="notes", repo_type="dataset")
    error = application.answer()["error"]
    assert "somebody else committed" in error
    assert api.dataset_info("user/contested").sha == theirs.oid
    assert application.run("user/contested").keys() == {"commit"}
    assert "notes.txt" in files_of(api, "user/contested")
    same_packs("user/contested")


def test_two_attempts_of_a_shard_change_nothing(cluster, source, faults, session_hub, same_packs, tmp_path):
    """Speculation: one upload hangs, so the shard is packed again on the other host, which finishes first."""
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
    }
    slow = faults(route="preupload", delay=60.0)
    application = Application(tmp_path, cluster, **speculation)
    try:
        assert application.run("user/speculated").keys() == {"commit"}
        hosts, speculated = defaultdict(set), set()
        for event in application.events_of("SparkListenerTaskStart"):
            task = event["Task Info"]
            hosts[event["Stage ID"], task["Index"]].add(task["Host"])
            if task["Speculative"]:
                speculated.add((event["Stage ID"], task["Index"]))
    finally:
        application.stop()
    assert slow.hits == 1
    assert speculated
    assert all(hosts[task] == {*HOSTS} for task in speculated)
    same_packs("user/speculated")


def test_a_full_disk_fails_the_run_and_the_next_goes_through(application, cluster, faults, api, same_packs):
    """ENOSPC where shards are written, at the first upload: the shards behind it find no room, however often tried."""
    if not cluster.has_small_disk:
        pytest.skip("no tmpfs can be mounted here; tests/unit/parquet/test_write.py writes to /dev/full")
    before = application.run("user/full-disk")["commit"]
    slow = faults(route="preupload", delay=4.0, times=2)
    application.start("user/full-disk", shards={"seed": 3})
    until(lambda: slow.hits, "no shard was uploaded")
    with filled(cluster.folder / "local" / "filler"):
        answer = application.answer()
    assert "No space left on device" in answer["error"]
    assert answer["error"].startswith("WorkerError: a disk is full: ")
    assert api.dataset_info("user/full-disk").sha == before
    assert application.run("user/full-disk", shards={"seed": 0})["commit"] == before  # as it was: nothing to change
    same_packs("user/full-disk")


@contextmanager
def filled(file: Path) -> Iterator[None]:
    """A disk without room: `file` takes what there is, and what comes free when a shard is uploaded."""
    ended = threading.Event()

    def fill() -> None:
        with open(file, "wb", buffering=0) as filler:
            while not ended.is_set():
                try:
                    filler.write(bytes(1 << 16))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    ended.wait(0.005)

    with ThreadPoolExecutor(1) as pool:
        filling = pool.submit(fill)
        try:
            yield
        finally:
            ended.set()
            filling.result()
            file.unlink()
