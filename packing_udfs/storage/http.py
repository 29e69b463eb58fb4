"""HTTP GETs over connections that are kept, with bodies that go straight into the caller's memory.

    with get("https://host/path", {"Range": "bytes=0-99"}) as answer:
        receive(answer, view)        # number of bytes that came, from one system call at most; 0 at the end

This is the standard library's client without a layer on top. Cost: 0.3 ms of a core per megabyte, nearly all of it in
the kernel, without the interpreter's lock. Rejected: huggingface_hub's client, httpx, which parses bodies in Python in
pieces of 64 KiB: three times the processor time. Small and rare requests use it. Both trust the same certificates
(SSL_CERT_FILE) and use the environment's HTTP proxies (HTTP_PROXY, HTTPS_PROXY, NO_PROXY).
"""

import atexit
import base64
import http.client
import io
import os
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

__all__ = ["FAULTS", "REFUSALS", "TIMEOUT", "AddressError", "close_idle", "get", "interrupt", "receive"]

TIMEOUT = 20.0  # seconds: to connect, and of silence on a connection
_KEPT = 10.0  # seconds that a connection may be idle; servers close them after a minute or so without notice
FAULTS = (OSError, http.client.HTTPException)  # what `get` and `receive` raise and what may pass
REFUSALS = (ValueError, http.client.InvalidURL, ssl.SSLCertVerificationError)  # what they raise and what does not pass

_idle: dict[tuple[str, str], list[tuple[float, http.client.HTTPConnection]]] = defaultdict(list)
_in_use: dict[threading.Thread, socket.socket] = {}


class AddressError(ValueError):
    """An address, a proxy or a certificate file that cannot be used. The message names it and its variable."""


def close_idle() -> None:
    """Close the connections that are not in use."""
    while _idle:
        for _, connection in _idle.popitem()[1]:
            connection.close()


def interrupt(threads: Iterable[threading.Thread]) -> None:
    """Break the connections that these threads use: a thread that waits for bytes gets the end of what came, or one of
    `FAULTS`. No lock, since a signal handler or the garbage collector may call it while it runs."""
    for thread in threads:
        if connection := _in_use.pop(thread, None):
            with suppress(OSError):  # it has broken or ended by itself
                # The plain method: a TLS socket's own one also changes what its reader is looking at.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _forget() -> None:
    """In a forked process: two processes on one connection would get each other's answers."""
    _in_use.clear()
    close_idle()


os.register_at_fork(after_in_child=_forget)
atexit.register(close_idle)


@cache
def _tls() -> ssl.SSLContext:
    try:
        return httpx2.create_ssl_context()
    except OSError as error:
        files = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
        raise AddressError(f"certificates cannot be read: {error}; {files}") from error


@contextmanager
def get(url: str, headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
    """The answer to a GET, of any status; redirects are not followed. Raises `FAULTS` and `REFUSALS`."""
    parts = urlsplit(url)
    proxy, target = _proxy(parts), ("", "", parts.path or "/", parts.query, "")
    if proxy and parts.scheme == "http":  # the proxy needs the host in each request; for https it is a tunnel
        target, headers = parts[:2] + target[2:], headers | proxy.headers
    kept, answer = _idle[parts.scheme, parts.netloc], None
    connection = _reusable(kept) or _connect(parts, proxy)
    try:
        if connection.sock is None:
            connection.connect()
        assert connection.sock is not None
        _in_use[threading.current_thread()] = connection.sock
        connection.request("GET", urlunsplit(target), headers=headers)
        answer = connection.getresponse()
        yield answer
    finally:
        # After `interrupt`, bytes that came before it can still be read to their end, but not a second answer.
        is_whole = _in_use.pop(threading.current_thread(), None) is not None
        if is_whole and answer and not answer.will_close and (answer.length == 0 or answer.isclosed()):
            answer.close()
            kept.append((time.monotonic(), connection))
        else:
            connection.close()


def receive(answer: http.client.HTTPResponse, view: memoryview) -> int:
    """Put the bytes of a body that have come at the front of `view`. Returns how many; 0 at the end. Raises `FAULTS`;
    bytes that came before a fault have been returned."""
    if answer.chunked or answer.isclosed():
        return answer.readinto(view)
    if answer.length is not None:
        view = view[: answer.length]
    num = answer.fp.readinto1(view)  # `answer.readinto` waits for all of the view, and loses a part of it on a fault
    if answer.length is not None:
        answer.length -= num
    return num


class _Lines(io.BufferedReader):
    """What a connection receives. The standard library accepts a head that the connection's end cuts off."""

    def readline(self, size: int | None = -1) -> bytes:
        if not (line := super().readline(size)):
            raise http.client.RemoteDisconnected("the connection ended among the headers of the answer")
        return line


class _Answer(http.client.HTTPResponse):
    """The standard library's answer, but with a whole head, and not one of the hints (status 102 and 103) before it."""

    fp: Any
    headers: Any

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.fp = _Lines(self.fp.detach())

    def begin(self) -> None:
        while self.headers is None or http.HTTPStatus.SWITCHING_PROTOCOLS < self.status < http.HTTPStatus.OK:
            self.headers = None
            super().begin()


def _reusable(kept: list[tuple[float, http.client.HTTPConnection]]) -> http.client.HTTPConnection | None:
    with suppress(IndexError):  # threads take from the list side by side
        while True:
            since, connection = kept.pop()
            if time.monotonic() - since <= _KEPT:
                return connection
            connection.close()
    return None


class _Proxy(NamedTuple):
    host: str
    port: int
    headers: dict[str, str]  # its user and password


def _connect(parts: SplitResult, proxy: _Proxy | None) -> http.client.HTTPConnection:
    host, port = (proxy.host, proxy.port) if proxy else (parts.netloc, None)
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=_tls())
        if proxy:
            connection.set_tunnel(parts.hostname or "", parts.port, headers=proxy.headers)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    connection.response_class = _Answer
    return connection


def _proxy(parts: SplitResult) -> _Proxy | None:
    """The environment's proxy for an address."""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc) or _is_exempt(parts.hostname, proxies.get("no", "")):
        return None
    found, port = urlsplit(proxy if "://" in proxy else f"http://{proxy}"), 0
    with suppress(ValueError):  # the port is no number
        port = found.port or 80
    if found.scheme != "http" or not found.hostname or not port:
        raise AddressError(f"{parts.scheme.upper()}_PROXY or ALL_PROXY: must be http://host:port, with user if needed")
    headers = {}
    if found.username:
        user = f"{unquote(found.username)}:{unquote(found.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    return _Proxy(found.hostname, port, headers)


def _is_exempt(host: str | None, no_proxy: str) -> bool:
    """Whether NO_PROXY names the network of an address (10.0.0.0/8, ::1). `proxy_bypass` only knows names."""
    with suppress(ValueError):
        address = ip_address(host or "")
        for entry in no_proxy.split(","):
            with suppress(ValueError):
                if address in ip_network(entry.strip().strip("[]"), strict=False):
                    return True
    return False
