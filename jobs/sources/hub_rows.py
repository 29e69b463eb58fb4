"""Reading a dataset on the Hub: every kind of file, its rows numbered, each byte about once.

- Parquet is read by pyarrow, the needed columns alone. Rejected: the released way through `datasets`, which cannot
  leave out columns that differ between files and reads ahead.
- A folder of images or videos is its metadata files (`jobs.sources.media_folder`), in slices of SLICE_ROWS rows: a
  folder of a million images has one such file.
- Everything else is read by `datasets`, one file a partition. Rows of a WebDataset are put into Arrow here, by the
  dataset's features. `datasets` takes the types from each row, and stops at the first row without one of its files.
"""

import re
from collections.abc import Iterator
from itertools import islice

import pyarrow as pa
from datasets import ArrowBasedBuilder, DatasetBuilder, Features, IterableDataset
from datasets.packaged_modules.folder_based_builder.folder_based_builder import FolderBasedBuilder
from datasets.packaged_modules.parquet.parquet import Parquet
from datasets.table import table_cast
from huggingface_hub import HfFileSystem
from pyspark_huggingface.huggingface_source import HuggingFaceSource

from jobs.sources.media_folder import METADATA_NAMES, read_folder
from jobs.sources.reading import BATCH_ROWS, RowReader, Slice, plain_schema, read_parquet
from jobs.sources.row_counts import count_rows

__all__ = ["HubReader", "data_files", "features_of", "path_in_repo", "row_files"]

MEDIA_ROWS = 16  # rows in a batch when they have files of unknown size: images or videos
SLICE_ROWS = 512


class HubReader(RowReader):
    """Reads a split's files; with provenance, numbers their rows."""

    def __init__(
        self, source: HuggingFaceSource, columns: list[str], with_provenance: bool = True, empties_repeats: bool = False
    ):
        """`columns`: those to read, as they are spelt in the source.

        `empties_repeats`: a row that repeats an earlier one of its slice comes without its images or videos
        (`jobs.sources.repeats`).
        """
        features = features_of(source)
        self.features = Features({name: features[name] for name in columns})
        self.schema = plain_schema(features, columns)
        self.with_provenance, self.empties_repeats = with_provenance, empties_repeats
        self.files = row_files(source)
        self.paths = [path_in_repo(file) for file in self.files]
        self.is_parquet = isinstance(source.builder, Parquet)
        self.is_folder = isinstance(source.builder, FolderBasedBuilder) and bool(self.files)
        self.is_random = self.is_parquet or self.is_folder
        self._token, self._split = source.token, source.split
        # A task makes its own stream: one that is sent has torch's tensors in it, and workers may have no torch.
        self._builder: DatasetBuilder = source.builder
        self._builder.info.features = features
        self._num_streams = _stream_of(source).num_shards

    def partitions(self) -> list[Slice]:
        if self.is_folder:
            return list(self._slices())
        num = len(self.files) if self.is_parquet else self._num_streams
        assert num == len(self.files) or not self.with_provenance, f"{num} partitions for {len(self.files)} files"
        return [Slice(i) for i in range(num)]

    def _slices(self) -> Iterator[Slice]:
        fs = HfFileSystem(token=self._token)
        for i, file in enumerate(self.files):
            starts = range(0, max(1, count_rows(fs, file)), SLICE_ROWS)
            for start in starts[:-1]:
                yield Slice(i, start, start + SLICE_ROWS)
            yield Slice(i, starts[-1])  # to the end, whatever was counted

    def tables(self, part: Slice) -> Iterator[pa.Table]:
        if self.is_parquet:
            return self._parquet(part)
        if self.is_folder:
            fs = HfFileSystem(token=self._token)
            return read_folder(fs, self.files[part.file], self.features, slice(part.start, part.stop), MEDIA_ROWS)
        stream = self._builder.as_streaming_dataset(self._split)
        assert isinstance(stream, IterableDataset)
        shard = stream.shard(num_shards=self._num_streams, index=part.file).select_columns(self.schema.names)
        if isinstance(self._builder, ArrowBasedBuilder):
            return shard.with_format("arrow").iter(BATCH_ROWS)
        return self._examples(iter(shard.decode(False)), part)

    def _parquet(self, part: Slice) -> Iterator[pa.Table]:
        fs, address = HfFileSystem(token=self._token), self.files[part.file].removeprefix("hf://")
        with fs.open(address, cache_type="none") as file:
            for table in read_parquet(file, self.schema.names, part):
                yield table_cast(table, self.features.arrow_schema)

    def _examples(self, rows: Iterator[dict], part: Slice) -> Iterator[pa.Table]:
        num_read = 0
        while some := list(islice(rows, MEDIA_ROWS)):
            try:
                yield pa.Table.from_pylist(some, self.features.arrow_schema)
            except (pa.ArrowException, TypeError) as error:
                file = self.paths[part.file] if self.paths else "a file"
                raise ValueError(
                    f"{file}: one of the rows {num_read} to {num_read + len(some) - 1} is of other types than the "
                    f"first rows of the dataset: {error}"
                ) from None
            num_read += len(some)


def _stream_of(source: HuggingFaceSource) -> IterableDataset:
    assert isinstance(source.streaming_dataset, IterableDataset)
    return source.streaming_dataset


def features_of(source: HuggingFaceSource) -> Features:
    """The features of a source; opening it has found them."""
    features = _stream_of(source).features
    assert features is not None
    return features


def data_files(source: HuggingFaceSource) -> list[str]:
    """All files of a split, as hf:// addresses."""
    return [str(file) for file in (source.builder.config.data_files or {})[source.split]]


def row_files(source: HuggingFaceSource) -> list[str]:
    """The files whose rows are a split's: of a folder its metadata files, else all of them."""
    files = data_files(source)
    if isinstance(source.builder, FolderBasedBuilder):
        return [file for file in files if file.rpartition("/")[2] in METADATA_NAMES]
    return files


def path_in_repo(address: str) -> str:
    """data/x.parquet of hf://datasets/owner/name@commit/data/x.parquet."""
    return re.sub(r"^hf://datasets/[^/]+/[^/]+@[^/]+/", "", address)
