"""HTTP GETs over kept-alive connections, whose bodies go straight into the memory that they are meant for.

    with get("https://host/path", {"Range": "bytes=0-99"}) as answer:
        receive(answer, view)        # bytes that came, at most one call of the system: 0 at the end

The standard library's client, on which nothing is wrapped. Cost: 0.3 ms of a core for a megabyte, nearly all of it in
the kernel and without the interpreter's lock. Rejected: huggingface_hub's client, httpx, which parses bodies in Python
in pieces of 64 KiB, three times the processor time; it is used for what is small and rare, and shares with this one the
trusted certificates (SSL_CERT_FILE) and the HTTP proxies of the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY).
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
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

TIMEOUT = 20.0  # seconds of silence on a connection before it is given up, and of waiting for one
_KEPT = 10.0  # seconds that a connection may lie idle; servers close them after a minute or so, unannounced
FAULTS = (OSError, http.client.HTTPException)  # what `get` and `receive` raise and may pass
# What they raise and no wait mends: AddressError, an address that is none, a certificate that is not trusted.
REFUSALS = (ValueError, http.client.InvalidURL, ssl.SSLCertVerificationError)

_idle: dict[tuple[str, str], list[tuple[float, http.client.HTTPConnection]]] = defaultdict(list)
_in_use: dict[threading.Thread, socket.socket] = {}


def close_idle() -> None:
    """Let go of the connections that are not in use."""
    while _idle:
        for _, connection in _idle.popitem()[1]:
            connection.close()


def interrupt(threads: Iterable[threading.Thread]) -> None:
    """Break the connections that these threads have in use: who waits on one for bytes gets the end of what
    came, or one of `FAULTS`. No lock: a signal's handler or the garbage collector may call it in the midst of it."""
    for thread in threads:
        if connection := _in_use.pop(thread, None):
            with suppress(OSError):  # it has broken or ended by itself
                # The plain one: that of a TLS socket also changes what its reader is looking at.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _forget() -> None:
    """In a forked process: two on one connection would get each other's answers."""
    _in_use.clear()
    close_idle()


os.register_at_fork(after_in_child=_forget)
atexit.register(close_idle)


class AddressError(ValueError):
    """An address, a proxy or a file of certificates that cannot be used; the message names it and its variable."""


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
    if proxy and parts.scheme == "http":  # which is told of the host in every request; for https it is a tunnel
        target, headers = parts[:2] + target[2:], headers | _credentials(proxy)
    kept, answer = _idle[parts.scheme, parts.netloc], None
    connection = _reusable(kept) or _connect(parts, proxy)
    try:
        if connection.sock is None:
            connection.connect()
        _in_use[threading.current_thread()] = connection.sock
        connection.request("GET", urlunsplit(target), headers=headers)
        answer = connection.getresponse()
        yield answer
    finally:
        # What had come before `interrupt` can still be read to its end, from a connection that is of no more use.
        is_whole = _in_use.pop(threading.current_thread(), None) is not None
        if is_whole and answer and not answer.will_close and (answer.length == 0 or answer.isclosed()):
            answer.close()
            kept.append((time.monotonic(), connection))
        else:
            connection.close()


def receive(answer: http.client.HTTPResponse, view: memoryview) -> int:
    """Put what has come of a body at the front of `view`; how many bytes, 0 at the end. After a fault, all that came
    before it has been counted. Raises `FAULTS`."""
    if answer.chunked or answer.isclosed():
        return answer.readinto(view)
    if answer.length is not None:
        view = view[: answer.length]
    num = answer.fp.readinto1(view)  # `answer.readinto` fills the view, and forgets what it has when it cannot
    if answer.length is not None:
        answer.length -= num
    return num


class _Head:
    """Where an answer's head is read from; `end` is what came last, nothing when the connection had ended."""

    def __init__(self, file: io.BufferedReader):
        self._file, self.end = file, b""

    def readline(self, limit: int) -> bytes:
        self.end = self._file.readline(limit)
        return self.end

    def close(self) -> None:
        self._file.close()


class _Answer(http.client.HTTPResponse):
    """An answer that is not taken for whole when the connection ends among its headers, and not given before hints of
    it (103), which the standard library takes for the answer, and the answer for the next one."""

    def begin(self) -> None:
        file, self.fp = self.fp, _Head(self.fp)
        try:
            while self.headers is None or http.HTTPStatus.SWITCHING_PROTOCOLS < self.status < http.HTTPStatus.OK:
                self.headers = None
                super().begin()
                if not self.fp.end:
                    raise http.client.RemoteDisconnected("the connection ended among the headers of the answer")
        finally:
            if self.fp:  # not closed for what is no answer
                self.fp = file


def _reusable(kept: list[tuple[float, http.client.HTTPConnection]]) -> http.client.HTTPConnection | None:
    with suppress(IndexError):  # the list is empty: threads take from it side by side
        while True:
            since, connection = kept.pop()
            if time.monotonic() - since <= _KEPT:
                return connection
            connection.close()
    return None


def _connect(parts: SplitResult, proxy: SplitResult | None) -> http.client.HTTPConnection:
    tls = {"context": _tls()} if parts.scheme == "https" else {}
    kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
    host, port = (proxy.hostname, proxy.port or 80) if proxy else (parts.netloc, None)
    connection = kind(host, port, timeout=TIMEOUT, **tls)
    connection.response_class = _Answer
    if proxy and tls:
        connection.set_tunnel(parts.hostname, parts.port, headers=_credentials(proxy))
    return connection


def _proxy(parts: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for an address."""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc) or _is_exempt(parts.hostname, proxies.get("no", "")):
        return None
    found = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    try:
        is_good = found.scheme == "http" and found.hostname and (found.port or 80)
    except ValueError:  # the port
        is_good = False
    if not is_good:
        raise AddressError(f"{parts.scheme.upper()}_PROXY or ALL_PROXY: must be http://host:port, with user if wanted")
    return found


def _is_exempt(host: str | None, no_proxy: str) -> bool:
    """Whether NO_PROXY names the network of an address (10.0.0.0/8, ::1); `proxy_bypass` knows names alone."""
    with suppress(ValueError):
        address = ip_address(host or "")
        for entry in no_proxy.split(","):
            with suppress(ValueError):
                if address in ip_network(entry.strip().strip("[]"), strict=False):
                    return True
    return False


def _credentials(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
