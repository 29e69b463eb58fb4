"""What an adapter is: the columns that it needs, and a sample in expressions of them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Self

from jobs.adapters.columns import Columns, Field
from jobs.adapters.expressions import Expression, constant
from packing_udfs.config import Source

__all__ = ["Adapter", "Sample"]


@dataclass(frozen=True, eq=False)
class Sample:
    """A sample in expressions of a row. The types are those of `contract.SAMPLE_SCHEMA`.

    `images`: images, then videos. A video has a placeholder of type `video` in the messages.
    `reason`: why the row makes no sample (one of `contract.REASONS`, or "reason: detail"), or null; then messages and
    images do not count.
    """

    messages: Expression
    images: Expression
    reason: Expression
    num_turns_dropped: Expression = field(default_factory=lambda: constant(0, "int"))
    tools: Expression = field(default_factory=lambda: constant(None, "string"))


class Adapter(ABC):
    """Rows of one kind of dataset to samples; an instance holds the columns of one source."""

    NEEDS: ClassVar[str]  # columns, as an error names them
    USES: ClassVar[tuple[str, ...]]  # names that `sources.N.columns` may give a column for
    videos: tuple[Field, ...]  # columns
    has_images: ClassVar[bool] = True  # whether its samples can have images, or videos, which become images

    @classmethod
    @abstractmethod
    def find(cls, columns: Columns) -> Self | None:
        """The adapter for a source's columns, or None when it cannot use them. Raises ColumnError."""

    @property
    @abstractmethod
    def fields(self) -> tuple[Field, ...]:
        """The columns to read."""

    @abstractmethod
    def make(self, source: Source) -> Sample:
        """The sample that a row makes."""
