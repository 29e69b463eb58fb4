"""Reading rows of a source's files in slices: numbered, with the path of their file, in types that Spark has.

These plain types are not large, fixed-size, dictionary or extension types, and no unsigned integers.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features
from pyspark.sql.datasource import DataSourceReader, InputPartition

from jobs.adapters.provenance import FILE, ROW
from jobs.sources.json_values import decoded, decoded_type, has_json
from jobs.sources.repeats import Repeats

__all__ = ["BATCH_ROWS", "RowReader", "Slice", "joined", "plain_schema", "plain_type", "read_parquet"]

READ_BYTES = 32 << 20  # of row groups in one request
BATCH_BYTES = 16 << 20  # of rows in one Arrow batch, about
BATCH_ROWS = 1024


@dataclass
class Slice(InputPartition):
    """Rows of one file: those from `start` on, before `stop` if there is one."""

    file: int
    start: int = 0
    stop: int | None = None


class RowReader(DataSourceReader, ABC):
    """Reads slices of files as Arrow batches. Spark's tasks use it, and the driver without Spark."""

    schema: pa.Schema  # of the columns to read, in plain types
    paths: Sequence[str]  # of the files, as provenance names them
    is_random: bool  # whether rows anywhere in a file can be read without those before
    with_provenance = True
    empties_repeats = False
    said: Collection[str] = ()  # columns that the adapter takes texts from

    @abstractmethod
    def partitions(self) -> list[Slice]:
        """Slices that hold every row once."""

    @abstractmethod
    def tables(self, part: Slice) -> Iterator[pa.Table]:
        """The rows of a slice. Columns may have any type that casts to that in `schema`; absent ones are null."""

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:
        """The rows of a slice. With provenance the columns FILE and ROW follow, the number of a repeat as ~row."""
        row, repeats = partition.start, Repeats() if self.empties_repeats else None
        for table in self.tables(partition):
            try:
                columns = [_column(table, field, field.name in self.said) for field in self.schema]
            except pa.ArrowException as error:
                raise ValueError(
                    f"{self.paths[partition.file]}: its rows from {row} on are not of the types of all files: {error}"
                ) from None
            for batch in pa.Table.from_arrays(columns, schema=self.schema).combine_chunks().to_batches():
                numbers = np.arange(row, row + len(batch))
                row += len(batch)
                if repeats is not None:
                    batch, are_repeats = repeats.empty(batch)
                    numbers = np.where(are_repeats, ~numbers, numbers)
                yield self._with_provenance(batch, partition, numbers) if self.with_provenance else batch

    def _with_provenance(self, batch: pa.RecordBatch, part: Slice, numbers: np.ndarray) -> pa.RecordBatch:
        file = pa.repeat(self.paths[part.file], len(batch))
        names = [*batch.schema.names, FILE, ROW]
        return pa.RecordBatch.from_arrays([*batch.columns, file, pa.array(numbers, pa.int64())], names)


def _column(table: pa.Table, field: pa.Field, is_said: bool) -> pa.ChunkedArray | pa.Array:
    """A table's column in its plain type; null where there is none."""
    if field.name not in table.column_names:
        return pa.nulls(len(table), field.type)
    column = table[field.name]
    if has_json(column.type):
        column = decoded(field.name, column, is_said=is_said)
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column if column.type == field.type else column.cast(field.type)


def read_parquet(file, columns: Sequence[str], part: Slice) -> Iterator[pa.Table]:
    """The rows of a slice of a Parquet file, in those of the columns that it has.

    Adjacent row groups go into one request of up to READ_BYTES, or one row group where that is more. That much is held.
    """
    parquet = pq.ParquetFile(file, pre_buffer=True)
    there = [name for name in columns if name in parquet.schema_arrow.names]
    stop = parquet.metadata.num_rows if part.stop is None else part.stop
    for row_groups, at, num_rows in _requests(parquet.metadata, part.start, stop):
        for batch in parquet.iter_batches(num_rows, row_groups=row_groups, columns=there, use_threads=False):
            first, last = max(0, part.start - at), min(len(batch), stop - at)
            at += len(batch)
            if first < last:
                yield pa.Table.from_batches([batch.slice(first, last - first)])


def _requests(metadata: pq.FileMetaData, start: int, stop: int) -> Iterator[tuple[list[int], int, int]]:
    """Row groups with rows in [start, stop): those to read together, their first row, rows of about BATCH_BYTES."""
    row_groups, num_bytes, num_rows, at = [], 0, 0, 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        is_wanted = at < stop and at + group.num_rows > start
        if row_groups and (not is_wanted or num_bytes + group.total_byte_size > READ_BYTES):
            yield row_groups, at - num_rows, _batch_rows(num_bytes, num_rows)
            row_groups, num_bytes, num_rows = [], 0, 0
        if is_wanted:
            row_groups, num_bytes = [*row_groups, i], num_bytes + group.total_byte_size
            num_rows += group.num_rows
        at += group.num_rows
    if num_rows:
        yield row_groups, at - num_rows, _batch_rows(num_bytes, num_rows)


def _batch_rows(num_bytes: int, num_rows: int) -> int:
    return min(BATCH_ROWS, max(1, BATCH_BYTES * num_rows // max(1, num_bytes)))


_PLAIN = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that Spark has for values of a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type)) for field in kind])
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return _PLAIN.get(kind, kind)


def plain_schema(features: Features, columns: Sequence[str]) -> pa.Schema:
    """The columns in plain types."""
    schema = features.arrow_schema
    return pa.schema([(name, plain_type(decoded_type(name, schema.field(name).type))) for name in columns])


_WIDER = ((pa.int8(), pa.int16(), pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def joined(a: pa.DataType, b: pa.DataType, differ: pa.DataType | None = None) -> Any:
    """The plain type of values of both types; `differ` where there is none.

    null and any is any; integers and floats take the wider type, structs the fields of both.
    """
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    for widths in _WIDER:
        if a in widths and b in widths:
            return max(a, b, key=widths.index)
    if pa.types.is_list(a) and pa.types.is_list(b):
        inner = joined(a.value_type, b.value_type, differ)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        fields = {field.name: field.type for field in a}
        for field in b:
            fields[field.name] = joined(fields.get(field.name, pa.null()), field.type, differ)
        return None if None in fields.values() else pa.struct(list(fields.items()))
    return differ
