"""Captions: an image or a video and what it shows, asked for with the same words every time (`sources.N.prompt`).

A list of captions gives its first. A row is one sample, so that rows can be counted.
"""

from dataclasses import dataclass
from typing import Self

from pyspark.sql.types import ArrayType, StringType

from jobs.adapters import expressions as E
from jobs.adapters.adapter import Adapter, Sample
from jobs.adapters.columns import Columns, Field, element_of
from jobs.adapters.parts import answered, value
from packing_udfs.config import Source

__all__ = ["Captions"]


@dataclass(frozen=True)
class Captions(Adapter):
    """The adapter `captions`."""

    NEEDS = "image or video, caption (or text, or txt)"
    USES = ("images", "image", "videos", "video", "caption", "text", "txt")

    images: tuple[Field, ...]
    videos: tuple[Field, ...]
    caption: Field

    @classmethod
    def find(cls, columns: Columns) -> Self | None:
        images, videos, caption = columns.images(), columns.videos(), columns.find("caption", "text", "txt")
        if not (images or videos) or caption is None or not isinstance(element_of(caption.kind), StringType):
            return None
        return cls(images, videos, caption)

    @property
    def fields(self) -> tuple[Field, ...]:
        return (*self.images, *self.videos, self.caption)

    def make(self, source: Source) -> Sample:
        caption = value(self.caption)
        if isinstance(self.caption.kind, ArrayType):
            caption = caption.filter(lambda one: ~one.is_null()).get(0)
        return answered(self.images, self.videos, E.constant(source.prompt, "string"), caption)
