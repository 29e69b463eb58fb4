"""Reading a dataset on the Hub: every kind of file, its rows numbered, each byte about once.

- Parquet is read by pyarrow, the needed columns alone. Rejected: the released way through `datasets`, which cannot
  leave out columns that differ between files and reads ahead.
- A folder of images or videos is its metadata files (`jobs.sources.media_folder`), in slices of SLICE_ROWS rows: a
  folder of a million images has one such file.
- Everything else is read by `datasets`, one file a partition. Rows of a WebDataset are put into Arrow here, by the
  dataset's features. `datasets` takes the types from each row, and stops at the first row without one of its files.
"""

import re
import tarfile
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from itertools import islice
from pickle import UnpicklingError
from typing import Any, BinaryIO, cast

import pyarrow as pa
from datasets import (
    ArrowBasedBuilder,
    DatasetBuilder,
    Features,
    Image,
    IterableDataset,
    List,
    Video,
    load_dataset_builder,
)
from datasets.packaged_modules import _ALL_ALLOWED_EXTENSIONS, _EXTENSION_TO_MODULE, _MODULE_TO_EXTENSIONS
from datasets.packaged_modules.folder_based_builder.folder_based_builder import FolderBasedBuilder
from datasets.packaged_modules.parquet.parquet import Parquet
from datasets.packaged_modules.webdataset.webdataset import WebDataset
from huggingface_hub import HfFileSystem, get_token
from pyspark.sql.datasource import DataSource
from pyspark_huggingface.huggingface_source import HuggingFaceSource

from jobs.output.retries import one_line
from jobs.sources.media_folder import METADATA_NAMES, read_folder
from jobs.sources.reading import BATCH_ROWS, RowReader, Slice, joined, read_parquet
from jobs.sources.row_counts import count_rows

__all__ = ["HubReader", "LenientTars", "data_files", "features_of", "open_dataset", "path_in_repo", "row_files"]

# `datasets` reads any compressed tar and knows .tar.gz by its name. Its tables are the only place to name another.
_EXTENSION_TO_MODULE.setdefault(".tgz", ("webdataset", {}))
for _extensions in (_MODULE_TO_EXTENSIONS["webdataset"], _ALL_ALLOWED_EXTENSIONS):
    if ".tgz" not in _extensions:
        _extensions.append(".tgz")

MEDIA_ROWS = 16  # rows in a batch when they have files of unknown size: images or videos
SLICE_ROWS = 512
NUM_FIRST = 16  # samples of a tar that tell its types
# What `datasets` raises for a member whose content is not what its name says; the network raises OSError.
_UNDECODABLE = (ValueError, TypeError, LookupError, EOFError, UnpicklingError, tarfile.TarError)


class HubReader(RowReader):
    """Reads a split's files; with provenance, numbers their rows."""

    def __init__(
        self,
        source: HuggingFaceSource,
        schema: pa.Schema,
        *,
        with_provenance: bool = True,
        empties_repeats: bool = False,
        said: Sequence[str] = (),
    ):
        """`schema`: the columns to read, as they are spelt in the source, in plain types; `said`: see `RowReader`.

        `empties_repeats`: a row that repeats an earlier one of its slice comes without its images or videos
        (`jobs.sources.repeats`).
        """
        features = features_of(source)
        self.features = Features(
            {name: _wanted(features[name], schema.field(name).type) for name in schema.names if name in features}
        )
        self.schema = schema
        self.with_provenance, self.empties_repeats, self.said = with_provenance, empties_repeats, said
        self.files = row_files(source)
        self.paths = [path_in_repo(file) for file in self.files]
        self.is_parquet = isinstance(source.builder, Parquet)
        self.is_folder = isinstance(source.builder, FolderBasedBuilder) and bool(self.files)
        self.is_random = self.is_parquet or self.is_folder
        self._token, self._split = source.token, source.split
        # A task makes its own stream: one that is sent has torch's tensors in it, and workers may have no torch.
        self._builder: DatasetBuilder = source.builder
        # Of generated rows, fields that are not read may have any type; tables are cast as a whole.
        is_generated = not isinstance(self._builder, ArrowBasedBuilder) and not self.is_folder
        self._builder.info.features = self.features if is_generated else features
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
            yield from read_parquet(file, self.schema.names, part)

    def _examples(self, rows: Iterator[dict], part: Slice) -> Iterator[pa.Table]:
        num_read = 0
        while True:
            place = f"{self.paths[part.file] if self.paths else 'a file'}: one of the rows from {num_read} on"
            try:
                some = list(islice(rows, MEDIA_ROWS))
            except _UNDECODABLE as error:
                raise ValueError(f"{place} has a file that cannot be decoded: {one_line(error)}") from None
            if not some:
                return
            try:
                yield pa.Table.from_pylist(some, self.features.arrow_schema)
            except (pa.ArrowException, TypeError) as error:
                raise ValueError(f"{place} is of other types than the first rows of the dataset: {error}") from None
            num_read += len(some)


def _wanted(feature: Any, kind: pa.DataType) -> Any:
    """A feature without the fields of structs that are not read; their types may differ from row to row."""
    if isinstance(feature, dict) and pa.types.is_struct(kind):
        there = {field.name: field.type for field in kind}
        return {name: _wanted(inner, there[name]) for name, inner in feature.items() if name in there}
    if isinstance(feature, List) and pa.types.is_list(kind):
        return List(_wanted(feature.feature, kind.value_type), length=feature.length)
    return feature


def open_dataset(options: dict[str, str]) -> HuggingFaceSource:
    """A split of a dataset. `options`: path, split, revision and config."""
    try:
        return HuggingFaceSource(options)
    except (pa.ArrowException, ValueError):
        split = options.get("split", "train")
        builder = load_dataset_builder(options["path"], options.get("config"), revision=options.get("revision"))
        files = (builder.config.data_files or {}).get(split)
        if not isinstance(builder, WebDataset) or not files:
            raise
        builder.info.features = _features_of_tar(str(files[0]))
        return LenientTars(options, builder, split)


class LenientTars(HuggingFaceSource):
    """A split of WebDataset tars, opened whatever its first samples differ in.

    `datasets` takes the types of a dataset from its first five samples, and stops where these differ in a JSON field
    or lack a file. Here the types that agree are taken, and a field whose types do not agree is void.
    """

    def __init__(self, options: dict[str, str], builder: DatasetBuilder, split: str):
        DataSource.__init__(self, options)
        self.builder, self.split, self.token, self.streaming = builder, split, get_token(), True
        self.streaming_dataset = builder.as_streaming_dataset(split)


def _features_of_tar(address: str) -> Features:
    """The features of the first samples of a tar, of each field where they agree."""
    path = address.removeprefix("hf://")
    with HfFileSystem().open(path, "rb") as file, tarfile.open(fileobj=cast(BinaryIO, file), mode="r|*") as tar:
        members = ((member.name, tar.extractfile(member)) for member in tar if member.isfile())
        first = list(islice(WebDataset._get_pipeline_from_tar(address, members), NUM_FIRST))
    kinds: dict[str, pa.DataType] = {}
    for sample in first:
        for name, value in sample.items():
            kinds[name] = joined(kinds.get(name, pa.null()), _type_of(value), differ=_MIXED)
    features = Features.from_arrow_schema(pa.schema([(name, _without_mixed(kind)) for name, kind in kinds.items()]))
    for name in features:
        extension = name.rpartition(".")[2].lower()
        if extension in WebDataset.IMAGE_EXTENSIONS:
            features[name] = Image()
        elif extension in WebDataset.VIDEO_EXTENSIONS:
            features[name] = Video()
    return features


_MIXED = pa.month_day_nano_interval()  # stands for types that do not agree; no JSON has values of it


def _type_of(value: Any) -> pa.DataType:
    if isinstance(value, dict):
        return pa.struct([(name, _type_of(inner)) for name, inner in value.items()])
    if isinstance(value, list):
        return pa.list_(reduce(partial(joined, differ=_MIXED), map(_type_of, value), pa.null()))
    return pa.array([value]).type


def _without_mixed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_mixed(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_mixed(kind.value_type))
    return pa.null() if kind == _MIXED else kind


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
