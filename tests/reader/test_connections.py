"""Connections: which are used again, which lead through a proxy, what of a body has come when it breaks."""

import multiprocessing
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread, current_thread
from urllib.parse import urlsplit

import pytest

from packing_udfs.storage import http
from packing_udfs.storage.byte_source import Stop
from packing_udfs.storage.http import close_idle, get, receive
from packing_udfs.stream.prefetch import _Threads


def idle() -> list:
    return [connection for kept in http._idle.values() for _, connection in kept]


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
    monkeypatch.setattr(http, "_KEPT", -1.0)
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


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 200 OK\r\nX-So-", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbody"]
)
@pytest.mark.parametrize("connection", [b"keep-alive", b"close"])
def test_closing_a_reader_breaks_what_its_threads_wait_for(sent, connection):
    """A server that falls silent, before or in its answer: nobody waits for `TIMEOUT`."""
    waits, view = Event(), memoryview(bytearray(9))

    def read() -> int:
        with get("http://{}:{}".format(*server.getsockname()), {}) as answer:
            num = receive(answer, view)
            return num + receive(answer, view[num:])

    with socket.create_server(("127.0.0.1", 0)) as server:
        threads = _Threads(2, "fetch", Stop())
        done = threads.submit(read)
        client, _ = server.accept()
        with client:
            client.recv(1000)
            client.sendall(sent.replace(b"OK\r\n", b"OK\r\nConnection: %s\r\n" % connection))
            threads.submit(waits.wait)
            Thread(target=threads.join).start()
            assert client.recv(1000) == b"", "closed by the client; the server never does"
            waits.set()
    if b"body" in sent:
        assert (done.result(), bytes(view)) == (4, b"body\0\0\0\0\0")
    else:
        assert isinstance(done.exception(), http.FAULTS)
        assert not isinstance(done.exception(), TimeoutError)
    assert http._in_use == {}


@pytest.fixture
def serve():
    """Start a server that answers one request with these bytes and then ends the connection; its address."""
    threads = []

    def start(sent: bytes) -> str:
        def answer() -> None:
            with server.accept()[0] as client:
                client.recv(1000)
                client.sendall(sent)

        threads.append(Thread(target=answer))
        threads[0].start()
        return "http://{}:{}".format(*server.getsockname())

    close_idle()
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield start
        threads[0].join()
    close_idle()


@pytest.mark.parametrize(
    "sent",
    [b"HTTP/1.1 206 Par", b"HTTP/1.1 302 Found\r\nLocation: https://stor", b"HTTP/1.1 200 OK\r\nX: 1\r\n", b"ready\n"],
)
def test_an_answer_that_ends_among_its_headers_is_a_fault_that_may_pass(serve, sent):
    with pytest.raises(http.FAULTS), get(serve(sent), {}):
        pass


def test_a_connection_that_was_broken_is_not_used_again(serve):
    with get(serve(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody"), {}) as answer:
        http.interrupt([current_thread()])
        assert answer.read() == b"body", "which had come"
    assert idle() == []


def test_a_hint_is_not_the_answer(serve):
    hints = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    with get(serve(hints + b"HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\n\r\nbody"), {}) as answer:
        assert (answer.status, answer.headers["Link"], answer.read()) == (206, None, b"body")


def test_connections_are_broken_in_the_midst_of_breaking_others():
    """As where a signal's handler closes one more reader, or where the garbage of one is collected."""

    def threads() -> Iterator[Thread]:
        http.interrupt([])
        yield Thread()

    thread = Thread(target=http.interrupt, args=(threads(),), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_only_the_connections_of_given_threads_are_broken(hub, url):
    hub.inject(route="resolve", drip=(5_000, 0.01))
    with get(url, {"Range": "bytes=0-99999"}) as answer:
        http.interrupt([Thread()])
        assert len(answer.read()) == 100_000


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process_has_connections_of_its_own(url):
    def read() -> None:
        assert http._in_use == http._idle == {}
        with get(url, {"Range": "bytes=0-9"}) as answer:
            assert len(answer.read()) == 10

    with get(url, {"Range": "bytes=0-9"}) as answer:
        child = multiprocessing.get_context("fork").Process(target=read)
        child.start()
        child.join(60)
        child.kill()
        child.join()
        assert child.exitcode == 0
        assert len(answer.read()) == 10


@pytest.fixture
def proxies(monkeypatch):
    """Set variables of proxies; none is set before."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch.setenv


def route(url: str) -> tuple:
    """(host, port) that is connected to and the host behind it that a tunnel leads to."""
    parts = urlsplit(url)
    connection = http._connect(parts, http._proxy(parts))
    return connection.host, connection.port, connection._tunnel_host


def test_a_tunnel_leads_through_the_proxy_of_the_environment(proxies):
    proxies("https_proxy", "http://user:p%40ss@proxy.example:3128")
    proxies("no_proxy", "inside.example,10.0.0.0/8,::1")
    parts = urlsplit("https://huggingface.co/datasets")
    through = http._connect(parts, http._proxy(parts))
    assert (through.host, through.port) == ("proxy.example", 3128)
    assert (through._tunnel_host, through._tunnel_port) == ("huggingface.co", 443)
    assert through._tunnel_headers == {"Proxy-Authorization": "Basic dXNlcjpwQHNz"}  # user:p@ss
    assert route("https://inside.example/") == ("inside.example", 443, None)
    assert route("https://10.1.2.3/") == ("10.1.2.3", 443, None)
    assert route("https://[::1]:8443/") == ("::1", 8443, None)
    assert route("https://11.1.2.3/") == ("proxy.example", 3128, "11.1.2.3")
    assert route("http://huggingface.co:8080/") == ("huggingface.co", 8080, None)
    proxies("https_proxy", "proxy.example")
    assert route("https://huggingface.co/") == ("proxy.example", 80, "huggingface.co")


@pytest.mark.parametrize("proxy", ["socks5://proxy:1080", "https://proxy:3128", "http://proxy:abc", "http://:80"])
def test_a_proxy_that_cannot_be_used_is_said(proxies, proxy):
    proxies("https_proxy", proxy)
    with pytest.raises(http.AddressError, match="HTTPS_PROXY or ALL_PROXY: must be http://host:port"):
        route("https://huggingface.co/")


def test_a_proxy_for_http_is_told_the_whole_address(proxies):
    seen = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers["Host"], self.headers["Proxy-Authorization"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        proxies("http_proxy", f"http://user:p%40ss@127.0.0.1:{server.server_port}")
        with get("http://hub.example/a/b?c=d", {}) as answer:
            assert answer.status == 204
        thread.join()
    close_idle()
    assert seen == [("http://hub.example/a/b?c=d", "hub.example", "Basic dXNlcjpwQHNz")]


def test_certificates_that_are_not_there_are_said(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nowhere.pem"))
    http._tls.cache_clear()
    with pytest.raises(http.AddressError, match=r"certificates cannot be read: .*nowhere\.pem"):
        http._tls()
