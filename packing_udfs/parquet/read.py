"""A row group's bytes as packs: views of that memory, without copies.

A pack is a dict of NumPy arrays and of images as `pyarrow.Buffer`s. The images are the bytes as they were fetched
(`packing_udfs.parquet.image_pages`). Cost for a pack of 4,000 tokens and 400 kB of images: 0.1 ms of a core for
parsing, as much for checksums, 20 µs for the views. Rejected: images as `bytes` or as an Arrow array (copies, half of
all the work), `ParquetFile` over a remote file (a request per column chunk).
"""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract
from packing_udfs.parquet.image_pages import find_images
from packing_udfs.parquet.ranges import RangeFile, column_of

__all__ = ["Packs", "read_row_group"]

_IMAGES = "images.list.element.bytes"
_OTHERS = [leaf for leaf in contract.leaf_paths(contract.PACK_SCHEMA) if leaf != _IMAGES]


def read_row_group(
    data: pa.Buffer, row: dict, metadata: pq.FileMetaData, *, verify: bool = True
) -> tuple[pa.Table, list[pa.Buffer]]:
    """The row group of manifest row `row` from its bytes: its columns, and the bytes of its images one by one, which
    are views of `data` if they are stored plain. `verify`: check the pages' checksums. Raises ContractError."""
    where = f"{row['file']} row group {row['row_group']}"
    source = RangeFile(data, row["offset"], row["file_bytes"])
    chunk = column_of(metadata.row_group(row["row_group"]), _IMAGES)
    try:
        images = find_images(data, row["offset"], chunk, verify=verify)
        # In this thread: one of Arrow's own may release our memory after the interpreter has ended, which aborts.
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
    """The images' bytes from the column that pyarrow has read."""
    column = table["images"].chunk(0).values.field("bytes")
    _, ends, data = column.buffers()
    ends = np.frombuffer(ends, np.int32)[: len(column) + 1].tolist()
    return [data.slice(start, end - start) for start, end in pairwise(ends)]


class Packs:
    """The packs of one row group, as views of its memory. A view keeps all of it: copy what you keep for long."""

    def __init__(self, table: pa.Table, images: list[pa.Buffer], file: str, row_group: int):
        """`table` and `images`: from `read_row_group`. Raises ContractError if parts of a pack disagree."""
        self._where = {"file": file, "row_group": row_group}
        columns = {name: table[name].chunk(0) for name in table.column_names}
        self._lists: dict[str, tuple] = {}  # name -> (values, where each pack's start)
        for name, column in columns.items():
            if pa.types.is_list(column.type):
                self._lists[name] = _values(column.values), column.offsets.to_numpy()
        self._images = images
        self._totals = {name: c.to_pylist() for name, c in columns.items() if not pa.types.is_list(c.type)}
        self._texts = [name for name, c in columns.items() if c.type.equals(pa.list_(pa.string()))]
        self._check()

    def __getitem__(self, row: int) -> dict:
        """Pack `row` by the contract's names: int32 and int64 arrays [n], `image_sizes` int32 [n, 2] (height, width),
        `sample_sources` a list, `images` a list of pyarrow.Buffer (encoded), the totals as ints; and its place as
        `file`, `row_group`, `row`."""
        pack = {name: values[at[row] : at[row + 1]] for name, (values, at) in self._lists.items() if name != "images"}
        for name in self._texts:
            pack[name] = pack[name].tolist()
        start, end = self._lists["images"][1][row : row + 2].tolist()
        pack["images"] = self._images[start:end]
        pack |= {name: values[row] for name, values in self._totals.items()}
        return pack | self._where | {"row": row}

    def _check(self) -> None:
        def total(name: str) -> np.ndarray:
            values, at = self._lists[name]
            return np.diff(np.concatenate([[0], np.cumsum(values)])[at])  # values may be null here

        num = {name: np.diff(at) for name, (_, at) in self._lists.items()}
        tokens, images = (np.array(self._totals[name], float) for name in ("num_tokens", "num_images"))  # null is NaN
        stated = {"token": tokens, "image": images, "sample": num["sample_ids"]}
        pairs = []
        for name, found in num.items():
            level = contract.PACK_COLUMNS[name].level
            pairs.append((f"samples in {name}" if level == "sample" else name, found, stated[level]))
        pairs += [("sample_lengths", total("sample_lengths"), tokens)]
        pairs += [("sample_num_images", total("sample_num_images"), images)]
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
    """All values of a list column: a view for numbers, [n, 2] for sizes, objects for strings, None for images."""
    if values.type.equals(contract.IMAGE_SIZE):
        return np.stack([values.field("height").to_numpy(), values.field("width").to_numpy()], axis=1)
    return None if pa.types.is_struct(values.type) else values.to_numpy(zero_copy_only=False)
