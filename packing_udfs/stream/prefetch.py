"""Row groups on their way to a rank: threads fetch them ahead, and the loop takes them pack by pack.

The manifest says where a row group lies, so it takes one request. A file's footer takes one more, for as long as its
row groups are in use. Threads fetch, check the pages' checksums and parse while the loop works. At most `num_lanes +
prefetch` row groups are in memory, each until its last pack is out. Among an epoch's leftovers a row group may be
needed twice, steps apart; then it is fetched twice, since keeping it would take unlimited memory.
"""

import heapq
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress

import pyarrow as pa

from packing_udfs.order import Visit
from packing_udfs.parquet.ranges import read_footer
from packing_udfs.parquet.read import Packs, read_row_group
from packing_udfs.storage import http
from packing_udfs.storage.byte_source import Source, Stop

__all__ = ["Prefetcher"]

NUM_FOOTERS = 256  # the latest footers that a process keeps, some 100 kB each
_LOCATION = ["file", "file_bytes", "footer_offset", "footer_bytes", "row_group", "offset", "bytes", "num_rows"]


class _Threads:
    """Runs calls in `num_threads` threads, first come first served, until `stop`.

    Idle threads check `stop`, so at exit Python waits for a moment only. `concurrent.futures` waits for its threads
    before they can know that the main thread has ended.
    """

    def __init__(self, num_threads: int, name: str, stop: Stop):
        self._queue, self._stop, self._process = queue.SimpleQueue(), stop, os.getpid()
        self.failure: BaseException | None = None  # of the last call that failed
        self._ended = [threading.Event() for _ in range(num_threads)]
        # The same threads all the time: allocators keep memory per thread and lose it when the thread ends.
        self._threads = [threading.Thread(target=self._work, name=name, args=(ended,)) for ended in self._ended]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable, *args) -> Future:
        future = Future()
        self._queue.put((future, call, args))
        return future

    def join(self) -> None:
        """Stop, break the connections that threads wait on, and wait for the threads. Does nothing in a forked process,
        which does not have its parent's threads."""
        if os.getpid() != self._process:
            return
        self._stop.set()
        for _ in self._threads:
            self._queue.put(None)
        if threading.current_thread() in self._threads:  # its garbage collection ends this reader
            return
        # When an exception (a second Ctrl-C) interrupts `Thread.join`, Python 3.11 takes the thread for ended, and ends
        # the interpreter while it still runs.
        for ended in self._ended:
            while not ended.wait(0.1):
                http.interrupt(self._threads)
        for thread in self._threads:
            thread.join()

    def _work(self, ended: threading.Event) -> None:
        try:
            while not self._stop.is_set():
                with suppress(queue.Empty):
                    if self._do(self._queue.get(timeout=0.2)):
                        return
        finally:
            ended.set()

    def _do(self, todo: tuple | None) -> bool:
        """Do a call; True at the end. A method of its own, so that a waiting thread does not keep the result."""
        if todo is None:
            return True
        future, call, args = todo
        try:
            future.set_result(call(*args))
        except BaseException as error:  # noqa: BLE001 - the caller of `result` gets it
            self.failure = error
            future.set_exception(error)
        return False


class Prefetcher:
    """Row groups for the steps to come. Call `advance(step)` for each step in turn, and after it `pack`."""

    def __init__(
        self,
        source: Source,
        manifest: pa.Table,
        visits: Iterable[Iterator[Visit]],
        *,
        num_lanes: int,
        prefetch: int,
        verify: bool = True,
    ):
        """`visits`: what each block of lanes needs, from `Order.visits`; `num_lanes` row groups are in use at a time,
        and `prefetch` more are fetched ahead. `verify`: see `read_row_group`."""
        self._source, self._manifest, self._verify = source, manifest, verify
        self._visits = heapq.merge(*visits)
        self._next = next(self._visits, None)
        self._room = num_lanes + prefetch
        self._slots: dict[int, tuple[Future, int]] = {}  # row group → (its packs, the step that frees it)
        self._footers: dict[str, Future] = {}
        self._stop = Stop()
        self._threads = _Threads(source.num_threads, f"fetch {source.name}", self._stop)

    def advance(self, step: int) -> None:
        """Free what `step` and later steps do not need, and fetch as far ahead as there is room. Raises the FetchError
        or ContractError of any row group that failed, before the loop gets there."""
        self._slots = {group: slot for group, slot in self._slots.items() if slot[1] > step}
        if self._threads.failure:
            raise self._threads.failure
        while (visit := self._next) and (visit.step <= step or len(self._slots) < self._room):
            packs, end = self._slots.get(visit.row_group) or (self._fetch(visit.row_group), 0)
            self._slots[visit.row_group] = packs, max(end, visit.step + visit.num_steps)
            self._next = next(self._visits, None)

    def pack(self, row_group: int, row: int) -> dict:
        """A pack of a row group that the current step needs. Raises FetchError or ContractError."""
        return self._slots[row_group][0].result()[row]

    def close(self) -> None:
        """End the threads and forget the row groups."""
        self._threads.join()
        self._slots.clear()

    def _fetch(self, row_group: int) -> Future:
        row = self._manifest.slice(row_group, 1).select(_LOCATION).to_pylist()[0]
        # A footer is queued before its row groups, so a thread that waits for it waits for a running thread.
        if row["file"] not in self._footers:
            if len(self._footers) == NUM_FOOTERS:
                del self._footers[next(iter(self._footers))]
            self._footers[row["file"]] = self._threads.submit(read_footer, self._source, row, self._stop)
        return self._threads.submit(self._load, row, self._footers[row["file"]])

    def _load(self, row: dict, footer: Future) -> Packs:
        metadata = footer.result()  # first: its request is the one that the Hub redirects to the storage
        data = self._source.view(row["file"], row["offset"], row["bytes"], self._stop)
        return Packs(*read_row_group(data, row, metadata, verify=self._verify), row["file"], row["row_group"])
