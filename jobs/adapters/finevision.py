"""FineVision and The Cauldron: `images`, and `texts` of (user, assistant) with ratings of each turn.

The images stand before the first kept question, as in the dataset's own training code. A turn is kept when each
rating that it has is at least its minimum (`sources.N.min_ratings`).
"""

from dataclasses import dataclass
from typing import Self

from jobs.adapters import expressions as E
from jobs.adapters.adapter import Adapter, Sample
from jobs.adapters.columns import Columns, Field, Turns, turns_of
from jobs.adapters.expressions import Expression
from jobs.adapters.parts import exchange, media, pairs, part, placeholders, value
from packing_udfs.config import Source

__all__ = ["FineVision"]

RATINGS = ("relevance", "image_correspondence", "visual_dependency", "formatting")


@dataclass(frozen=True)
class FineVision(Adapter):
    """The adapter `finevision`."""

    NEEDS = "images, texts (a list of {user, assistant})"
    USES = ("images", "image", "texts", *(f"{name}_ratings" for name in RATINGS))

    images: tuple[Field, ...]
    texts: Turns
    ratings: tuple[tuple[str, Field], ...]
    videos: tuple[Field, ...] = ()

    @classmethod
    def find(cls, columns: Columns) -> Self | None:
        images, texts = columns.images(), columns.find("texts")
        turns = turns_of(texts, "user", "assistant") if texts else None
        if not images or turns is None:
            return None
        ratings = ((name, columns.find(f"{name}_ratings")) for name in RATINGS)
        return cls(images, turns, tuple((name, field) for name, field in ratings if field))

    @property
    def fields(self) -> tuple[Field, ...]:
        return (*self.images, *self.texts.fields, *(field for _, field in self.ratings))

    def make(self, source: Source) -> Sample:
        images = E.once(media(self.images, null_is_none=True))
        turns = E.once(pairs(self.texts))
        kept = E.once(turns.filter(lambda _, i: self._passes(source, i)))
        is_missing = turns.any(lambda turn: turn["first"].is_null() | ~E.coalesce(turn["second"].has_words(), False))
        is_missing = (turns.size() == 0) | is_missing
        reason = E.when(is_missing, "texts_missing", E.when(kept.size() == 0, "ratings"))

        def asked(turn: Expression, i: Expression) -> Expression:
            shown = placeholders(E.when(i == 0, images.size(), 0), 0)
            return exchange(E.concat(shown, E.array(part("text", turn["first"]))), turn["second"])

        return Sample(kept.transform(asked).flatten(), images, reason, turns.size() - kept.size())

    def _passes(self, source: Source, i: Expression) -> Expression:
        """Whether turn `i` has no rating below its minimum; an absent rating passes."""
        passes = E.constant(True, "boolean")
        for name, field in self.ratings:
            rating = value(field).get(i)
            passes = passes & E.coalesce(rating >= getattr(source.min_ratings, name), True)
        return passes
