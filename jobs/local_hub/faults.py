"""Faults on order, so that tests can see what a client does when the Hub fails.

    fault = hub.inject(route="commit", status=429, headers={"Retry-After": "1"}, times=2)
    ...
    assert fault.hits == 2

A fault is a filter (route, method, path) with one thing to do to the requests that pass it. It lets `skip` of them go
by, hits the next `times`, and lets the rest go by. Only the first fault that hits a request acts. A reset closes the
connection with RST, which clients see as "connection reset by peer".
"""

import re
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

__all__ = ["ConnectionCutError", "Fault", "Faults"]

Pieces = Iterable[bytes | memoryview]


class ConnectionCutError(ConnectionError):
    """The connection is to be reset now."""


@dataclass
class Fault:
    """Which requests to hit (None is any), and what to do to them (None and 0 do nothing)."""

    route: str | None = None  # name of the route (`RequestRecord.route`), e.g. "commit", "lfs_put", "resolve"
    method: str | None = None  # HTTP method
    path: str | None = None  # regular expression to find in the request's path and query
    times: int | None = 1  # how many requests to hit; None is all
    skip: int = 0  # how many matching requests to let go by first
    status: int | None = None  # answer with this status (e.g. 429, 503, 507 for a full store) and do nothing else
    headers: dict[str, str] = field(default_factory=dict)  # … and these headers, e.g. {"Retry-After": "1"}
    delay: float = 0  # seconds to wait before anything else
    reset: str | None = None  # "before" the request is handled, or "after" it, without an answer (a lost answer)
    cut_upload: int | None = None  # reset after this many bytes of the request's body
    cut_answer: int | None = None  # reset after this many bytes of the answer's body
    drip: tuple[int, float] | None = None  # send the answer's body in pieces of (bytes, seconds between them)
    hits: int = field(default=0, init=False)  # how many requests were hit so far

    def __post_init__(self):
        if self.reset not in (None, "before", "after"):
            raise ValueError(f'reset: {self.reset!r} is not "before" or "after"')

    def matches(self, route: str, method: str, path: str) -> bool:
        return (
            self.route in (None, route)
            and self.method in (None, method)
            and (self.path is None or re.search(self.path, path) is not None)
        )

    def begin(self) -> None:
        """Act before the request is handled."""
        time.sleep(self.delay)
        if self.reset == "before":
            raise ConnectionCutError

    def end(self) -> None:
        """Act after the request was handled, before the answer."""
        if self.reset == "after":
            raise ConnectionCutError

    def upload(self, pieces: Pieces) -> Pieces:
        """The request's body as the Hub gets it."""
        return pieces if self.cut_upload is None else _cut(pieces, self.cut_upload)

    def answer(self, pieces: Pieces) -> Pieces:
        """The answer's body as it is sent."""
        if self.drip is not None:
            pieces = _drip(pieces, *self.drip)
        return pieces if self.cut_answer is None else _cut(pieces, self.cut_answer)


def _cut(pieces: Pieces, num_bytes: int) -> Iterator[bytes | memoryview]:
    for piece in pieces:
        if len(piece) >= num_bytes:
            yield piece[:num_bytes]
            raise ConnectionCutError
        num_bytes -= len(piece)
        yield piece


def _drip(pieces: Pieces, num_bytes: int, seconds: float) -> Iterator[bytes | memoryview]:
    for piece in pieces:
        for start in range(0, len(piece), num_bytes):
            yield piece[start : start + num_bytes]
            time.sleep(seconds)


class Faults:
    """The faults of a Hub, in the order in which they were injected."""

    def __init__(self):
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def hit(self, route: str, method: str, path: str) -> Fault | None:
        """The fault that acts on a request, with the request counted."""
        with self._lock:
            for fault in self._faults:
                if not fault.matches(route, method, path):
                    continue
                if fault.skip:
                    fault.skip -= 1
                elif fault.times is None or fault.hits < fault.times:
                    fault.hits += 1
                    return fault
        return None
