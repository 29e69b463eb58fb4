"""Connections: which are used again, which lead through a proxy, what of a body has come when it breaks."""

from urllib.parse import urlsplit

import pytest

from packing_udfs import connections
from packing_udfs.connections import close_idle, get, receive


def idle() -> list:
    return [connection for kept in connections._idle.values() for _, connection in kept]


@pytest.fixture
def url(hub):
    close_idle()
    yield f"{hub.url}/datasets/owner/packed/resolve/main/data/train/00000.parquet"
    hub.faults.clear()
    close_idle()


def test_a_connection_is_used_again_when_its_body_was_read_to_the_end(url, monkeypatch):
    used = []
    for _ in range(3):
        with get(url, {"Range": "bytes=0-99"}) as answer:
            view, num = memoryview(bytearray(200)), 0
            while got := receive(answer, view[num:]):
                num += got
            assert num == 100
        used += idle()
    assert len(used) == 3
    assert used[0] is used[1] is used[2]
    with get(url, {"Range": "bytes=0-99999"}) as answer:
        receive(answer, memoryview(bytearray(10)))
    assert idle() == [], "the rest of a body would be taken for the next answer"


def test_a_connection_that_was_idle_for_long_is_not(url, monkeypatch):
    with get(url, {"Range": "bytes=0-9"}) as answer:
        answer.read()
    (first,) = idle()
    monkeypatch.setattr(connections, "_KEPT", -1.0)
    with get(url, {"Range": "bytes=0-9"}) as answer:
        assert len(answer.read()) == 10
    assert idle() != [first]
    assert first.sock is None


def test_what_came_before_a_reset_is_counted(hub, url, hub_dataset):
    hub.inject(route="resolve", cut_answer=12_345, drip=(5_000, 0.01))
    view, num = memoryview(bytearray(100_000)), 0

    def read() -> None:
        nonlocal num
        with get(url, {"Range": "bytes=0-99999"}) as answer:
            while True:
                num += receive(answer, view[num:])

    with pytest.raises(ConnectionResetError):
        read()
    assert num == 12_345
    assert view[:num] == (hub_dataset / "data/train/00000.parquet").read_bytes()[:num]


def test_proxies_of_the_environment_are_used(monkeypatch):
    for name in ("http_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://user:p%40ss@proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    through = connections._connect(urlsplit("https://huggingface.co/datasets"))
    assert (through.host, through.port) == ("proxy.example", 3128)
    assert (through._tunnel_host, through._tunnel_port) == ("huggingface.co", 443)
    assert through._tunnel_headers == {"Proxy-Authorization": "Basic dXNlcjpwQHNz"}  # user:p@ss
    for inside in ("https://inside.example/", "http://huggingface.co:8080/"):
        direct = connections._connect(urlsplit(inside))
        assert direct.host == urlsplit(inside).hostname
        assert direct._tunnel_host is None
    assert direct.port == 8080
