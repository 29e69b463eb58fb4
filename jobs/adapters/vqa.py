"""Visual question answering: an image or a video, `question`, and `answer` or several `answers`.

Of several answers the one that was given most often is trained, the earliest of those that are level: ten people
answer each question of VQAv2 or TextVQA, and what most of them say is what the benchmarks count as right.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructType

from jobs.adapters.columns import Columns, Field, field_of
from jobs.adapters.expressions import asked, column, media
from jobs.adapters.provenance import FILE, ROW
from packing_udfs.config import Source


@dataclass(frozen=True)
class Vqa:
    """The adapter `vqa`, for the columns of one source."""

    NEEDS = "image or video, question, answer (text) or answers (a list of texts)"
    USES = ("images", "image", "videos", "video", "question", "answer", "answers")

    images: tuple[Field, ...]
    videos: tuple[Field, ...]
    question: Field
    answer: Field

    @classmethod
    def find(cls, columns: Columns) -> "Vqa | None":
        images, videos = columns.images(), columns.videos()
        question, answer = columns.find("question"), columns.find("answer", "answers")
        if not (images or videos) or question is None or answer is None:
            return None
        if not isinstance(question.kind, StringType) or _text_of(answer) is None:
            return None
        return cls(images, videos, question, answer)

    @property
    def fields(self) -> tuple[Field, ...]:
        return (*self.images, *self.videos, self.question, self.answer)

    def make(self, rows: DataFrame, source: Source) -> DataFrame:
        answers = column(self.answer)
        answer = most_given(_text_of(self.answer)(answers)) if isinstance(self.answer.kind, ArrayType) else answers
        return make_asked(rows, self.images, self.videos, column(self.question), answer)


def make_asked(
    rows: DataFrame, images: tuple[Field, ...], videos: tuple[Field, ...], question: Column, answer: Column
) -> DataFrame:
    """Samples of one question about a row's images and videos, and its answer."""
    first = rows.select(
        FILE,
        ROW,
        question.alias("question"),
        answer.alias("answer"),
        media(images, null_is_none=bool(videos)).alias("images"),
        media(videos, null_is_none=bool(images)).alias("videos"),
    )
    missing = F.col("question").isNull() | F.coalesce(F.trim("answer") == "", F.lit(True))
    return (
        first.withColumn("reason", F.when(missing, "texts_missing"))
        .withColumn("messages", asked(F.size("images"), F.size("videos"), F.col("question"), F.col("answer")))
        .withColumn("images", F.concat("images", "videos"))
        .withColumn("num_turns_dropped", F.lit(0))
    )


def most_given(answers: Column) -> Column:
    """The text that stands most often in a list, the earliest of those that are level; null for an empty list."""
    answers = F.filter(answers, lambda a: a.isNotNull())

    def ranked(answer: Column) -> Column:
        count = F.size(F.filter(answers, lambda a: a == answer))
        return F.struct(count.alias("count"), (-F.array_position(answers, answer)).alias("first"), answer.alias("text"))

    return F.array_max(F.transform(F.array_distinct(answers), ranked))["text"]


def _text_of(answer: Field):
    """How to get a list of texts from the column of answers; None when it holds no text."""
    kind = answer.kind
    if isinstance(kind, StringType) or (isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType)):
        return lambda answers: answers
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
        inner = field_of(kind.elementType, "answer")
        if inner and isinstance(inner.kind, StringType):
            return lambda answers: F.transform(answers, lambda a: a.getField(inner.path[0]))
    return None
