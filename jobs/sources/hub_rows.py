"""What the repaired `huggingface` source reads with: every kind of file, its rows numbered, each byte about once.

- Parquet is read by pyarrow, the columns asked for alone, adjacent row groups in one request of up to READ_BYTES or
  one row group, whichever is more: that much is held. Rejected: the released way through `datasets`, which cannot
  leave out columns that differ between files and reads ahead.
- A folder of images or videos is its metadata files (`jobs.sources.media_folder`), in slices of SLICE_ROWS rows: a
  folder of a million images has one such file.
- Everything else is read by `datasets`, one file a partition. Rows of a WebDataset are put into Arrow here, by the
  dataset's features: `datasets` takes the types from each row, and stops at the first without one of its files.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features
from datasets.packaged_modules.folder_based_builder.folder_based_builder import FolderBasedBuilder
from datasets.packaged_modules.parquet.parquet import Parquet
from datasets.table import table_cast
from huggingface_hub import HfFileSystem
from pyspark.sql.datasource import DataSourceReader, InputPartition

from jobs.adapters.provenance import FILE, ROW
from jobs.sources.media_folder import METADATA_NAMES, read_folder
from jobs.sources.repeats import Repeats
from jobs.sources.row_counts import count_rows

READ_BYTES = 32 << 20  # of row groups in one request
BATCH_BYTES = 16 << 20  # of rows in one Arrow batch, about
BATCH_ROWS = 1024
MEDIA_ROWS = 16  # rows in a batch when they have files of unknown size: images or videos
SLICE_ROWS = 512


@dataclass
class Slice(InputPartition):
    """Rows of one file: those from `start` on, before `stop` if there is one."""

    file: int
    start: int = 0
    stop: int | None = None


class RepairedReader(DataSourceReader):
    """Reads a split's files; with provenance, numbers their rows."""

    def __init__(self, source, columns: list[str], with_provenance: bool, empties_repeats: bool = False):
        """`source`: a HuggingFaceSource; `columns`: the columns to read, as they are spelt there.

        `empties_repeats`: a row that repeats an earlier one of its partition comes without its images or videos
        (`jobs.sources.repeats`), and with the complement of its number, ~row, which is negative.
        """
        self.empties_repeats = empties_repeats
        self.columns = columns
        self.with_provenance = with_provenance
        self.token = source.token
        features = source.streaming_dataset.features
        self.features = Features({name: features[name] for name in columns})
        self.files = row_files(source)
        self.is_parquet = isinstance(source.builder, Parquet)
        self.is_folder = isinstance(source.builder, FolderBasedBuilder) and bool(self.files)
        self.dataset = None if self.is_parquet or self.is_folder else source.streaming_dataset
        if self.dataset is not None:
            self.dataset._epoch = 0  # where torch is installed it is a tensor, and workers may have no torch

    def partitions(self) -> Sequence[Slice]:
        if self.is_folder:
            return list(self._slices())
        num = len(self.files) if self.is_parquet else self.dataset.num_shards
        assert num == len(self.files) or not self.with_provenance, f"{num} partitions for {len(self.files)} files"
        return [Slice(i) for i in range(num)]

    def _slices(self) -> Iterator[Slice]:
        fs = HfFileSystem(token=self.token)
        for i, file in enumerate(self.files):
            starts = range(0, max(1, count_rows(fs, file)), SLICE_ROWS)
            for start in starts[:-1]:
                yield Slice(i, start, start + SLICE_ROWS)
            yield Slice(i, starts[-1])  # to the end, whatever was counted

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:
        schema, row = plain_schema(self.features, self.columns), partition.start
        path = path_in_repo(self.files[partition.file]) if self.with_provenance else ""
        repeats = Repeats() if self.empties_repeats else None
        for table in self._tables(partition):
            plain = pa.Table.from_arrays([_plain_column(table[f.name], f.type) for f in schema], schema=schema)
            for batch in plain.combine_chunks().to_batches():
                if self.with_provenance:
                    numbers = np.arange(row, row + len(batch))
                    if repeats is not None:
                        batch, are_repeats = repeats.empty(batch)
                        numbers = np.where(are_repeats, ~numbers, numbers)
                    numbers = pa.array(numbers, pa.int64())
                    names = [*batch.schema.names, FILE, ROW]
                    yield pa.RecordBatch.from_arrays([*batch.columns, pa.repeat(path, len(batch)), numbers], names)
                else:
                    yield batch
                row += len(batch)

    def _tables(self, partition: Slice) -> Iterator[pa.Table]:
        if self.is_parquet:
            return self._parquet(partition)
        if self.is_folder:
            file = self.files[partition.file]
            fs = HfFileSystem(token=self.token)
            return read_folder(fs, file, self.features, slice(partition.start, partition.stop), MEDIA_ROWS)
        shard = self.dataset.shard(num_shards=self.dataset.num_shards, index=partition.file)
        if shard._ex_iterable.iter_arrow:
            return shard.select_columns(self.columns).with_format("arrow").iter(BATCH_ROWS)
        return self._examples(iter(shard.select_columns(self.columns).decode(False)), partition)

    def _parquet(self, partition: Slice) -> Iterator[pa.Table]:
        fs, address = HfFileSystem(token=self.token), self.files[partition.file].removeprefix("hf://")
        with fs.open(address, cache_type="none") as file:
            parquet = pq.ParquetFile(file, pre_buffer=True)
            columns = [name for name in self.columns if name in parquet.schema_arrow.names]
            stop = parquet.metadata.num_rows if partition.stop is None else partition.stop
            for row_groups, at, num_rows in _reads(parquet.metadata, partition.start, stop):
                for batch in parquet.iter_batches(num_rows, row_groups=row_groups, columns=columns, use_threads=False):
                    first, last = max(0, partition.start - at), min(len(batch), stop - at)
                    at += len(batch)
                    if first < last:
                        table = pa.Table.from_batches([batch.slice(first, last - first)])
                        yield table_cast(table, self.features.arrow_schema)

    def _examples(self, rows: Iterator[dict], partition: Slice) -> Iterator[pa.Table]:
        num_read = 0
        while some := list(islice(rows, MEDIA_ROWS)):
            try:
                yield pa.Table.from_pylist(some, self.features.arrow_schema)
            except (pa.ArrowException, TypeError) as error:
                file = self.files[partition.file] if self.files else "a file"
                raise ValueError(
                    f"{path_in_repo(file)}: one of the rows {num_read} to {num_read + len(some) - 1} is of other types "
                    f"than the first rows of the dataset: {error}"
                ) from None
            num_read += len(some)


def row_files(source) -> list[str]:
    """The files whose rows are a split's, as hf:// addresses: of a folder its metadata files, else all of them."""
    files = [str(file) for file in source.builder.config.data_files[source.split]]
    if isinstance(source.builder, FolderBasedBuilder):
        return [file for file in files if file.rpartition("/")[2] in METADATA_NAMES]
    return files


def path_in_repo(address: str) -> str:
    """data/x.parquet of hf://datasets/owner/name@commit/data/x.parquet."""
    return re.sub(r"^hf://datasets/[^/]+/[^/]+@[^/]+/", "", address)


def _reads(metadata: pq.FileMetaData, start: int, stop: int) -> Iterator[tuple[list[int], int, int]]:
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


def plain_schema(features: Features, columns: Sequence[str]) -> pa.Schema:
    """The columns in types that Spark has: no large, fixed-size, dictionary or extension types."""
    schema = features.arrow_schema
    return pa.schema([(name, plain_type(schema.field(name).type)) for name in columns])


_PLAIN = {
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def plain_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(i).name, plain_type(kind.field(i).type)) for i in range(kind.num_fields)])
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return _PLAIN.get(kind, kind)


def _plain_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column if column.type == kind else column.cast(kind)
