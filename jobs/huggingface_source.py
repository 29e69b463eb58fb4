"""The `huggingface` Spark data source of pyspark_huggingface 2.1.0, repaired and with provenance.

    spark.dataSource.register(HuggingFace)      # takes over format("huggingface")

Repaired, each with the released version's fault:
- writing to a dataset repository: `list_repo_tree` was called with an argument it never had (every commit failed);
- overwriting split `train` deleted the files of `train_extra` (bare prefix match);
- options such as `path=user/3d-data` or `revision=1.0` were evaluated as Python literals;
- the abort of a failed write tripped over the messages of failed tasks and hid the first error.

Added, for reads: the option `provenance=true` gives two more columns, `_file` (path in the repository) and `_row`
(row in that file), so that a row can be named later. One partition is one file.

The class must be importable in the Python workers: install the project or ship it with --py-files or --archives.
"""

import re
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceWriter
from pyspark.sql.types import LongType, StringType, StructField, StructType
from pyspark_huggingface.huggingface import HuggingFaceDatasets
from pyspark_huggingface.huggingface_sink import HuggingFaceDatasetsWriter, HuggingFaceSink
from pyspark_huggingface.huggingface_source import HuggingFaceDatasetsReader, HuggingFaceSource, Shard

FILE, ROW = "_file", "_row"
PROVENANCE = StructType([StructField(FILE, StringType()), StructField(ROW, LongType())])
_TEXT_OPTIONS = ("path", "data_dir", "split", "revision")


class HuggingFace(HuggingFaceDatasets):
    """The repaired `huggingface` data source."""

    def get_source(self) -> HuggingFaceSource:
        if self.source is None:
            options = dict(self.options)
            self.has_provenance = options.pop("provenance", "false").lower() == "true"
            self.source = HuggingFaceSource(options)
        return self.source

    def get_sink(self) -> HuggingFaceSink:
        if self.sink is None:
            # The sink evaluates every option as a Python literal: a quoted one comes back as the text it was.
            options = {k: repr(v) if k in _TEXT_OPTIONS else v for k, v in self.options.items()}
            self.sink = HuggingFaceSink(options)
        return self.sink

    def schema(self) -> StructType:
        schema = self.get_source().schema()
        return StructType(schema.fields + PROVENANCE.fields) if self.has_provenance else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        source = self.get_source()
        if not self.has_provenance:
            return source.reader(schema)
        return ProvenanceReader(schema, source)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer = self.get_sink().writer(schema, overwrite)
        if type(writer) is HuggingFaceDatasetsWriter:
            writer.__class__ = RepairedWriter
        return writer


class ProvenanceReader(HuggingFaceDatasetsReader):
    """Reads a split's files as the released reader does and numbers their rows."""

    def __init__(self, schema: StructType, source: HuggingFaceSource):
        names = {FILE, ROW}
        released = source.reader(StructType([field for field in schema.fields if field.name not in names]))
        super().__init__(released.schema, released.builder, released.split, released.streaming_dataset)
        self.files = data_files(source.builder, source.split)

    def partitions(self) -> list[Shard]:
        shards = super().partitions()
        assert len(shards) == len(self.files), f"{len(shards)} partitions for {len(self.files)} files"
        return shards

    def read(self, partition: Shard) -> Iterator[pa.RecordBatch]:
        file, row = self.files[partition.index], 0
        for batch in super().read(partition):
            columns = [pa.repeat(file, len(batch)), pa.array(range(row, row + len(batch)), pa.int64())]
            row += len(batch)
            yield pa.RecordBatch.from_arrays(batch.columns + columns, [*batch.schema.names, FILE, ROW])


def data_files(builder, split: str) -> list[str]:
    """The paths in the repository of a split's files, in the order in which they are read."""
    return [re.sub(r"^hf://datasets/[^/]+/[^/]+@[^/]+/", "", str(file)) for file in builder.config.data_files[split]]


class RepairedWriter(HuggingFaceDatasetsWriter):
    """The released writer with its listing and its abort put right."""

    def _list_split(self, api) -> Iterator:
        from huggingface_hub.errors import EntryNotFoundError

        try:
            for entry in api.list_repo_tree(
                self.repo_id, self.data_dir or None, repo_type=self.repo_type, revision=self.revision
            ):
                if entry.path.startswith(f"{self.prefix}-"):
                    yield entry
        except EntryNotFoundError:
            return

    def abort(self, messages) -> None:
        super().abort([message for message in messages if message is not None])
