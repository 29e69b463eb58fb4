"""Reading from a Hub: what it is asked, and what becomes of its faults."""

import http.client
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import fsspec
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from huggingface_hub import HfApi, constants
from torch.utils.data import DataLoader

from packing_udfs import connections, fetch, footers
from packing_udfs.contract import ContractError
from packing_udfs.fetch import FetchError, HubSource, Stop, open_source
from packing_udfs.footers import MissingManifestWarning
from packing_udfs.manifest import load
from packing_udfs.reader import PackedDataset
from tests.reader.conftest import packs_of, upload


@pytest.fixture(autouse=True)
def _fresh(hub):
    hub.requests.clear()
    yield
    hub.faults.clear()


def open_packed(name="owner/packed", **options) -> PackedDataset:
    return PackedDataset(name, **{"global_batch_size": 4, "decode": "bytes", "retry_seconds": 5} | options)


def ranges(hub, path=r".parquet") -> list:
    """Requests for ranges of data files."""
    return [record for record in hub.requests if "/data/" in record.path and path in record.path]


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
    monkeypatch.setattr(Stop, "wait", lambda self, seconds: waits.append(seconds))
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
    monkeypatch.setattr(Stop, "wait", lambda self, seconds: waits.append(seconds))
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
    monkeypatch.setattr(Stop, "wait", lambda self, seconds: pytest.fail("waited for what no wait mends"))
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


def fetching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("fetch ")]


@pytest.fixture
def cdn(hub, monkeypatch):
    """The Hub, which leads on to signed addresses on another host."""
    monkeypatch.setattr(hub, "cdn", True)
    return hub


def asked(hub, route: str) -> list:
    return [record for record in hub.requests if record.route == route and "main" not in record.path]


def test_a_file_is_resolved_once_while_its_address_is_good(cdn, hub_dataset):
    dataset = open_packed()
    cdn.requests.clear()
    remote, local = list(dataset), list(open_packed(str(hub_dataset)))
    assert [batch["images"] for batch in remote] == [batch["images"] for batch in local]
    assert len(asked(cdn, "resolve")) == 4, "one a file, for four lanes in each cycle"
    assert len(asked(cdn, "cdn")) == 4 + 16, "footers and row groups; no token came along, or the answer were 400"
    assert {record.status for record in asked(cdn, "cdn")} == {206}


def test_an_address_that_has_expired_is_asked_for_again(cdn, hub_dataset):
    expected = [packs_of(batch) for batch in open_packed(str(hub_dataset), shuffle=False)]
    batches = iter(open_packed(shuffle=False, prefetch=0))
    seen = [packs_of(next(batches)) for _ in range(3)]
    cdn.requests.clear()
    cdn.expire_addresses()
    assert seen + [packs_of(batch) for batch in batches] == expected
    refused = [record for record in asked(cdn, "cdn") if record.status == 403]
    assert {record.status for record in asked(cdn, "cdn")} <= {206, 403}
    assert len(refused) <= len(asked(cdn, "resolve")) <= 4 + len(refused)


def test_an_address_that_expires_in_the_middle_of_an_epoch_costs_a_request(cdn):
    source = open_source("owner/packed", retry_seconds=5)
    source.read_file("manifest/train.json")
    whole = bytes(source.read("data/train/00000.parquet", 0, 1000, Stop()))
    cdn.requests.clear()
    assert bytes(source.read("data/train/00000.parquet", 100, 50, Stop())) == whole[100:150]
    cdn.expire_addresses()
    assert bytes(source.read("data/train/00000.parquet", 200, 50, Stop())) == whole[200:250]
    assert [(record.route, record.status) for record in cdn.requests] == [
        ("cdn", 206),
        ("cdn", 403),
        ("resolve", 302),
        ("cdn", 206),
    ]


def test_a_range_is_cut_into_requests_of_range_size_and_taken_in_blocks(hub, hub_dataset, monkeypatch):
    blocks = []
    receive = connections.receive
    monkeypatch.setattr(connections, "receive", lambda *args: blocks.append(receive(*args)) or blocks[-1])
    source = open_source("owner/packed", retry_seconds=5, range_size=70_000, block_size=1000)
    source.read_file("manifest/train.json")
    hub.requests.clear()
    data = source.read("data/train/00000.parquet", 1000, 150_000, Stop())
    assert bytes(data) == (hub_dataset / "data/train/00000.parquet").read_bytes()[1000:151_000]
    assert [record.range for record in hub.requests] == [
        "bytes=1000-70999",
        "bytes=71000-140999",
        "bytes=141000-150999",
    ]
    assert max(blocks) <= 1000
    assert sum(blocks) == 150_000
    batches = list(open_packed(range_size=10_000, block_size=4096, prefetch=1))
    assert [packs_of(b) for b in batches] == [packs_of(b) for b in open_packed(str(hub_dataset))]


def canned(monkeypatch, status: int, body: bytes, **headers: str) -> None:
    """Every answer from now on."""
    lines = [f"HTTP/1.1 {status} Reason", "Connection: close"]
    if "Transfer_Encoding" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    text = "\r\n".join([*lines, "", ""]).encode() + body

    class Canned(http.client.HTTPConnection):
        def connect(self):
            self.sock, there = socket.socketpair()
            there.sendall(text)
            there.shutdown(socket.SHUT_WR)
            self.close_there = there.close  # nobody would take the request otherwise

        def close(self):
            super().close()
            self.close_there()

    connections.close_idle()
    monkeypatch.setattr(connections, "_connect", lambda parts: Canned(parts.netloc))


def test_a_wrong_range_is_refused(monkeypatch):
    source = HubSource("owner/packed", "f" * 40, retry_seconds=1)
    canned(monkeypatch, 206, b"x" * 10, Content_Range="bytes 0-9/200")
    with pytest.raises(FetchError, match="asked for 10 bytes from 10 on, got 10 from 0"):
        source.read("a.parquet", 10, 10, Stop())
    canned(monkeypatch, 206, b"x" * 11, Content_Range="bytes 10-20/200")
    with pytest.raises(FetchError, match="asked for 10 bytes from 10 on, got 11 from 10"):
        source.read("a.parquet", 10, 10, Stop())
    canned(monkeypatch, 200, b"x" * 200)
    with pytest.raises(FetchError, match=r"200 Reason: x*, where 206 was expected"):
        source.read("a.parquet", 10, 10, Stop())
    canned(monkeypatch, 302, b"", Location="/again")
    with pytest.raises(FetchError, match="more than 5 redirects"):
        source.read("a.parquet", 10, 10, Stop())


def test_a_body_in_chunks_is_read(monkeypatch):
    body = b"6\r\nabcdef\r\n4\r\nghij\r\n0\r\n\r\n"
    canned(monkeypatch, 206, body, Content_Range="bytes 10-19/200", Transfer_Encoding="chunked")
    source = HubSource("owner/packed", "f" * 40, retry_seconds=1)
    assert bytes(source.read("a.parquet", 10, 10, Stop())) == b"abcdefghij"


class Bucket(MemoryFileSystem):
    """An object store over what is in memory: ranges of objects, each a request; nothing is opened, nor asked about."""

    protocol, asked = "bucket", []

    def cat_file(self, path, start=None, end=None, **kwargs):
        Bucket.asked.append((path.rpartition("/")[2], start, end))
        if (key := "/" + path.removeprefix("bucket://").lstrip("/")) not in self.store:
            raise FileNotFoundError(path)
        return self.store[key].getvalue()[start:end]

    def _open(self, *args, **kwargs):
        raise NotImplementedError

    info = ls = isdir = _open


fsspec.register_implementation("bucket", Bucket, clobber=True)


@pytest.mark.parametrize("url", ["memory://packed", "bucket://packed", "file://{folder}"])
def test_any_fsspec_url_is_read(packed, url):
    fsspec.filesystem("memory").put(str(packed), "/packed", recursive=True)
    remote, local = (list(open_packed(name)) for name in (url.format(folder=packed), str(packed)))
    assert [batch["images"] for batch in remote] == [batch["images"] for batch in local]


def test_a_bucket_is_asked_for_a_range_a_row_group(packed):
    fsspec.filesystem("memory").put(str(packed), "/packed", recursive=True)
    dataset = open_packed("bucket://packed")
    Bucket.asked.clear()
    assert len(list(dataset)) == 12
    rows = dataset.manifest.row_groups.to_pylist()
    spans = [(row["file"].rpartition("/")[2], row["offset"], row["offset"] + row["bytes"]) for row in rows]
    asked = [request for request in Bucket.asked if request in spans]
    assert len(Bucket.asked) - len(asked) == 3, "and one a file for its footer"
    assert len(set(asked)) == 12 == len(asked)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_an_fsspec_url(packed, context):
    options = {"global_batch_size": 4, "micro_batch_size": 2}
    dataset = open_packed(f"file://{packed}", **options)
    next(iter(dataset))  # what is open here is not the workers'
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    assert [packs_of(batch) for batch in loader] == [packs_of(b) for b in open_packed(str(packed), **options)]


def test_a_local_file_that_is_too_short_is_said_at_once(packed, tmp_path):
    (tmp_path / "short").write_bytes(b"12345")
    source = open_source(str(tmp_path), retry_seconds=600)
    with pytest.raises(FetchError, match="short: ends 3 bytes before"):
        source.read("short", 2, 6, Stop())
    with pytest.raises(FetchError, match="FileNotFoundError"):
        source.read("absent", 0, 1, Stop())


@pytest.mark.parametrize(("guess", "num_requests"), [(64 << 10, 3), (100, 6)])
def test_a_repository_without_a_manifest_is_read_from_its_footers(
    hub, packed, tmp_path, monkeypatch, guess, num_requests
):
    monkeypatch.setattr(footers, "_GUESS", guess)
    bare = shutil.copytree(packed, tmp_path / "bare")
    shutil.rmtree(bare / "manifest")
    repo = f"owner/bare{guess}"
    upload(repo, bare)
    states = []
    for name in (str(bare), repo):
        hub.requests.clear()
        with pytest.warns(MissingManifestWarning, match="the footers of its 3 files were read"):
            dataset = open_packed(name)
        assert len(ranges(hub, repo)) == (num_requests if name == repo else 0)
        given = open_packed(str(packed)).manifest.row_groups
        layout = ["file", "file_bytes", "footer_offset", "footer_bytes", "row_group", "offset", "bytes", "num_rows"]
        assert dataset.manifest.row_groups.select(layout).equals(given.select(layout))
        assert dataset.manifest.info["seq_len"] == max(
            n for path in packed.glob("data/train/*") for n in pq.read_table(path)["num_tokens"].to_pylist()
        )
        batches = list(dataset)
        seen = sorted(pack for batch in batches for pack in packs_of(batch))
        assert len(seen) == len(set(seen)) == 48
        states.append(batches[-1]["state"])
    assert states[0] == states[1]
    (bare / "data/train/00001.parquet").write_bytes(b"no Parquet at all")
    with pytest.warns(MissingManifestWarning), pytest.raises(ContractError, match=r"00001.parquet: is no Parquet"):
        open_packed(str(bare))
    with pytest.raises(FileNotFoundError, match=r"neither manifest/test.json nor data/test/\*.parquet"):
        open_packed(str(bare), split="test")


def test_what_datasets_makes_of_packs_is_read(packed, tmp_path):
    """The same columns in files of other names, without our metadata; the rows here are those with an image."""
    import datasets

    source = datasets.load_dataset("parquet", data_files=str(packed / "data/train/*.parquet"), split="train")
    kept = source.filter(lambda num: num > 0, input_columns="num_images")
    (tmp_path / "data").mkdir()
    kept.to_parquet(tmp_path / "data/train-00000-of-00001.parquet", batch_size=8)
    with pytest.warns(MissingManifestWarning):
        dataset = open_packed(str(tmp_path), global_batch_size=1, decode="pil")
    numbers = [ids[0] // 10 for ids in kept["sample_ids"]]
    assert 20 < len(numbers) < 50
    assert sorted(pack for batch in dataset for pack in packs_of(batch)) == sorted(numbers)


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
batches = iter(PackedDataset("owner/packed", global_batch_size=4))
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
    monkeypatch.setattr(fetch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Stop, "wait", lambda self, seconds: now.__setitem__(0, now[0] + seconds))
    bytes_come = iter([True] * 5 + [False] * 9)  # 20 s of waiting, but bytes come in between

    def attempt(progress):
        if next(bytes_come):
            progress()
        raise fetch._PassingError("503", wait=4)

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
