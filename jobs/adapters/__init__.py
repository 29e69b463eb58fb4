"""Rows of a source to samples, in Spark SQL expressions: no Python touches a row before the grouped UDF.

An adapter maps the columns of a kind of dataset to `contract.SAMPLE_SCHEMA`. Rows that make no sample (null texts,
every turn rated too low) stay in the flow with a `reason` and without images, so that the ledger sees them.

    columns.py       finding columns by name and type       finevision.py   FineVision, The Cauldron
    expressions.py   what adapters are made of              messages.py     OpenAI's and ShareGPT's turns; text alone
                                                            vqa.py          question and answer
                                                            captions.py     captions

An adapter is a class with `find` (its columns in a source, or None), `fields` (the columns it reads) and `make` (the
expressions). A video is one of the sample's images, with a placeholder of type `video`, until the UDF takes frames
from it.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from jobs.adapters.captions import Captions
from jobs.adapters.columns import ColumnError, Columns
from jobs.adapters.expressions import SAMPLE
from jobs.adapters.finevision import FineVision
from jobs.adapters.messages import Messages, Text
from jobs.adapters.provenance import FILE, ROW
from jobs.adapters.vqa import Vqa
from packing_udfs.config import Source
from packing_udfs.shard.outcomes import REPEATED

# In the order in which they are tried.
ADAPTERS = {"finevision": FineVision, "messages": Messages, "vqa": Vqa, "captions": Captions, "text": Text}
Adapter = FineVision | Messages | Vqa | Captions | Text
SHARED_BYTES = 16 << 10  # of a sample's images, from which on they alone choose the shard
_LOWER_HALF = (1 << 32) - 1
_UPPER_HALF = -1 << 32

__all__ = ["ADAPTERS", "Adapter", "ColumnError", "choose", "name_of", "to_samples"]


def choose(schema: StructType, source: Source) -> Adapter:
    """The adapter for a source's columns: the one it names, or the first that finds what it needs.

    Raises ColumnError that names the columns found and what is needed.
    """
    columns = Columns(schema, source.columns)
    columns.check_given(tuple(dict.fromkeys(name for kind in ADAPTERS.values() for name in kind.USES)))
    if source.adapter != "auto":
        found = ADAPTERS[source.adapter].find(columns)
        if found is None:
            needs = ADAPTERS[source.adapter].NEEDS
            raise ColumnError(f"the adapter {source.adapter} needs {needs}; the columns are {columns}")
        return found
    for kind in ADAPTERS.values():
        found = kind.find(columns)
        if found:
            return found
    needs = "".join(f"\n  {name}: {kind.NEEDS}" for name, kind in ADAPTERS.items())
    raise ColumnError(
        f"no adapter knows the columns {columns}; name them in `columns`, as in {{caption: txt}}. Adapters need{needs}"
    )


def name_of(adapter: Adapter) -> str:
    """An adapter's name in the configuration."""
    return next(name for name, kind in ADAPTERS.items() if type(adapter) is kind)


def to_samples(rows: DataFrame, adapter: Adapter, source: Source) -> DataFrame:
    """A source's rows, with their provenance, as samples of `contract.SAMPLE_SCHEMA`.

    A row that repeats another is told by its number, see `jobs.sources.hub_rows`; it has the reason `REPEATED` and its
    images are counted, but empty.
    """
    usable, repeats = F.col("reason").isNull(), F.col(ROW) < 0
    made = adapter.make(rows, source).select(
        F.lit(source.name).alias("source"),
        F.col(FILE).alias("file"),
        F.when(repeats, F.bitwise_not(ROW)).otherwise(F.col(ROW)).alias("row"),
        F.lit(0).alias("copy"),
        F.when(usable & ~repeats, F.col("messages")).alias("messages"),
        F.when(usable, F.col("images")).cast(SAMPLE["images"].dataType).alias("images"),
        F.when(usable & repeats, REPEATED).otherwise(F.col("reason")).alias("reason"),
        F.col("num_turns_dropped").cast("int").alias("num_turns_dropped"),
    )
    return made.select(sample_id().alias("sample_id"), *made.columns)


def sample_id() -> Column:
    """A hash of image bytes (not paths) and messages, so that equal samples meet whatever their paths.

    Its upper half is a hash of the images alone where they have SHARED_BYTES or more, and its lower half one of images
    and messages: samples of the same images share a shard and a split, so a text that is edited stays beside its
    images (`packing_udfs.shard.keep_packs`). Smaller images, among them the placeholders that scraped datasets repeat
    a million times, would make crowded shards: there the whole is a hash of everything, as it is without images.

    Spark's hash skips nulls: null bytes are hashed as empty and the number of images with them. A row that is no
    sample is named by its provenance, or all such rows would share one id and one shard.
    """
    images = F.col("images")
    num_images = F.coalesce(F.size(images), F.lit(0))
    data = F.transform(images, lambda image: F.coalesce(image["bytes"], F.lit(b"")))
    num_bytes = F.aggregate(data, F.lit(0).cast("long"), lambda total, one: total + F.octet_length(one))
    content = F.xxhash64(num_images, data, F.col("messages"))
    upper = F.when(num_bytes >= SHARED_BYTES, F.xxhash64(num_images, data)).otherwise(content)
    halves = upper.bitwiseAND(F.lit(_UPPER_HALF)).bitwiseOR(content.bitwiseAND(F.lit(_LOWER_HALF)))
    return F.when(F.col("reason").isNull(), halves).otherwise(F.xxhash64("source", "file", "row"))
