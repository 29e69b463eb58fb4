"""Row groups on their way to a rank: fetched ahead in threads, one range each."""

import heapq
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs.order import Visit
from packing_udfs.parquet.read import Packs, parse_footer, read_row_group
from packing_udfs.parquet.write import PARQUET_TAIL
from packing_udfs.storage import http
from packing_udfs.storage.byte_source import Source, Stop

NUM_FOOTERS = 256  # footers kept by one process, the latest: each is some 100 kB


class _Threads:
    """Runs calls in `num_threads` threads, first come first served, until `stop`.

    Threads look for `stop` while they have nothing to do, so at exit Python waits for no more than a moment;
    `concurrent.futures` waits for its threads before it is known that the main thread has ended.
    """

    def __init__(self, num_threads: int, name: str, stop: Stop):
        self._queue, self._stop, self._process = queue.SimpleQueue(), stop, os.getpid()
        self.failure: BaseException | None = None  # of the call that failed last
        self._ended = [threading.Event() for _ in range(num_threads)]
        # The same threads for as long as they are needed: allocators keep memory by thread, and lose it with one.
        self._threads = [threading.Thread(target=self._work, name=name, args=(ended,)) for ended in self._ended]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable, *args) -> Future:
        future = Future()
        self._queue.put((future, call, args))
        return future

    def join(self) -> None:
        """Stop, break the connections that are waited on, and wait for what else is being done. Nothing in a forked
        process, which has no threads of its parent."""
        if os.getpid() != self._process:
            return
        self._stop.set()
        for _ in self._threads:
            self._queue.put(None)
        if threading.current_thread() in self._threads:  # it collects garbage, among it this reader
            return
        # Python 3.11 takes a thread for ended whose `join` an exception (a second Ctrl-C) interrupts, and then ends the
        # interpreter while it runs.
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
        """Do it; whether that was the end. A function, so that nothing keeps the result while the thread waits."""
        if todo is None:
            return True
        future, call, args = todo
        try:
            future.set_result(call(*args))
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            self.failure = error
            future.set_exception(error)
        return False


class Prefetcher:
    """Row groups for the steps to come. Call `advance(step)` for each step in turn, then `pack` as often as needed."""

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
        """`visits`: what each block of lanes needs, as `Order.visits` gives it; `num_lanes` row groups are in use at a
        time and `prefetch` more are fetched ahead. `verify` as in `read_row_group`."""
        self._source, self._manifest, self._verify = source, manifest, verify
        self._visits = heapq.merge(*visits)
        self._next = next(self._visits, None)
        self._room = num_lanes + prefetch
        self._slots: dict[int, tuple[Future, int]] = {}  # row group -> (its packs, the step after the last for them)
        self._footers: dict[str, Future] = {}
        self._stop = Stop()
        self._threads = _Threads(source.num_threads, f"fetch {source.name}", self._stop)

    def advance(self, step: int) -> None:
        """Give up what `step` and later ones do not need, and start fetching as far ahead as there is room. Raises
        FetchError or ContractError of any row group that failed, so that the loop knows before it gets there."""
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
        # Footers go first into a queue that is worked off in order, so who waits for one waits for a running thread.
        if row["file"] not in self._footers:
            if len(self._footers) == NUM_FOOTERS:
                del self._footers[next(iter(self._footers))]
            self._footers[row["file"]] = self._threads.submit(self._footer, row)
        return self._threads.submit(self._load, row, self._footers[row["file"]])

    def _footer(self, row: dict) -> pq.FileMetaData:
        length = row["footer_bytes"] + PARQUET_TAIL
        return parse_footer(row["file"], self._source.read(row["file"], row["footer_offset"], length, self._stop))

    def _load(self, row: dict, footer: Future) -> Packs:
        metadata = footer.result()  # first: its request is the one that is led to where the file is stored
        data = self._source.view(row["file"], row["offset"], row["bytes"], self._stop)
        return Packs(*read_row_group(data, row, metadata, verify=self._verify), row["file"], row["row_group"])


_LOCATION = ["file", "file_bytes", "footer_offset", "footer_bytes", "row_group", "offset", "bytes", "num_rows"]
