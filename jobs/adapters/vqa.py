"""Visual question answering: an image or a video, `question`, and `answer` or several `answers`.

Of several answers the adapter takes the most frequent one, and the earliest of equals. Ten people answer each question
of VQAv2 and TextVQA, and benchmarks count as right what most of them say. `<image>` and `<video>` in a question are
placeholders; without one, the images stand before it.
"""

from dataclasses import dataclass
from typing import Self

from pyspark.sql.types import ArrayType, StringType

from jobs.adapters import expressions as E
from jobs.adapters.adapter import Adapter, Sample
from jobs.adapters.columns import Columns, Field, element_of, field_of
from jobs.adapters.expressions import Expression
from jobs.adapters.parts import answered, value
from packing_udfs.config import Source

__all__ = ["Vqa"]


@dataclass(frozen=True)
class Vqa(Adapter):
    """The adapter `vqa`."""

    NEEDS = "image or video, question, answer (text) or answers (a list of texts)"
    USES = ("images", "image", "videos", "video", "question", "answer", "answers")

    images: tuple[Field, ...]
    videos: tuple[Field, ...]
    question: Field
    answer: Field

    @classmethod
    def find(cls, columns: Columns) -> Self | None:
        images, videos = columns.images(), columns.videos()
        question, answer = columns.find("question"), columns.find("answer", "answers")
        if not (images or videos) or question is None or answer is None:
            return None
        found = cls(images, videos, question, answer)
        inner = found._answer_of_struct
        kind = inner.kind if inner else element_of(answer.kind)
        return found if isinstance(question.kind, StringType) and isinstance(kind, StringType) else None

    @property
    def fields(self) -> tuple[Field, ...]:
        return (*self.images, *self.videos, self.question, self.answer)

    @property
    def _answer_of_struct(self) -> Field | None:
        """The field `answer` of the structs in a list of answers."""
        return field_of(element_of(self.answer.kind), "answer") if isinstance(self.answer.kind, ArrayType) else None

    def make(self, source: Source) -> Sample:
        answer, inner = value(self.answer), self._answer_of_struct
        if inner:
            answer = answer.transform(lambda one: one[inner.name])
        if isinstance(self.answer.kind, ArrayType):
            answer = _most_given(answer)
        return answered(self.images, self.videos, value(self.question), answer)


def _most_given(answers: Expression) -> Expression:
    """The text that stands most often in a list, the earliest of equals; null for an empty list."""
    given = E.once(answers.filter(lambda answer: ~answer.is_null()))
    counts = E.once(given.transform(lambda one: given.filter(lambda other: other == one).size()))
    return given.get(counts.index_of(counts.max()))
