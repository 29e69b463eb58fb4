"""Row groups on their way to a rank: fetched ahead in threads, one range each, and handed out pack by pack.

The manifest says where a row group lies, so it takes one request; a file's footer takes one more, once for as long as
its row groups are being read. Threads start when there is something to fetch and end when there is not, so an
iterator that is left holds none. At most `num_lanes + prefetch` row groups are in memory (and one more while it is
parsed), and each is given up when its last pack has been handed out.

Rejected: `ParquetFile` over a remote file object (a request for each column chunk), a thread pool of
`concurrent.futures` (at exit it waits for a fetch that may be retrying for minutes).
"""

import heapq
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from packing_udfs import contract
from packing_udfs.fetch import Source, Stop
from packing_udfs.order import Visit
from packing_udfs.shard_file import PARQUET_TAIL

NUM_THREADS = 8  # row groups being fetched at a time by one process: enough to fill a link at 50 ms a request
NUM_FOOTERS = 256  # footers kept by one process, the latest used ones: each is some 100 kB


class Footers:
    """Parquet footers by file, fetched once; safe to use from several threads."""

    def __init__(self, source: Source, stop: Stop):
        self._source, self._stop = source, stop
        self._lock = threading.Lock()
        self._by_file: OrderedDict[str, Future] = OrderedDict()

    def get(self, file: str, offset: int, length: int) -> pq.FileMetaData:
        """The footer of `file`, which starts at `offset`. Raises FetchError or ContractError."""
        with self._lock:
            future = self._by_file.get(file)
            mine = future is None
            if mine:
                future = self._by_file[file] = _Outcome()
                if len(self._by_file) > NUM_FOOTERS:
                    self._by_file.popitem(last=False)
            self._by_file.move_to_end(file)
        if mine:
            with future:
                tail = self._source.read(file, offset, length + PARQUET_TAIL, self._stop)
                future.set_result(parse_footer(file, tail))
        return future.result()


class _Outcome(Future):
    """A future that, used as a context, takes the error of its block and gives it to whoever waits."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace) -> bool:
        if error is not None:
            self.set_exception(error)
        return True


def parse_footer(file: str, tail: bytes) -> pq.FileMetaData:
    """A footer from its bytes and the 8 behind it. Raises ContractError when it is not of a file of packs."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(pa.py_buffer(b"PAR1" + tail)))
    except (pa.ArrowException, OSError) as error:
        raise contract.ContractError(f"{file}: its footer cannot be read: {error}") from error
    version = (metadata.metadata or {}).get(b"packing_contract", b"none").decode()
    if version != str(contract.VERSION):
        raise contract.ContractError(f"{file}: contract version {version}, this code reads {contract.VERSION}")
    if not metadata.schema.to_arrow_schema().equals(contract.PACK_SCHEMA):
        raise contract.ContractError(f"{file}: its columns are not those of the contract")
    return metadata


class _Range:
    """The bytes of one row group as a file of which only they are there."""

    closed = False

    def __init__(self, data: bytes | bytearray, offset: int, size: int):
        self._data, self._offset, self._size, self._at = pa.py_buffer(data), offset, size, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, length: int) -> bytes:
        return self.read_buffer(length).to_pybytes()

    def read_buffer(self, length: int) -> pa.Buffer:
        """Without a copy: what pyarrow calls when it is there."""
        start = self._at - self._offset
        if start < 0 or start + length > self._data.size:
            raise OSError(f"bytes {self._at}–{self._at + length - 1} lie outside the row group")
        self._at += length
        return self._data.slice(start, length)

    def close(self) -> None:
        self.closed = True


def read_table(data: bytes | bytearray, row: dict, metadata: pq.FileMetaData) -> pa.Table:
    """The row group that manifest row `row` describes, from its bytes. Raises ContractError that names it."""
    where = f"{row['file']} row group {row['row_group']}"
    source = _Range(data, row["offset"], row["file_bytes"])
    try:
        file = pq.ParquetFile(source, metadata=metadata, pre_buffer=False, page_checksum_verification=True)
        table = file.read_row_group(row["row_group"], use_threads=False).combine_chunks()
        table.validate()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise contract.ContractError(f"{where}: its bytes are damaged: {error}") from error
    if table.num_rows != row["num_rows"]:
        raise contract.ContractError(f"{where}: {table.num_rows} packs, the manifest says {row['num_rows']}")
    return table


class Packs:
    """The packs of one row group. Token tensors are views of Arrow's memory, which they keep alive: copy what is kept
    for long, or the row group stays in memory."""

    def __init__(self, table: pa.Table, file: str, row_group: int):
        self._file, self._row_group = file, row_group
        self._columns = {name: table[name].chunk(0) for name in table.column_names}
        self._int_lists = {
            name: (torch.from_dlpack(column.values), column.offsets.to_numpy())
            for name, column in self._columns.items()
            if pa.types.is_list(column.type) and pa.types.is_integer(column.type.value_type)
        }

    def __getitem__(self, row: int) -> dict:
        """Pack `row`: int32 and int64 tensors [n] by the contract's names, `image_sizes` int32 [n, 2] as (height,
        width), `sample_sources` and `images` (encoded bytes) as lists, the totals as ints, and where it lies as
        `file`, `row_group`, `row`. Raises ContractError when its parts disagree."""
        pack = {name: values[at[row] : at[row + 1]] for name, (values, at) in self._int_lists.items()}
        sizes = self._columns["image_sizes"][row].values
        pack["image_sizes"] = torch.stack([torch.from_dlpack(sizes.field(name)) for name in ("height", "width")], dim=1)
        pack["sample_sources"] = self._columns["sample_sources"][row].as_py()
        pack["images"] = self._columns["images"][row].values.field("bytes").to_pylist()
        for name in ("num_tokens", "num_label_tokens", "num_images", "vision_cost"):
            pack[name] = self._columns[name][row].as_py()
        pack |= {"file": self._file, "row_group": self._row_group, "row": row}
        _check(pack)
        return pack


def _check(pack: dict) -> None:
    lengths = {
        "input_ids": (len(pack["input_ids"]), pack["num_tokens"]),
        "labels": (len(pack["labels"]), pack["num_tokens"]),
        "sample_lengths": (int(pack["sample_lengths"].sum()), pack["num_tokens"]),
        "sample_num_images": (int(pack["sample_num_images"].sum()), pack["num_images"]),
        "images": (len(pack["images"]), pack["num_images"]),
        "image_sizes": (len(pack["image_sizes"]), pack["num_images"]),
    }
    for name, (found, stated) in lengths.items():
        if found != stated:
            where = f"{pack['file']} row group {pack['row_group']} row {pack['row']}"
            raise contract.ContractError(f"{where}: {name} counts {found}, the pack's total says {stated}")


@dataclass
class _Slot:
    packs: _Outcome
    end: int  # the step after the last that needs it


class Prefetcher:
    """Row groups for the steps to come. Call `advance(step)` for each step in turn, then `pack` as often as needed."""

    def __init__(
        self, source: Source, manifest: pa.Table, visits: Iterable[Iterator[Visit]], num_lanes: int, prefetch: int
    ):
        """`visits`: what each block of lanes needs, as `Order.visits` gives it; `num_lanes` row groups are in use at a
        time and `prefetch` more are fetched ahead."""
        self._source, self._manifest = source, manifest
        self._visits = heapq.merge(*visits)
        self._next = next(self._visits, None)
        self._room = num_lanes + prefetch
        self._slots: dict[int, _Slot] = {}
        self._stop = Stop()
        self._footers = Footers(source, self._stop)
        self._parsing = threading.Lock()  # one at a time: a row group being parsed is in memory twice
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, _Outcome]] = deque()
        self._threads: list[threading.Thread] = []
        self._num_busy = 0

    def advance(self, step: int) -> None:
        """Give up what `step` and later ones do not need, and start fetching as far ahead as there is room."""
        self._slots = {group: slot for group, slot in self._slots.items() if slot.end > step}
        while (visit := self._next) and (visit.step <= step or len(self._slots) < self._room):
            end = visit.step + visit.num_steps
            if slot := self._slots.get(visit.row_group):  # still here from an earlier visit
                slot.end = max(slot.end, end)
            else:
                self._slots[visit.row_group] = _Slot(self._fetch(visit.row_group), end)
            self._next = next(self._visits, None)

    def pack(self, row_group: int, row: int) -> dict:
        """A pack of a row group that the current step needs. Raises FetchError or ContractError."""
        return self._slots[row_group].packs.result()[row]

    def close(self) -> None:
        """End the threads and forget the row groups."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._slots.clear()

    def _fetch(self, row_group: int) -> _Outcome:
        outcome = _Outcome()
        with self._lock:
            self._waiting.append((row_group, outcome))
            if self._num_busy < NUM_THREADS:
                self._num_busy += 1
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                thread = threading.Thread(target=self._work, name=f"fetch {self._source.name}")
                thread.start()
                self._threads.append(thread)
        return outcome

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._stop.is_set():
                    self._num_busy -= 1
                    return
                row_group, outcome = self._waiting.popleft()
            with outcome:
                outcome.set_result(self._load(row_group))

    def _load(self, row_group: int) -> Packs:
        row = self._manifest.slice(row_group, 1).select(_LOCATION).to_pylist()[0]
        footer = self._footers.get(row["file"], row["footer_offset"], row["footer_bytes"])
        data = self._source.read(row["file"], row["offset"], row["bytes"], self._stop)
        with self._parsing:
            return Packs(read_table(data, row, footer), row["file"], row["row_group"])


_LOCATION = ["file", "file_bytes", "footer_offset", "footer_bytes", "row_group", "offset", "bytes", "num_rows"]


def as_padding(pack: dict) -> dict:
    """The pack as padding of an epoch's last step: nothing in it is learned."""
    labels = torch.full_like(pack["labels"], contract.IGNORE_INDEX)
    return {**pack, "labels": labels, "num_label_tokens": 0, "is_padding": True}


def dropped_packs(manifest: pa.Table, row_groups: np.ndarray, rows: np.ndarray) -> list[tuple[str, int, int]]:
    """(file, row group, row) of packs given by the manifest's row numbers and rows in them."""
    files = manifest["file"].take(pa.array(row_groups)).to_pylist()
    groups = manifest["row_group"].take(pa.array(row_groups)).to_pylist()
    return list(zip(files, groups, rows.tolist(), strict=True))
