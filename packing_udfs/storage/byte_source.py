"""Byte ranges of files in a local folder, behind any fsspec URL or on the Hub, despite faults that pass.

One loop serves all of them: it asks, keeps the bytes that arrive, and after a fault that may pass (429, 5xx, a reset,
a timeout, a body that ends early) it waits and asks for the rest. `packing_udfs.storage.retry_policy` says how long.
It raises FetchError after `retry_seconds` without a new byte, and at once where waiting does not help (no access, no
such file). Cost: one request per range. `packing_udfs.storage.hub` asks the Hub.

Rejected: pyarrow's dataset scanner (no prefetch by default, never releases buffers, aborts when left early).
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import fsspec
import pyarrow as pa

from packing_udfs.storage import http
from packing_udfs.storage.folder_state import PUBLISHED, places
from packing_udfs.storage.mapped import map_range
from packing_udfs.storage.retry_policy import pause
from packing_udfs.storage.slabs import Slabs

__all__ = ["BLOCK_SIZE", "RANGE_SIZE", "AbandonedError", "AbsentError", "FetchError", "PassingError", "Source", "Stop"]

T = TypeVar("T")
log = logging.getLogger(__name__)

RANGE_SIZE = 128 << 20  # bytes per request at most: more than nearly every row group
BLOCK_SIZE = 1 << 20  # bytes taken at a time; between blocks a thread checks whether the reader was left
_LOGGED_WAIT = 5.0  # seconds; shorter waits are not logged


class FetchError(Exception):
    """Bytes cannot be fetched. The message names the file, the range, the attempts and the last fault."""


class AbsentError(FetchError):
    """A manifest names bytes that no file has. Another try does not help."""


class AbandonedError(Exception):
    """The reader was left while a range was under way."""


class PassingError(OSError):
    """An answer that may change later. `wait`: the seconds that the server asks for, if it does."""

    def __init__(self, message: str, wait: float | None = None):
        super().__init__(message)
        self.wait = wait


class Stop(threading.Event):
    """Tells fetching threads to end. Their owner sets it, and it is set once the main thread has ended, so that an
    interpreter exits at once even if something still holds an iterator."""

    def is_set(self) -> bool:
        return super().is_set() or not threading.main_thread().is_alive()

    def check(self) -> None:
        """Raises AbandonedError if it is set."""
        if self.is_set():
            raise AbandonedError

    def sleep(self, seconds: float) -> None:
        """Raises AbandonedError as soon as it is set."""
        end = time.monotonic() + seconds
        self.check()
        while (rest := end - time.monotonic()) > 0:
            self.wait(min(rest, 0.2))
            self.check()


@dataclass
class Source:
    """The files of a dataset in a local folder or behind an fsspec URL; `HubSource` is for the Hub. Picklable.
    Its options are those of `packing_udfs.reader.PackedDataset`."""

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
        """Ranges to ask for at a time. Sixteen hide 50 ms per request; from a local disk one reads, one parses."""
        return 2 if self.is_local else 16

    @property
    def ahead(self) -> float:
        """Row groups to fetch ahead per lane. All lanes end a row group in the same step, so with 1.0 all requests of
        the next cycle would start together, and nothing would arrive until the first byte does."""
        return 1.0 if self.is_local else 1.5

    def read_file(self, path: str) -> bytes:
        """A whole small file. Raises FileNotFoundError when there is none, FetchError when it cannot be fetched."""
        fs, address = self._address(path)
        return self._retried(path, lambda _: fs.cat_file(address))

    def _address(self, path: str) -> tuple[Any, str]:
        """The file system (fsspec has no types) and the file's address in it."""
        fs, root = fsspec.core.url_to_fs(self.name)
        return fs, f"{root}/{self._place(path)}"

    def _place(self, path: str) -> str:
        """The folder's file for a path. The folder's published.json is read once."""
        if self._files is None:
            fs, root = fsspec.core.url_to_fs(self.name)
            self._files = self._retried(PUBLISHED, lambda _: places(lambda name: fs.cat_file(f"{root}/{name}")))
        if self._files and path not in self._files:
            raise FileNotFoundError(f"{self.name}: {path}: no such file")
        return self._files.get(path, path)

    def forget(self, *paths: str) -> bool:
        """Drop whole files that are cached outside the source. Returns whether there were any."""
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
        """As `read`, for a row group: pages of the kernel's cache if a local file's bytes are there, and reused memory
        for other sources. Otherwise a local file is read into Arrow's memory, which two threads do a little faster."""
        if not self.is_local:
            return self.read(path, offset, length, stop, self._slabs.take)
        with suppress(OSError):  # `read` either succeeds or has the better message
            return map_range(f"{self.name}/{self._place(path)}", offset, length, self.block_size, stop.check)
        return self.read(path, offset, length, stop)

    def _receive(self, path: str, offset: int, view: memoryview) -> Iterator[int]:
        """Fill `view` with a file's bytes from `offset` on, by one request. Yields how many bytes came each time."""
        if self.is_local:
            with open(f"{self.name}/{self._place(path)}", "rb", buffering=0) as file:
                file.seek(offset)
                num = file.readinto(view)
        else:
            fs, address = self._address(path)
            data = fs.cat_file(address, start=offset, end=offset + len(view))
            num = len(data)
            view[:num] = data
        if not num:
            raise AbsentError(f"{self.name}: {path}: ends {len(view)} bytes before the manifest says")
        yield num

    def _retried(self, what: str, attempt: Callable[[Callable], T], stop: Stop | None = None) -> T:
        """`attempt(progress)` until it returns. It calls `progress` when bytes came: `retry_seconds` start anew."""
        stop, draw = stop or Stop(), random.Random()  # random, so that ranks do not come back all at once
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
                stop.check()  # a stop may have broken the connection
                if str(fault).startswith("Tunnel connection failed: 4"):  # http.client: a proxy refuses
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
            if wait >= _LOGGED_WAIT:
                log.warning("%s: %s: %s: trying again in %.0f s", self.name, what, cause, wait)
            stop.sleep(wait)
