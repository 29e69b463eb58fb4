"""A source at one state of its files: what the job reads, counts and records of it, wherever the files are."""

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from jobs import adapters
from jobs.adapters.columns import Field
from jobs.sources.json_values import has_json
from packing_udfs.config import Source

__all__ = ["PinnedSource", "SourceError", "SourceFile", "Use", "refuse_mixed_system", "use_of"]


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
    is_odd: bool = False  # whether its types are not quite those of all files


@dataclass(frozen=True)
class PinnedSource:
    """A source at one commit. `commit` of a folder is the fingerprint of its listing."""

    source: Source
    commit: str
    files: tuple[SourceFile, ...]
    adapter: adapters.Adapter
    licenses: tuple[str, ...] = ()  # as its card has them
    unused: tuple[str, ...] = ()  # columns and fields of turns that the adapter does not use
    kept: tuple[Field, ...] = ()  # columns that go with each sample
    schema: StructType | None = None  # all its columns, in types that Spark has

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
        """The columns to read, as they are spelt in the source."""
        return Use(self.adapter, self.kept, self.unused).columns

    @property
    def said(self) -> list[str]:
        """The columns that the adapter takes texts from; tools are JSON as they are."""
        tools = getattr(self.adapter, "tools", None)
        return list(dict.fromkeys(field.path[0] for field in self.adapter.fields if field != tools))

    @property
    def read_schema(self) -> StructType:
        """The columns to read, and of structs the fields, in types that Spark has."""
        assert self.schema is not None, "a source is pinned with its columns"
        paths = [field.path for field in (*self.adapter.fields, *self.kept)]
        return StructType([
            StructField(name, _used(self.schema[name].dataType, (name,), paths)) for name in self.columns
        ])  # fmt: skip


def _used(kind: DataType, here: tuple[str, ...], paths: list[tuple[str, ...]]) -> DataType:
    """A type with the fields that a path leads to; a path that ends here uses all of it."""
    if here in paths:
        return kind
    if isinstance(kind, ArrayType):
        return ArrayType(_used(kind.elementType, here, paths))
    assert isinstance(kind, StructType), f"{here} is no struct"
    inside = {path[len(here)] for path in paths if path[: len(here)] == here}
    fields = [field for field in kind.fields if field.name in inside]
    return StructType([StructField(f.name, _used(f.dataType, (*here, f.name), paths)) for f in fields])


def refuse_mixed_system(kinds: Iterable[tuple[str, pa.DataType]], use: "Use", place: str) -> None:
    """Raises SourceError for a system column that is not text in all rows: a row's message would be lost."""
    system = getattr(use.adapter, "system", None)
    for name, kind in kinds:
        if system and system.path[0] == name and has_json(kind):
            raise SourceError(
                f"{place}: the column {name} is not text in each row, and a system message is; store text"
            )


@dataclass(frozen=True)
class Use:
    """What becomes of a source's columns."""

    adapter: adapters.Adapter
    kept: tuple[Field, ...]
    unused: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        """The columns to read, as they are spelt in the source."""
        return list(dict.fromkeys(field.path[0] for field in (*self.adapter.fields, *self.kept)))


def use_of(schema: StructType, source: Source, field: str) -> Use:
    """The adapter for a source's columns, what is kept of them, and what is not used (`adapters.unused_fields`).

    Raises SourceError where there is no adapter, for what must not stay unused, and for videos without PyAV.
    """
    try:
        adapter = adapters.choose(schema, source)
        kept = adapters.kept_fields(schema, source)
        unused = adapters.unused_fields(schema, adapter, source, kept)
    except adapters.ColumnError as error:
        raise SourceError(f"{field}.{error.field}: {source.repo}: {error}") from None
    if adapter.videos and importlib.util.find_spec("av") is None:
        raise SourceError(f"{field}.video: {source.repo} has videos, which need PyAV: pip install packing-udfs[video]")
    return Use(adapter=adapter, kept=kept, unused=unused)
