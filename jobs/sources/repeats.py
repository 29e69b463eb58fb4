"""Rows that repeat an earlier row of the same partition: found while they are read, and emptied of their images.

All copies of a sample meet in one shard, where duplicates are found. A row that a source has a million times would send
all its bytes to one task. A reader has the bytes anyway. It takes a 128-bit hash (XXH3) of each row's content and sends
a repeat without its images and videos, so that one copy of each partition meets the others.

The survivor stays the same: the first by file and row, and a repeat is never the first of its file. The hash alone
decides that rows are equal; what meets in a shard is still compared byte by byte. Cost: some 35 µs for a row of 190 KB,
1 % of the job's processor time, and 100 bytes of memory a row. Rejected: a second exchange by hash (it moves every byte
again); Spark's `dropDuplicates` (the same, and it takes any copy); hashing in the JVM before the exchange (nothing
there looks a hash up partition by partition).
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

__all__ = ["Repeats", "row_hashes"]


class Repeats:
    """Remembers the rows of one partition."""

    def __init__(self):
        self._seen: set[bytes] = set()

    def empty(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        """The batch with b"" for all binary values of rows that repeat an earlier one, and which these are (bool)."""
        repeats = np.zeros(len(batch), bool)
        for i, key in enumerate(row_hashes(batch)):
            repeats[i] = key in self._seen
            self._seen.add(key)
        if repeats.any():
            columns = [_emptied(column, repeats) for column in batch.columns]
            batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        return batch, repeats


def row_hashes(batch: pa.RecordBatch) -> list[bytes]:
    """16 bytes for each row, equal where all values are equal. Null is not empty, and ["ab"] is not ["a", "b"].

    A field `path` beside `bytes` does not count: it says where an image came from.
    """
    pieces = [piece for column in batch.columns for piece in _pieces(column, np.arange(len(batch) + 1))]
    hashes = []
    for i in range(len(batch)):
        digest = xxhash.xxh3_128()
        for data, ends in pieces:
            digest.update(data[ends[i] : ends[i + 1]])
        hashes.append(digest.digest())
    return hashes


def _pieces(array: pa.Array, ends: np.ndarray) -> Iterator[tuple[memoryview, list[int]]]:
    """Buffers that determine an array's values, each with the offsets in bytes of the rows and of the end.

    `ends`: these offsets in elements of `array`. Lists and strings come as lengths and contents, so that the pieces of
    a row tell where each value ends.
    """

    def fixed(values: np.ndarray) -> tuple[memoryview, list[int]]:
        width = values.dtype.itemsize
        return np.ascontiguousarray(values).view(np.uint8).data, (ends * width).tolist()

    kind = array.type
    yield fixed(array.is_valid().to_numpy(zero_copy_only=False))
    if pa.types.is_list(kind):
        offsets = array.offsets.to_numpy()
        yield fixed(np.diff(offsets))
        yield from _pieces(array.values, offsets[ends].astype(np.int64))
    elif pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        for i, name in enumerate(names):
            if name != "path" or "bytes" not in names:
                yield from _pieces(array.field(i), ends)
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        yield fixed(np.diff(offsets))
        yield memoryview(array.buffers()[2] or b""), offsets[ends].tolist()
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        yield fixed(array.fill_null(0).to_numpy(zero_copy_only=False))
    elif pa.types.is_boolean(kind):
        yield fixed(array.fill_null(False).to_numpy(zero_copy_only=False))
    else:  # times, maps, decimals: rare, and small
        parts = [repr(array.slice(a, b - a).to_pylist()).encode() for a, b in pairwise(ends)]
        yield memoryview(b"".join(parts)), np.cumsum([0, *map(len, parts)]).tolist()


def _emptied(array: pa.Array, rows: np.ndarray) -> pa.Array:
    """The array with b"" for the binary values of some elements. Nulls and the lengths of lists stay."""
    kind = array.type
    if pa.types.is_binary(kind):
        wanted = pa.array(rows & array.is_valid().to_numpy(zero_copy_only=False))
        return pc.call_function("if_else", [wanted, pa.scalar(b"", kind), array])
    if pa.types.is_list(kind):
        offsets = array.offsets.to_numpy()
        first, last = offsets[0], offsets[-1]
        values = _emptied(array.values.slice(first, last - first), np.repeat(rows, np.diff(offsets)))
        return pa.ListArray.from_arrays(pa.array(offsets - first), values, type=kind, mask=_mask(array))
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        children = [_emptied(array.field(i), rows) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=_mask(array))
    return array


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
