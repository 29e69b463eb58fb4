"""FineVision and The Cauldron: `images`, and `texts` of (user, assistant) with ratings of each turn.

The images stand before the first kept question, as in the dataset's own training code. A turn is kept when each
rating it has is at least its minimum.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.adapters.columns import Columns, Field, Turns, turns_of
from jobs.adapters.expressions import MESSAGES, any_null, asked, column, media, pairs
from jobs.adapters.provenance import FILE, ROW
from packing_udfs.config import Source

RATINGS = ("relevance", "image_correspondence", "visual_dependency", "formatting")


@dataclass(frozen=True)
class FineVision:
    """The adapter `finevision`, for the columns of one source."""

    NEEDS = "images, texts (a list of {user, assistant})"
    USES = ("images", "image", "texts", *(f"{name}_ratings" for name in RATINGS))

    images: tuple[Field, ...]
    texts: Turns
    ratings: tuple[tuple[str, Field], ...]

    @classmethod
    def find(cls, columns: Columns) -> "FineVision | None":
        images, texts = columns.images(), columns.find("texts")
        turns = texts and turns_of(texts, "user", "assistant")
        if not images or turns is None:
            return None
        ratings = ((name, columns.find(f"{name}_ratings")) for name in RATINGS)
        return cls(images, turns, tuple((name, field) for name, field in ratings if field))

    @property
    def fields(self) -> tuple[Field, ...]:
        return (*self.images, self.texts.field, *(field for _, field in self.ratings))

    def make(self, rows: DataFrame, source: Source) -> DataFrame:
        turns = F.col("turns")
        num_turns = F.coalesce(F.size("turns"), F.lit(0))
        reason = (
            F.when(num_turns < 1, "texts_missing")
            .when(any_null(turns, lambda t: t["a"].isNull() | t["b"].isNull()), "texts_missing")
            .when(F.size("kept") < 1, "ratings")
        )
        first = rows.select(
            FILE,
            ROW,
            media(self.images, null_is_none=True).alias("images"),
            pairs(self.texts).alias("turns"),
            *(column(field).alias(name) for name, field in self.ratings),
        )
        return (
            first.withColumn("kept", F.filter(turns, lambda _, i: self._passes(source, i)))
            .withColumn("reason", reason)
            .withColumn("messages", F.flatten(F.transform("kept", _asked)).cast(MESSAGES))
            .withColumn("num_turns_dropped", num_turns - F.coalesce(F.size("kept"), F.lit(0)))
        )

    def _passes(self, source: Source, i: Column) -> Column:
        """Whether turn `i` has no rating below its minimum; an absent rating passes."""
        passes = F.lit(True)
        for name, _ in self.ratings:
            rating = F.get(F.col(name), i)
            passes = passes & F.coalesce(rating >= getattr(source.min_ratings, name), F.lit(True))
        return passes


def _asked(turn: Column, i: Column) -> Column:
    num_images = F.when(i == 0, F.size("images")).otherwise(0)
    return asked(num_images, F.lit(0), turn["a"], turn["b"])
