"""Row groups on their way to a rank: fetched ahead in threads, one range each, and handed out pack by pack.

The manifest says where a row group lies, so it takes one request; a file's footer takes one more, once for as long as
its row groups are being read. Threads fetch, check the pages' checksums and parse while the loop works. At most
`num_lanes + prefetch` row groups are in memory, and each is given up when its last pack has been handed out. Among an
epoch's leftovers, where a row group can be needed twice, steps apart, it is fetched twice: keeping it would be memory
without a bound.

A pack is a dict of views of the row group's memory: NumPy arrays, and images as `pyarrow.Buffer`s of the bytes as they
were fetched (`packing_udfs.parquet.image_pages`), of a local file the kernel's own pages, mostly
(`packing_udfs.storage.mapped`). Costs a pack of 4,000 tokens and 400 kB of images: 0.1 ms of a core for parsing, as
much for checksums, 20 µs for the views. Rejected: images as `bytes` or as an Arrow array (copies, half of all the
work), `ParquetFile` over a remote file object (a request for each column chunk).
"""

import io
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract
from packing_udfs.parquet.image_pages import find_images


def parse_footer(file: str, tail: bytes) -> pq.FileMetaData:
    """A footer from its bytes and the 8 behind it. Raises ContractError when it is not of a file of packs."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + bytes(tail)))
    except (pa.ArrowException, OSError) as error:
        raise contract.ContractError(f"{file}: its footer cannot be read: {error}") from error
    version = (metadata.metadata or {}).get(b"packing_contract", str(contract.VERSION).encode()).decode()
    if version != str(contract.VERSION):  # none is named by files that other writers made of ours
        raise contract.ContractError(f"{file}: contract version {version}, this code reads {contract.VERSION}")
    if not metadata.schema.to_arrow_schema().equals(contract.PACK_SCHEMA):
        raise contract.ContractError(f"{file}: its columns are not those of the contract")
    return metadata


def column_of(row_group: pq.RowGroupMetaData, path: str) -> pq.ColumnChunkMetaData:
    """The column chunk of a leaf."""
    return next(c for c in map(row_group.column, range(row_group.num_columns)) if c.path_in_schema == path)


class RangeFile(io.RawIOBase):
    """Some bytes of a file as a file of which only they are there."""

    def __init__(self, data: pa.Buffer, offset: int, size: int):
        self._data, self._offset, self._size, self._at = data, offset, size, 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read_buffer(self, length: int) -> pa.Buffer:
        """What pyarrow calls in place of `read` when it is there; no copy."""
        start = self._at - self._offset
        if start < 0 or start + length > self._data.size:
            raise OSError(f"bytes {self._at}–{self._at + length - 1} lie outside what was fetched")
        self._at += length
        return self._data.slice(start, length)


_IMAGES = "images.list.element.bytes"


_OTHERS = [leaf for leaf in contract.leaf_paths(contract.PACK_SCHEMA) if leaf != _IMAGES]


def read_row_group(
    data: pa.Buffer, row: dict, metadata: pq.FileMetaData, *, verify: bool = True
) -> tuple[pa.Table, list[pa.Buffer]]:
    """The row group that manifest row `row` describes, from its bytes: its columns without the images' bytes, and
    those one by one, views of `data` where they are stored plain. `verify`: hold pages to their checksums. Raises
    ContractError that names it."""
    where = f"{row['file']} row group {row['row_group']}"
    source = RangeFile(data, row["offset"], row["file_bytes"])
    chunk = column_of(metadata.row_group(row["row_group"]), _IMAGES)
    try:
        images = find_images(data, row["offset"], chunk, verify=verify)
        # All in this thread: one of Arrow's own lets go of our memory when it pleases, which takes an interpreter, and
        # that may have ended.
        file = pq.ParquetFile(source, metadata=metadata, pre_buffer=False, page_checksum_verification=verify)
        columns = None if images is None else _OTHERS
        table = file.read_row_group(row["row_group"], columns, use_threads=False).combine_chunks()
        table.validate()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise contract.ContractError(f"{where}: its bytes are damaged: {error}") from error
    if table.num_rows != row["num_rows"]:
        raise contract.ContractError(f"{where}: {table.num_rows} packs, the manifest says {row['num_rows']}")
    return table, _copied_images(table) if images is None else images


def _copied_images(table: pa.Table) -> list[pa.Buffer]:
    """The same from the column as pyarrow has read it."""
    column = table["images"].chunk(0).values.field("bytes")
    _, ends, data = column.buffers()
    ends = np.frombuffer(ends, np.int32)[: len(column) + 1].tolist()
    return [data.slice(start, end - start) for start, end in pairwise(ends)]


_TOTALS = ("num_tokens", "num_label_tokens", "num_images", "vision_cost")


class Packs:
    """The packs of one row group, as views of its memory, which they keep: copy what is kept for long."""

    def __init__(self, table: pa.Table, images: list[pa.Buffer], file: str, row_group: int):
        """`table` and `images` as `read_row_group` gives them. Raises ContractError when a pack's parts disagree."""
        self._where = {"file": file, "row_group": row_group}
        columns = {name: table[name].chunk(0) for name in table.column_names}
        self._lists: dict[str, tuple] = {}  # name -> (values, where each pack's start)
        for name, column in columns.items():
            if pa.types.is_list(column.type):
                self._lists[name] = _values(column.values), column.offsets.to_numpy()
        self._images = images
        self._totals = {name: columns[name].to_pylist() for name in _TOTALS}
        self._check()

    def __getitem__(self, row: int) -> dict:
        """Pack `row`: int32 and int64 arrays [n] by the contract's names, `image_sizes` int32 [n, 2] as (height,
        width), `sample_sources` as a list, `images` as a list of pyarrow.Buffer (encoded), the totals as ints, and
        where it lies as `file`, `row_group`, `row`."""
        pack = {name: values[at[row] : at[row + 1]] for name, (values, at) in self._lists.items() if name != "images"}
        pack["sample_sources"] = pack["sample_sources"].tolist()
        start, end = self._lists["images"][1][row : row + 2].tolist()
        pack["images"] = self._images[start:end]
        pack |= {name: values[row] for name, values in self._totals.items()}
        return pack | self._where | {"row": row}

    def _check(self) -> None:
        def num(name: str) -> np.ndarray:
            return np.diff(self._lists[name][1])

        def total(name: str) -> np.ndarray:
            values, at = self._lists[name]
            return np.diff(np.concatenate([[0], np.cumsum(values)])[at])

        tokens, images = (np.array(self._totals[name], float) for name in ("num_tokens", "num_images"))  # null is NaN
        pairs = [(name, num(name), tokens) for name in ("input_ids", "labels")]
        pairs += [(name, num(name), images) for name in ("images", "image_sizes", "image_num_tokens")]
        pairs += [("sample_lengths", total("sample_lengths"), tokens)]
        pairs += [("sample_num_images", total("sample_num_images"), images)]
        of_samples = ("sample_lengths", "sample_num_images", "sample_sources")
        pairs += [(f"samples in {name}", num(name), num("sample_ids")) for name in of_samples]
        where = "{file} row group {row_group}".format(**self._where)
        for name, found, stated in pairs:
            if len(wrong := np.flatnonzero(found != stated)):
                row = wrong[0]
                raise contract.ContractError(
                    f"{where} row {row}: {name} counts {found[row]}, the pack's total says {stated[row]:.0f}"
                )
        if len(self._images) != images.sum():
            raise contract.ContractError(
                f"{where}: {len(self._images)} images, the packs' totals say {images.sum():.0f}"
            )


def _values(values: pa.Array) -> np.ndarray | None:
    """What a list column's lists are slices of: a view for numbers, (height, width) for sizes, objects for strings."""
    if values.type.equals(contract.IMAGE_SIZE):
        return np.stack([values.field("height").to_numpy(), values.field("width").to_numpy()], axis=1)
    return None if pa.types.is_struct(values.type) else values.to_numpy(zero_copy_only=False)
