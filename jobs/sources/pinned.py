"""A source at one state of its files: what the job reads, counts and records of it, wherever the files are."""

from dataclasses import dataclass

from pyspark.sql.types import StructType

from jobs import adapters
from packing_udfs.config import Source


class SourceError(ValueError):
    """A source that cannot be read; the message names the field, the value and what exists."""


@dataclass(frozen=True)
class SourceFile:
    """A file of a source: its path in the repository or folder, size in bytes and number of rows.

    Of a folder of images or videos these are the files with metadata; the first has the size of all files.
    """

    path: str
    num_bytes: int
    num_rows: int


@dataclass(frozen=True)
class PinnedSource:
    """A source at one commit; `commit` of a folder is the fingerprint of its listing."""

    source: Source
    commit: str
    files: tuple[SourceFile, ...]
    adapter: adapters.Adapter
    licenses: tuple[str, ...] = ()  # as its card has them
    schema: StructType | None = None  # the columns of a folder

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.files)

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def num_sampled_bytes(self) -> int:
        """Bytes that the limit and the weight leave or make, about."""
        share = min(1.0, self.source.limit / max(1, self.num_rows)) if self.source.limit else 1.0
        return round(self.num_bytes * share * self.source.weight)

    @property
    def has_videos(self) -> bool:
        return bool(getattr(self.adapter, "videos", ()))

    @property
    def columns(self) -> list[str]:
        """The columns that the adapter reads, as they are spelt in the source."""
        return list(dict.fromkeys(field.path[0] for field in self.adapter.fields))
