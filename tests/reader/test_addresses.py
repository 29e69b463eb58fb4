"""Ranges from a Hub that leads on to another host: signed addresses, what they cost, and answers that are wrong."""

import http.client
import socket
import time
from collections import Counter

import pytest
from huggingface_hub import HfApi

from packing_udfs.storage import http as http_module
from packing_udfs.storage.byte_source import FetchError, Stop
from packing_udfs.storage.hub import HubSource, open_source
from tests.reader.conftest import open_packed, packs_of

pytestmark = pytest.mark.usefixtures("fresh_hub")


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
    answers = Counter((record.route, record.status) for record in cdn.requests)  # logged in any order, once sent
    assert answers == {("cdn", 206): 2, ("cdn", 403): 1, ("resolve", 302): 1}


def test_a_range_is_cut_into_requests_of_range_size_and_taken_in_blocks(hub, hub_dataset, monkeypatch):
    blocks = []
    receive = http_module.receive
    monkeypatch.setattr(http_module, "receive", lambda *args: blocks.append(receive(*args)) or blocks[-1])
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

        def close_there(self):
            """Nothing to close before `connect`."""

    http_module.close_idle()
    monkeypatch.setattr(http_module, "_connect", lambda parts, proxy: Canned(parts.netloc))


def test_a_wrong_range_is_refused(monkeypatch):
    source = HubSource("owner/packed", "f" * 40, retry_seconds=1)
    canned(monkeypatch, 206, b"x" * 10, Content_Range="bytes 0-9/200")
    with pytest.raises(FetchError, match="asked for 10 bytes from 10 on, got 10 from 0"):
        source.read("a.parquet", 10, 10, Stop())
    canned(monkeypatch, 206, b"x" * 11, Content_Range="bytes 10-20/200")
    with pytest.raises(FetchError, match="asked for 10 bytes from 10 on, got 11 from 10"):
        source.read("a.parquet", 10, 10, Stop())
    canned(monkeypatch, 200, b"x" * 200)
    with pytest.raises(FetchError, match=r"200 Reason: , where 206 was expected"):
        source.read("a.parquet", 10, 10, Stop())
    canned(monkeypatch, 302, b"", Location="/again")
    with pytest.raises(FetchError, match="more than 5 redirects"):
        source.read("a.parquet", 10, 10, Stop())


def test_what_is_compressed_is_refused(monkeypatch):
    canned(monkeypatch, 200, b"x", Content_Encoding="gzip")
    with pytest.raises(FetchError, match="the server sent gzip, which was not asked for"):
        HubSource("owner/packed", "f" * 40, retry_seconds=60)._whole("a.json")


@pytest.mark.parametrize("location", ["http://[::1/a", "http://host/a b", "http://host:port/", "http://host/\xe9"])
def test_an_address_that_is_none_is_refused_at_once(monkeypatch, location):
    canned(monkeypatch, 302, b"", Location=location)
    with pytest.raises(FetchError, match=r"a\.parquet"):
        HubSource("owner/packed", "f" * 40, retry_seconds=60).read("a.parquet", 0, 10, Stop())


def test_an_error_that_comes_slowly_is_not_waited_for(cdn, monkeypatch):
    cdn.inject(route="resolve", status=403, drip=(1, 1.0))
    source = open_source("owner/packed", revision=HfApi().dataset_info("owner/packed").sha, retry_seconds=60)
    start = time.monotonic()
    with pytest.raises(FetchError, match="403"):
        source.read("data/train/00000.parquet", 0, 10, Stop())
    assert time.monotonic() - start < 10, "its body is longer than that"


def test_a_body_in_chunks_is_read(monkeypatch):
    body = b"6\r\nabcdef\r\n4\r\nghij\r\n0\r\n\r\n"
    canned(monkeypatch, 206, body, Content_Range="bytes 10-19/200", Transfer_Encoding="chunked")
    source = HubSource("owner/packed", "f" * 40, retry_seconds=1)
    assert bytes(source.read("a.parquet", 10, 10, Stop())) == b"abcdefghij"
