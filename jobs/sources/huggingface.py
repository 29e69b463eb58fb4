"""The `huggingface` Spark data source of pyspark_huggingface 2.1.0, repaired and with provenance.

    spark.dataSource.register(HuggingFace)
    spark.read.format(HuggingFace.name())       # "huggingface", which ours takes over from Spark 4.1 on

Repaired, each with the released version's fault:
- reading WebDataset tars, image and video folders: rows were unpacked as (key, row) where they come alone, so that
  columns were named in place of values or the read failed; a folder had one partition whatever it held;
- writing to a dataset repository: `list_repo_tree` was called with an argument it never had (every commit failed);
- overwriting split `train` deleted the files of `train_extra` (bare prefix match);
- options such as `path=user/3d-data` or `revision=1.0` were evaluated as Python literals;
- the abort of a failed write tripped over the messages of failed tasks and hid the first error.

Added, for reads: the option `provenance=true` gives two more columns, `_file` (path in the repository) and `_row`
(row in that file), so that a row can be named later; with it `columns` (a JSON list) reads these columns alone, and
`empty_repeats=true` leaves out the images of rows that repeat an earlier one of their partition: their `_row` is ~row,
which is negative. What reads is `jobs.sources.hub_rows`.

The class must be importable in the Python workers: install the project or ship it with --py-files or --archives.
"""

import json
from collections.abc import Iterator

import pyspark
from pyspark.sql.datasource import DataSourceReader, DataSourceWriter
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType
from pyspark_huggingface.huggingface import HuggingFaceDatasets
from pyspark_huggingface.huggingface_sink import HuggingFaceDatasetsWriter, HuggingFaceSink
from pyspark_huggingface.huggingface_source import HuggingFaceSource

from jobs.adapters.provenance import FILE, ROW
from jobs.sources.hub_rows import RepairedReader, plain_schema

PROVENANCE = StructType([StructField(FILE, StringType()), StructField(ROW, LongType())])
_TEXT_OPTIONS = ("path", "data_dir", "split", "revision")


class HuggingFace(HuggingFaceDatasets):
    """The repaired `huggingface` data source."""

    @classmethod
    def name(cls) -> str:
        """Its format: Spark 4.0 finds the released source by itself and lets none take its name (SPARK-51919)."""
        is_replaceable = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)
        return "huggingface" if is_replaceable else "repaired_huggingface"

    def get_source(self) -> HuggingFaceSource:
        if self.source is None:
            options = dict(self.options)
            self.has_provenance = options.pop("provenance", "false").lower() == "true"
            columns = options.pop("columns", None) if self.has_provenance else None
            self.empties_repeats = self.has_provenance and options.pop("empty_repeats", "false").lower() == "true"
            self.source = HuggingFaceSource(options)
            self.columns = json.loads(columns) if columns else list(self.source.streaming_dataset.features)
        return self.source

    def get_sink(self) -> HuggingFaceSink:
        if self.sink is None:
            # The sink evaluates every option as a Python literal: a quoted one comes back as the text it was.
            options = {k: repr(v) if k in _TEXT_OPTIONS else v for k, v in self.options.items()}
            self.sink = HuggingFaceSink(options)
        return self.sink

    def schema(self) -> StructType:
        features = self.get_source().streaming_dataset.features
        schema = from_arrow_schema(plain_schema(features, self.columns))
        return StructType(schema.fields + PROVENANCE.fields) if self.has_provenance else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        source = self.get_source()
        self.source = None  # Spark sends this object to every task, which has no use for the source's torch tensors
        is_released_sound = not source.streaming or source.streaming_dataset._ex_iterable.iter_arrow
        if is_released_sound and not self.has_provenance:
            return source.reader(schema)
        return RepairedReader(source, self.columns, self.has_provenance, self.empties_repeats)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer = self.get_sink().writer(schema, overwrite)
        if type(writer) is HuggingFaceDatasetsWriter:
            writer.__class__ = RepairedWriter
        return writer


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
