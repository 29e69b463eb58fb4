"""Reading from a Hub: what it is asked, and what becomes of its faults."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from huggingface_hub import HfApi, constants
from torch.utils.data import DataLoader

from packing_udfs.manifest import load
from packing_udfs.storage import byte_source
from packing_udfs.storage.byte_source import FetchError, Stop
from packing_udfs.storage.hub import open_source
from tests.reader.conftest import open_packed, packs_of, ranges, upload

pytestmark = pytest.mark.usefixtures("fresh_hub")


@pytest.mark.parametrize("name", ["owner/packed", "hf://datasets/owner/packed", "hf://datasets/owner/packed@main"])
def test_the_hub_reads_as_a_folder_does(hub, hub_dataset, name):
    local, remote = list(open_packed(str(hub_dataset))), list(open_packed(name))
    assert [packs_of(batch) for batch in remote] == [packs_of(batch) for batch in local]
    assert [batch["images"] for batch in remote] == [batch["images"] for batch in local]
    assert remote[-1]["state"] == local[-1]["state"]


def test_each_row_group_is_one_request_and_no_byte_is_read_twice(hub, hub_dataset):
    dataset = open_packed()
    hub.requests.clear()
    assert len(list(dataset)) == 16
    records = ranges(hub)
    rows = dataset.manifest.row_groups.to_pylist()
    spans = {f"bytes={row['offset']}-{row['offset'] + row['bytes'] - 1}" for row in rows}
    footers = {f"bytes={row['footer_offset']}-{row['file_bytes'] - 1}" for row in rows}
    asked = [record.range for record in records]
    assert sorted(span for span in asked if span in spans) == sorted(
        f"bytes={row['offset']}-{row['offset'] + row['bytes'] - 1}" for row in rows
    )
    assert len(asked) == 16 + 4, "a request a row group and one a file for its footer"
    assert set(asked) == spans | footers
    assert {record.status for record in records} == {206}
    stored = sum(path.stat().st_size for path in hub_dataset.glob("data/train/*"))
    assert stored * 0.98 <= sum(record.bytes_out for record in records) <= stored * 1.02


def test_a_node_asks_for_the_manifest_once(hub, monkeypatch, tmp_path):
    commit = HfApi().dataset_info("owner/packed").sha
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path))
    for rank in range(4):
        open_packed(revision=commit, rank=rank, world_size=4)
    asked = [(record.method, record.path.rpartition("/")[2]) for record in hub.requests]
    assert asked == [("GET", "train.json"), ("GET", "train.parquet")]
    hub.requests.clear()
    assert open_packed().manifest.num_packs == 64
    assert [record.path.rpartition("/")[2] for record in hub.requests] == ["train.json"], "the branch, and nothing else"


@pytest.mark.parametrize("name", ["train.json", "train.parquet"])
def test_a_manifest_that_came_damaged_is_asked_for_again(hub, monkeypatch, tmp_path, name):
    """What a node keeps may be the page of a portal, or half a body without a length."""
    commit = HfApi().dataset_info("owner/packed").sha
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path))
    open_packed(revision=commit)
    (kept,) = tmp_path.rglob(f"*{name}")
    kept.write_bytes(b"<html>welcome to this network")
    assert open_packed(revision=commit).manifest.num_packs == 64
    hub.requests.clear()
    assert open_packed(revision=commit).manifest.num_packs == 64
    assert list(hub.requests) == [], "the right one is kept"


def test_a_node_without_a_cache_reads(hub, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "file"))
    for revision in (None, HfApi().dataset_info("owner/packed").sha):
        assert len(list(open_packed(revision=revision))) == 16


def test_a_branch_that_moves_does_not_move_the_reader(hub, packed):
    upload("owner/moving", packed)
    dataset = open_packed("owner/moving")
    expected = list(open_packed(str(packed)))
    HfApi().delete_files("owner/moving", ["data/*", "manifest/*"], repo_type="dataset")
    assert [packs_of(batch) for batch in dataset] == [packs_of(batch) for batch in expected]
    with pytest.raises(FileNotFoundError, match=r"owner/moving"):
        open_packed("owner/moving")


def test_what_is_not_there_is_said_at_once(hub):
    with pytest.raises(FetchError, match="owner/nothing"):
        open_packed("owner/nothing")
    with pytest.raises(FetchError, match="no-such-branch"):
        open_packed(revision="no-such-branch")


def test_a_reset_inside_a_range_goes_on_at_the_last_byte(hub, hub_dataset):
    # Threads ask in any order, and the footer's answer is too short to be cut: of three requests two at least are.
    fault = hub.inject(route="resolve", path="00000.parquet", times=3, cut_answer=70_000, drip=(10_000, 0.01))
    expected = list(open_packed(str(hub_dataset)))
    assert [packs_of(batch) for batch in open_packed()] == [packs_of(batch) for batch in expected]
    assert fault.hits == 3
    records = [(*map(int, r.range[6:].split("-")), r.bytes_out) for r in ranges(hub, "00000.parquet")]
    ends = Counter(end for _, end, _ in records)
    assert [end for end, num_requests in ends.items() if num_requests > 1], "no request was cut"
    for end in ends:
        (first, *later) = sorted(start for start, other_end, _ in records if other_end == end)
        assert all(0 < start - first <= 140_000 for start in later), "the next request asks for the rest"
        got = sum(num_bytes for _, other_end, num_bytes in records if other_end == end)
        assert got <= end + 1 - first + len(later) * 70_000, "what came is not asked for again"


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 429, "headers": {"Retry-After": "1"}, "times": 2},
        {"status": 429, "headers": {"ratelimit": '"resolvers";r=0;t=1'}, "times": 1},
        {"status": 503, "times": 2},
        {"status": 500, "times": 1},
        {"reset": "before", "times": 2},
        {"reset": "after", "times": 1},
    ],
)
def test_faults_that_pass_are_waited_for(hub, hub_dataset, monkeypatch, fault):
    waits = []
    monkeypatch.setattr(Stop, "sleep", lambda self, seconds: waits.append(seconds))
    fault = hub.inject(route="resolve", path="00002.parquet", **fault)
    expected = list(open_packed(str(hub_dataset)))
    assert [packs_of(batch) for batch in open_packed()] == [packs_of(batch) for batch in expected]
    assert fault.hits == len(waits) == fault.times
    if fault.status == 429:
        assert set(waits) == {1.0}
    else:
        assert all(0.25 <= wait <= 1.0 for wait in waits)


def test_faults_while_the_manifest_is_fetched_are_waited_for(hub, monkeypatch, tmp_path):
    waits = []
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path))
    monkeypatch.setattr(Stop, "sleep", lambda self, seconds: waits.append(seconds))
    hub.inject(route="resolve", path="/main/", status=429, headers={"Retry-After": "2"})
    hub.inject(route="resolve", path="train.parquet", status=503, headers={"Retry-After": "3"})
    assert open_packed().manifest.num_packs == 64
    assert waits == [2.0, 3.0]


def test_an_outage_ends_in_an_error_in_the_loop(hub):
    dataset = open_packed(retry_seconds=0.6)
    hub.inject(route="resolve", path="/data/", status=503, times=None)
    with pytest.raises(FetchError, match=r"00000?\d.parquet, bytes \d+–\d+: gave up after \d attempts .* 503"):
        list(dataset)
    assert fetching() == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_loop_is_told_before_it_comes_to_what_failed(hub, num_workers):
    dataset = open_packed(shuffle=False)  # four steps from the first file, while the next one is fetched
    hub.inject(route="resolve", path="00001.parquet", status=403, times=None)
    options = {"num_workers": 1, "prefetch_factor": 1} if num_workers else {}
    batches = iter(DataLoader(dataset, batch_size=None, **options))
    assert next(batches)["state"]["step"] == 1

    def two_more():
        for _ in range(2):
            time.sleep(0.5)
            next(batches)

    with pytest.raises(FetchError, match=r"00001.parquet.*403"):
        two_more()


def test_a_refusal_is_not_retried(hub, monkeypatch):
    monkeypatch.setattr(Stop, "sleep", lambda self, seconds: pytest.fail("waited for what no wait mends"))
    dataset = open_packed()
    hub.inject(route="resolve", path="/data/", status=403, times=None)
    with pytest.raises(FetchError, match="403"):
        list(dataset)


def test_leaving_in_an_outage_is_quick(hub):
    batches = iter(open_packed(retry_seconds=600))
    next(batches)
    while len(ranges(hub)) < 12:  # two cycles of 4 row groups, and 4 footers
        time.sleep(0.01)
    fault = hub.inject(route="resolve", path="/data/", status=503, headers={"Retry-After": "300"}, times=None)
    start = time.monotonic()
    for _ in range(4):  # into the second cycle, so that the third is asked for
        next(batches)
    while not fault.hits:
        time.sleep(0.01)
    assert fetching()
    batches.close()
    assert fetching() == []
    assert time.monotonic() - start < 60, "nobody waits for the 300 s that the server asks for"


def test_what_breaks_behind_a_reader_that_was_left_is_no_fault(tmp_path):
    stop = Stop()

    def attempt(progress):
        stop.set()
        raise ConnectionResetError

    with pytest.raises(byte_source.AbandonedError):
        open_source(str(tmp_path), retry_seconds=0)._retried("a file", attempt, stop)


def fetching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("fetch ")]


SCRIPT = """
from torch.utils.data import DataLoader
from packing_udfs.reader import PackedDataset
if __name__ == "__main__":
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "multiprocessing_context": "spawn"}):
        dataset = PackedDataset("owner/packed", global_batch_size=4, micro_batch_size=1)
        loader = DataLoader(dataset, batch_size=None, **options)
        print([int(batch["sample_ids"][0][0]) // 10 for batch in loader])
"""


def test_the_environment_alone_leads_to_another_hub(hub, hub_dataset, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {**os.environ, **hub.environment(), "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", str(tmp_path / "train.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    expected = [packs_of(batch) for batch in open_packed(str(hub_dataset), micro_batch_size=1)]
    assert done.stderr == ""
    assert done.stdout.splitlines() == [str([pack for (pack,) in expected])] * 3


LEFT = """
from packing_udfs.reader import PackedDataset
batches = iter(PackedDataset("owner/packed", global_batch_size=4, prefetch=4))
for _ in range(5):
    next(batches)
print("done", flush=True)
"""


def test_a_process_exits_while_a_thread_waits_for_the_hub(hub, tmp_path):
    # 8 footers and row groups are let go; the fetches that the fifth step starts are the first to fail.
    hub.inject(route="resolve", path="/data/", skip=12, status=503, headers={"Retry-After": "300"}, times=None)
    env = {**os.environ, **hub.environment(), "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-W", "error", "-c", LEFT]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert set(done.stderr.splitlines()) <= {
        line for line in done.stderr.splitlines() if "trying again in 300 s" in line
    }


def test_patience_counts_from_the_last_byte(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr(byte_source.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Stop, "sleep", lambda self, seconds: now.__setitem__(0, now[0] + seconds))
    bytes_come = iter([True] * 5 + [False] * 9)  # 20 s of waiting, but bytes come in between

    def attempt(progress):
        if next(bytes_come):
            progress()
        raise byte_source.PassingError("503", wait=4)

    source = open_source(str(tmp_path), retry_seconds=10)
    with pytest.raises(FetchError, match=r"a file: gave up after 3 attempts in 8 s without a byte .* 503"):
        source._retried("a file", attempt)
    assert now == [24]


def test_manifest_can_be_read_by_hand(hub, hub_dataset):
    source = open_source("owner/packed", retry_seconds=1)
    info, rows = (source.read_file(f"manifest/train.{kind}") for kind in ("json", "parquet"))
    assert load(info, rows).num_packs == 64
    assert source.list_files("data") == [
        (f"data/train/0000{i}.parquet", (hub_dataset / f"data/train/0000{i}.parquet").stat().st_size) for i in range(4)
    ]
