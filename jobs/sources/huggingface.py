"""The Spark data source `huggingface` of pyspark_huggingface 2.1.0, with provenance and more formats to read.

    spark.dataSource.register(HuggingFace)
    spark.read.format(HuggingFace.name()).option("provenance", "true").load("owner/name")

The released source fails to read WebDataset tars and folders of images or videos. This one reads them itself
(`jobs.sources.hub_rows`), as it does whatever is read with provenance. `.schema(…)` with some of the columns and the
two of provenance reads these alone. Options for that:

- `provenance=true` adds two columns: `_file` (path in the repository) and `_row` (row in that file);
- `said`, a JSON list of columns that texts are taken from (`jobs.sources.json_values`);
- `empty_repeats=true`, with provenance: a row that repeats an earlier one of its partition comes without its images.
  Its `_row` is the complement ~row, which is negative.

Python workers must be able to import the class: install the project or ship it with --py-files or --archives.
"""

import json

import pyspark
from datasets import ArrowBasedBuilder
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType
from pyspark_huggingface.huggingface import HuggingFaceDatasets
from pyspark_huggingface.huggingface_source import HuggingFaceSource

from jobs.adapters.provenance import FILE, ROW
from jobs.sources.hub_rows import HubReader, LenientTars, features_of, open_dataset
from jobs.sources.reading import plain_schema

__all__ = ["PROVENANCE", "HuggingFace"]

PROVENANCE = [StructField(FILE, StringType()), StructField(ROW, LongType())]


class HuggingFace(HuggingFaceDatasets):
    """The data source `huggingface` with provenance."""

    @classmethod
    def name(cls) -> str:
        """Its format: Spark 4.0 finds the released source by itself and lets none take its name (SPARK-51919)."""
        is_replaceable = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)
        return "huggingface" if is_replaceable else "repaired_huggingface"

    def get_source(self) -> HuggingFaceSource:
        if self.source is None:
            options = dict(self.options)
            self.has_provenance = options.pop("provenance", "false").lower() == "true"
            self.empties_repeats = self.has_provenance and options.pop("empty_repeats", "false").lower() == "true"
            self.said: list[str] = json.loads(options.pop("said", "[]"))
            self.source = open_dataset(options)
        return self.source

    def schema(self) -> StructType:
        features = features_of(self.get_source())
        schema = from_arrow_schema(plain_schema(features, list(features)))
        return StructType(schema.fields + PROVENANCE) if self.has_provenance else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        source = self.get_source()
        self.source = None  # Spark sends this object to every task, which has no use for the source's torch tensors
        is_plain = not isinstance(source, LenientTars) and not self.has_provenance
        if is_plain and (not source.streaming or isinstance(source.builder, ArrowBasedBuilder)):
            return source.reader(schema)
        wanted = [field for field in schema.fields if field.name not in (FILE, ROW)]
        arrow = to_arrow_schema(StructType(wanted))
        return HubReader(
            source, arrow, with_provenance=self.has_provenance, empties_repeats=self.empties_repeats, said=self.said
        )
