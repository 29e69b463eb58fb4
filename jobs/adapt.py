"""Rows of a source to samples, in Spark SQL expressions: no Python touches a row before the grouped UDF.

An adapter maps the columns of a dataset shape to `contract.SAMPLE_SCHEMA`. Rows that make no sample (null texts,
every turn rated too low) stay in the flow with a `reason` and without images, so that the ledger sees them.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.huggingface_source import FILE, ROW
from packing_udfs.config import Source
from packing_udfs.contract import SAMPLE_SCHEMA

RATINGS = ("relevance", "image_correspondence", "visual_dependency", "formatting")
SAMPLE = from_arrow_schema(SAMPLE_SCHEMA)


def missing_columns(columns: list[str]) -> list[str]:
    """The columns that a FineVision source needs and this one lacks."""
    return [name for name in ("images", "texts") if name not in columns]


def finevision(rows: DataFrame, source: Source) -> DataFrame:
    """FineVision's `images`, `texts` (user, assistant) and ratings to samples of `contract.SAMPLE_SCHEMA`.

    The images stand before the first kept question, as in the dataset's own training code. A turn is kept when
    each rating it has is at least its minimum.
    """
    turns = F.col("texts")
    kept = F.filter(turns, lambda _, i: _passes(rows.columns, source, i))
    reason = (
        F.when(F.coalesce(F.size(turns), F.lit(0)) < 1, "texts_missing")
        .when(F.exists(turns, lambda t: t["user"].isNull() | t["assistant"].isNull()), "texts_missing")
        .when(F.size(kept) < 1, "ratings")
    )
    usable = F.col("reason").isNull()
    num_images = F.coalesce(F.size("images"), F.lit(0))
    base = rows.select(
        F.lit(source.name).alias("source"),
        F.col(FILE).alias("file"),
        F.col(ROW).alias("row"),
        F.lit(0).alias("copy"),
        reason.alias("reason"),
        F.col("images").cast(SAMPLE["images"].dataType).alias("images"),
        kept.alias("kept"),
        (F.coalesce(F.size(turns), F.lit(0)) - F.coalesce(F.size(kept), F.lit(0))).alias("num_turns_dropped"),
    ).select(
        "*",
        F.when(
            usable,
            F.flatten(
                F.transform(
                    "kept",
                    lambda turn, i: F.array(
                        _message(
                            "user",
                            F.concat(
                                F.array_repeat(_part("image", F.lit(None)), F.when(i == 0, num_images).otherwise(0)),
                                F.array(_part("text", turn["user"])),
                            ),
                        ),
                        _message("assistant", F.array(_part("text", turn["assistant"]))),
                    ),
                )
            ),
        )
        .cast(SAMPLE["messages"].dataType)
        .alias("messages"),
    )
    return base.select(
        sample_id().alias("sample_id"),
        "source",
        "file",
        "row",
        "copy",
        "messages",
        F.when(usable, F.col("images")).alias("images"),
        "reason",
        F.col("num_turns_dropped").cast("int"),
    )


def sample_id() -> Column:
    """xxhash64 of image bytes and messages, so that equal samples meet whatever their paths.

    Spark's hash skips nulls: null bytes are hashed as empty and the number of images with them. A row that is no
    sample is named by its provenance, or all such rows would share one id and one shard.
    """
    images = F.col("images")
    content = F.xxhash64(
        F.coalesce(F.size(images), F.lit(0)),
        F.transform(images, lambda image: F.coalesce(image["bytes"], F.lit(b""))),
        F.col("messages"),
    )
    return F.when(F.col("reason").isNull(), content).otherwise(F.xxhash64("source", "file", "row"))


def _passes(columns: list[str], source: Source, i: Column) -> Column:
    """Whether turn `i` has no rating below its minimum; an absent rating passes."""
    passes = F.lit(True)
    for name in RATINGS:
        if f"{name}_ratings" in columns:
            rating = F.get(F.col(f"{name}_ratings"), i)
            passes = passes & F.coalesce(rating >= getattr(source.min_ratings, name), F.lit(True))
    return passes


def _part(kind: str, text: Column) -> Column:
    return F.struct(F.lit(kind).alias("type"), text.cast("string").alias("text"))


def _message(role: str, content: Column) -> Column:
    return F.struct(F.lit(role).alias("role"), content.alias("content"))
