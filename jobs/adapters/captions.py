"""Captions: an image or a video and what it shows, asked for with the same words every time (`sources.N.prompt`).

A list of captions gives its first; a row is one sample, so that rows can be counted.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType

from jobs.adapters.columns import Columns, Field
from jobs.adapters.expressions import column
from jobs.adapters.vqa import make_asked
from packing_udfs.config import Source


@dataclass(frozen=True)
class Captions:
    """The adapter `captions`, for the columns of one source."""

    NEEDS = "image or video, caption (or text, or txt)"
    USES = ("images", "image", "videos", "video", "caption", "text", "txt")

    images: tuple[Field, ...]
    videos: tuple[Field, ...]
    caption: Field

    @classmethod
    def find(cls, columns: Columns) -> "Captions | None":
        images, videos, caption = columns.images(), columns.videos(), columns.find("caption", "text", "txt")
        if not (images or videos) or caption is None:
            return None
        kind = caption.kind.elementType if isinstance(caption.kind, ArrayType) else caption.kind
        return cls(images, videos, caption) if isinstance(kind, StringType) else None

    @property
    def fields(self) -> tuple[Field, ...]:
        return (*self.images, *self.videos, self.caption)

    def make(self, rows: DataFrame, source: Source) -> DataFrame:
        caption = column(self.caption)
        if isinstance(self.caption.kind, ArrayType):
            caption = F.get(F.filter(caption, lambda c: c.isNotNull()), F.lit(0))
        return make_asked(rows, self.images, self.videos, F.lit(source.prompt), caption)
