"""A source at one state of its files: what the job reads, counts and records of it, wherever the files are."""

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.types import StructType

from jobs import adapters
from packing_udfs.config import Source

__all__ = ["PinnedSource", "SourceError", "SourceFile", "find_adapter", "lacks"]


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
    """A source at one commit. `commit` of a folder is the fingerprint of its listing."""

    source: Source
    commit: str
    files: tuple[SourceFile, ...]
    adapter: adapters.Adapter
    licenses: tuple[str, ...] = ()  # as its card has them
    unused: tuple[str, ...] = ()  # columns and fields of turns that the adapter does not use
    schema: StructType | None = None  # the columns of a folder

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.files)

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def num_sampled_bytes(self) -> int:
        """About how many bytes the limit and the weight leave or make."""
        share = min(1.0, self.source.limit / max(1, self.num_rows)) if self.source.limit else 1.0
        return round(self.num_bytes * share * self.source.weight)

    @property
    def has_videos(self) -> bool:
        return bool(self.adapter.videos)

    @property
    def columns(self) -> list[str]:
        """The columns that the adapter reads, as they are spelt in the source."""
        return list(dict.fromkeys(field.path[0] for field in self.adapter.fields))


def find_adapter(schema: StructType, source: Source, field: str) -> tuple[adapters.Adapter, tuple[str, ...]]:
    """The adapter for a source's columns, and what it does not use of them (`adapters.unused_fields`).

    Raises SourceError where there is none, for what must not stay unused, and for videos without PyAV.
    """
    try:
        adapter = adapters.choose(schema, source)
        unused = adapters.unused_fields(schema, adapter, source)
    except adapters.ColumnError as error:
        raise SourceError(f"{field}.{error.field}: {source.repo}: {error}") from None
    if adapter.videos and importlib.util.find_spec("av") is None:
        raise SourceError(f"{field}.video: {source.repo} has videos, which need PyAV: pip install packing-udfs[video]")
    return adapter, unused


def lacks(wanted: Iterable[str], there: Iterable[str]) -> str:
    """What a file lacks of the columns to read, in words; "" for nothing. Columns of ratings may be absent."""
    missing = [name for name in wanted if name not in there and not name.endswith("_ratings")]
    if not missing:
        return ""
    columns = f"the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
    return f"it lacks {columns}, which other files have; it has {', '.join(there)}"
