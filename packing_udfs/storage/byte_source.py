"""Byte ranges of files in a local folder, behind any fsspec URL or on the Hub, through faults that pass.

One loop serves all of them: ask, keep what arrives, and after a fault that may pass (429, 5xx, reset, timeout, a body
that ends early) wait and ask for the rest, from the last byte on. How long it waits is in
`packing_udfs.storage.retry_policy`. It raises FetchError after `retry_seconds` without a new byte, and at once for
what no wait mends (no access, no such file). Cost: one request a range. How the Hub is asked is in
`packing_udfs.storage.hub`.

Rejected: pyarrow's dataset scanner (no prefetch by default, buffers that are never released, aborts when left early).
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import fsspec
import pyarrow as pa

from packing_udfs.storage import http
from packing_udfs.storage.folder_state import PUBLISHED, places
from packing_udfs.storage.mapped import map_range
from packing_udfs.storage.retry_policy import pause
from packing_udfs.storage.slabs import Slabs

T = TypeVar("T")
log = logging.getLogger(__name__)

RANGE_SIZE = 128 << 20  # bytes of one request at most: all of a row group, unless those are huge
BLOCK_SIZE = 1 << 20  # bytes taken at a time; in between it is seen whether the reader has been left
_WORTH_SAYING = 5.0  # seconds of wait from which on it is logged


class FetchError(Exception):
    """Bytes that could not be had; the message names the file, the range, the attempts and the last fault."""


class AbsentError(FetchError):
    """Bytes that a manifest names and that no file has: they will not be there at another try."""


class AbandonedError(Exception):
    """The reader was left while a range was under way; nobody waits for it."""


class PassingError(OSError):
    """An answer that may be another one later. `wait` is what the server asked for, in seconds."""

    def __init__(self, message: str, wait: float | None = None):
        super().__init__(message)
        self.wait = wait


class Stop:
    """Tells fetching threads to end: set by their owner, or true once the main thread has ended.

    The latter lets an interpreter exit at once although somebody still holds an iterator.
    """

    def __init__(self):
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set() or not threading.main_thread().is_alive()

    def check(self) -> None:
        """Raises AbandonedError when set."""
        if self.is_set():
            raise AbandonedError

    def wait(self, seconds: float) -> None:
        """Sleep. Raises AbandonedError when set before or meanwhile."""
        end = time.monotonic() + seconds
        self.check()
        while (rest := end - time.monotonic()) > 0:
            self._event.wait(min(rest, 0.2))
            self.check()


@dataclass
class Source:
    """Where a dataset's files are: a local folder or any URL that fsspec opens. Picklable; `HubSource` is for the Hub.

    retry_seconds, range_size, block_size: see `RANGE_SIZE`, `BLOCK_SIZE` and the module docstring.
    """

    name: str
    retry_seconds: float
    range_size: int = RANGE_SIZE
    block_size: int = BLOCK_SIZE
    _slabs: Slabs = field(default_factory=Slabs, init=False, repr=False, compare=False)
    _files: dict[str, str] | None = field(default=None, init=False, repr=False)  # path → file in the folder

    @property
    def is_local(self) -> bool:
        return "://" not in self.name

    @property
    def num_threads(self) -> int:
        """Ranges to ask for at a time: sixteen hide 50 ms a request. From a local disk one reads while one parses."""
        return 2 if self.is_local else 16

    @property
    def ahead(self) -> float:
        """Row groups to fetch ahead for each lane. All lanes end a row group in the same step: with one, all requests
        of the next cycle would start at once, and nothing would arrive for as long as the first byte takes."""
        return 1.0 if self.is_local else 1.5

    def read_file(self, path: str) -> bytes:
        """A whole small file. Raises FileNotFoundError when there is none, FetchError when it cannot be had."""
        fs, root = fsspec.core.url_to_fs(self.name)
        place = self._place(path)
        return self._retried(path, lambda _: fs.cat_file(f"{root}/{place}"))

    def _place(self, path: str) -> str:
        """The file that stands for a path, by the folder's published.json as it was first found."""
        if self._files is None:
            fs, root = fsspec.core.url_to_fs(self.name)
            self._files = self._retried(PUBLISHED, lambda _: places(lambda name: fs.cat_file(f"{root}/{name}")))
        if self._files and path not in self._files:
            raise FileNotFoundError(f"{self.name}: {path}: no such file")
        return self._files.get(path, path)

    def forget(self, *paths: str) -> bool:
        """Drop what is kept of whole files outside the source; whether there was any."""
        return False

    def list_files(self, folder: str) -> list[tuple[str, int]]:
        """(path, bytes) of the Parquet files below a folder, sorted."""
        fs, root = fsspec.core.url_to_fs(self.name)
        found = self._retried(folder, lambda _: fs.find(f"{root}/{folder}", detail=True))
        prefix = len(root.rstrip("/")) + 1
        return sorted((path[prefix:], info["size"]) for path, info in found.items() if path.endswith(".parquet"))

    def read(
        self, path: str, offset: int, length: int, stop: Stop, allocate: Callable[[int], pa.Buffer] = pa.allocate_buffer
    ) -> pa.Buffer:
        """`length` bytes of a file from `offset` on. Raises FetchError, or AbandonedError when `stop` is set."""
        data = allocate(length)
        view, done = memoryview(data).cast("B"), 0

        def rest(progress: Callable) -> None:
            nonlocal done
            while done < length:
                for num_bytes in self._receive(path, offset + done, view[done : done + self.range_size]):
                    done += num_bytes
                    progress()

        try:
            self._retried(f"{path}, bytes {offset}–{offset + length - 1}", rest, stop)
        except FileNotFoundError as fault:  # the manifest names it
            raise AbsentError(f"{self.name}: {path}: FileNotFoundError: {fault}") from fault
        return data

    def view(self, path: str, offset: int, length: int, stop: Stop) -> pa.Buffer:
        """The same for a row group: of a local file the kernel's pages, and else memory that is used again. Where the
        pages are not there it is read, into Arrow's memory: for two threads that is a little better."""
        if not self.is_local:
            return self.read(path, offset, length, stop, self._slabs.take)
        with suppress(OSError):  # whatever it was, reading does it or says it better
            return map_range(f"{self.name}/{self._place(path)}", offset, length, self.block_size, stop.check)
        return self.read(path, offset, length, stop)

    def _receive(self, path: str, offset: int, view: memoryview) -> Iterator[int]:
        """Fill `view` with a file's bytes from `offset` on, from one request; how many came, as they come."""
        place = self._place(path)
        if self.is_local:
            with open(f"{self.name}/{place}", "rb", buffering=0) as file:
                file.seek(offset)
                num = file.readinto(view)
        else:
            fs, root = fsspec.core.url_to_fs(self.name)
            data = fs.cat_file(f"{root}/{place}", start=offset, end=offset + len(view))
            num = len(data)
            view[:num] = data
        if not num:
            raise AbsentError(f"{self.name}: {path}: ends {len(view)} bytes before the manifest says")
        yield num

    def _retried(self, what: str, attempt: Callable[[Callable], T], stop: Stop | None = None) -> T:
        """`attempt(progress)` until it returns; it calls `progress` when bytes came, which starts the count anew."""
        stop, draw = stop or Stop(), random.Random()  # its own, so that ranks do not come back all at once
        since, attempts = time.monotonic(), 0

        def progress() -> None:
            nonlocal since, attempts
            since, attempts = time.monotonic(), 0
            stop.check()

        while True:
            try:
                return attempt(progress)
            except FileNotFoundError:
                raise
            except (PermissionError, IsADirectoryError, NotADirectoryError, *http.REFUSALS) as fault:
                raise FetchError(f"{self.name}: {what}: {type(fault).__name__}: {fault}") from fault
            except http.FAULTS as fault:
                stop.check()  # whoever set it may have broken the connection
                if str(fault).startswith("Tunnel connection failed: 4"):  # so http.client says what a proxy refuses
                    raise FetchError(f"{self.name}: {what}: {fault}") from fault
                attempts += 1
                asked = getattr(fault, "wait", None)
                wait = pause(attempts) * draw.uniform(0.5, 1.0) if asked is None else asked
                waited, cause = time.monotonic() - since, f"{type(fault).__name__}: {fault}"
                cause += "" if asked is None else f", try again in {asked:g} s"
                if waited + wait > self.retry_seconds:
                    raise FetchError(
                        f"{self.name}: {what}: gave up after {attempts} attempts in {waited:.0f} s without a byte "
                        f"(retry_seconds={self.retry_seconds:g}); last fault: {cause}"
                    ) from fault
            if wait >= _WORTH_SAYING:
                log.warning("%s: %s: %s: trying again in %.0f s", self.name, what, cause, wait)
            stop.wait(wait)
