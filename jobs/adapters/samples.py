"""Rows to samples of `contract.SAMPLE_SCHEMA`: in Spark for the job, in Python for a look at a few rows.

A row that makes no sample (null texts, every turn rated too low) stays in the flow with a `reason` and without images,
so that the ledger counts it.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.adapters.adapter import Adapter
from jobs.adapters.columns import Field
from jobs.adapters.expressions import evaluate, select
from jobs.adapters.kept import kept_of
from jobs.adapters.provenance import FILE, ROW
from packing_udfs.config import Source
from packing_udfs.contract import SAMPLE_SCHEMA
from packing_udfs.shard.outcomes import REPEATED

__all__ = ["PlainSample", "plain_samples", "sample_id", "to_samples"]

_TYPES = from_arrow_schema(SAMPLE_SCHEMA)
_NOTHING: dict[str, Any] = {"messages": None, "images": None, "tools": None}
_SHARED_BYTES = 16 << 10  # of a sample's images, from which on they alone choose the shard
_LOWER_HALF = (1 << 32) - 1
_UPPER_HALF = -1 << 32


class PlainSample(NamedTuple):
    """A sample in Python; a row that makes none has no messages and no images."""

    messages: list[dict] | None
    images: list[dict | None] | None
    reason: str | None
    num_turns_dropped: int
    tools: str | None = None


def plain_samples(rows: Iterable[dict[str, Any]], adapter: Adapter, source: Source) -> list[PlainSample]:
    """A source's rows, as `pyarrow` gives them, as samples. Spark is not asked."""
    expressions = vars(adapter.make(source))
    found = (evaluate(row, expressions) for row in rows)
    return [PlainSample(**made) if made["reason"] is None else PlainSample(**made | _NOTHING) for made in found]


def to_samples(rows: DataFrame, adapter: Adapter, source: Source, kept: tuple[Field, ...] = ()) -> DataFrame:
    """A source's rows, with their provenance and what they keep, as samples. No Python touches a row.

    The number of a row that repeats another tells so (`jobs.sources.hub_rows`). It has the reason `REPEATED`, and its
    images are counted but empty.
    """
    made = select(rows, (FILE, ROW), vars(adapter.make(source)) | {"kept": kept_of(kept)})
    usable, repeats = F.col("reason").isNull(), F.col(ROW) < 0
    samples = made.select(
        F.lit(source.name).alias("source"),
        F.col(FILE).alias("file"),
        F.when(repeats, F.bitwise_not(ROW)).otherwise(F.col(ROW)).alias("row"),
        F.lit(0).alias("copy"),
        F.when(usable & ~repeats, F.col("messages")).cast(_TYPES["messages"].dataType).alias("messages"),
        F.when(usable & ~repeats, F.col("tools")).alias("tools"),
        F.when(usable, F.col("images")).cast(_TYPES["images"].dataType).alias("images"),
        F.when(usable & ~repeats, F.col("kept")).alias("kept"),
        F.when(usable & repeats, REPEATED).otherwise(F.col("reason")).alias("reason"),
        F.col("num_turns_dropped").cast("int").alias("num_turns_dropped"),
    )
    return samples.select(sample_id().alias("sample_id"), *samples.columns)


def sample_id() -> Column:
    """A hash of image bytes (not paths) and messages, so that equal samples meet whatever their paths.

    Its upper half is a hash of the images alone where they have _SHARED_BYTES or more, its lower half one of images and
    messages. Samples of the same images so share a shard and a split, and an edited text stays beside its images
    (`packing_udfs.shard.keep_packs`). Smaller images, such as the placeholders that scraped datasets repeat a million
    times, would make crowded shards. There the whole is a hash of everything, as it is without images.

    Spark's hash skips nulls, so null bytes are hashed as empty and with the number of images. A row that is no sample
    is named by its provenance, or all such rows would share one id and one shard.
    """
    images = F.col("images")
    num_images = F.coalesce(F.size(images), F.lit(0))
    data = F.transform(images, lambda image: F.coalesce(image["bytes"], F.lit(b"")))
    num_bytes = F.aggregate(data, F.lit(0).cast("long"), lambda total, one: total + F.octet_length(one))
    content = F.xxhash64(num_images, data, F.col("messages"), F.col("tools"))
    upper = F.when(num_bytes >= _SHARED_BYTES, F.xxhash64(num_images, data)).otherwise(content)
    halves = upper.bitwiseAND(F.lit(_UPPER_HALF)).bitwiseOR(content.bitwiseAND(F.lit(_LOWER_HALF)))
    return F.when(F.col("reason").isNull(), halves).otherwise(F.xxhash64("source", "file", "row"))
