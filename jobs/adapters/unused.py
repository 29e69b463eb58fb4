"""What of a source no adapter uses: named once, or refused where it would change what is said or shown.

Every column and every field of a turn is used, ignored by name (`sources.N.ignore`), or unused. An unused one is named
in the plan and in the report. Refused are a second column of images or videos, a second conversation, and fields that
change what is said, such as a system message: leaving them out would train something else without a word.
"""

from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, NullType, StructType

from jobs.adapters.adapter import Adapter
from jobs.adapters.columns import ColumnError, Field, element_of, media_kind
from packing_udfs.config import Source

__all__ = ["unused_fields"]

CONVERSATIONS = ("messages", "conversations", "texts")
SAID = ("system", "tools")  # columns that change what a conversation says


def unused_fields(
    schema: StructType, adapter: Adapter, source: Source, kept: tuple[Field, ...] = ()
) -> tuple[str, ...]:
    """Columns, and fields of structs and turns as `column.field`, that are not used, not kept and not ignored.

    Raises ColumnError for one that must not be left out, and for a name in `ignore` that there is not.
    """
    paths = [field.path for field in (*adapter.fields, *kept)]
    found = {name: kind for name, kind in _unused(schema, (), paths) if not name.startswith("__")}
    strange = [name for name in source.ignore if name not in found]
    if strange:
        raise ColumnError(f"{strange[0]!r} is no unused column; these are {', '.join(found) or 'none'}", "ignore")
    left = {name: kind for name, kind in found.items() if name not in source.ignore}
    for name, kind in left.items():
        if not (source.adapter == "text" and media_kind(kind)):  # somebody says that images are left aside
            _check_may_stay(name, kind)
    return tuple(left)


def _unused(kind: StructType, before: tuple[str, ...], paths: list[tuple[str, ...]]) -> Iterator[tuple[str, DataType]]:
    """(name, type) of fields that no path leads to; a path that ends at a field uses all of it."""
    for field in kind.fields:
        here = (*before, field.name)
        inside = [path for path in paths if path[: len(here)] == here]
        if not inside:
            yield ".".join(here), field.dataType
        elif here not in inside:
            struct = element_of(field.dataType)
            assert isinstance(struct, StructType), f"{here} is no struct"
            yield from _unused(struct, here, paths)


def _check_may_stay(name: str, kind: DataType) -> None:
    if isinstance(kind, NullType):
        return
    remedy = f"`ignore: [{name}]` leaves it out"
    if isinstance(media_kind(kind), StructType):
        what = "images" if isinstance(kind, ArrayType) else "an image"
        raise ColumnError(
            f"the column {name} holds {what} that would not be shown: `columns: {{images: {name}}}` shows it, {remedy}",
            "columns",
        )
    if name in CONVERSATIONS:
        raise ColumnError(
            f"the column {name} would not be trained, which is {kind.simpleString()}: {remedy}", "columns"
        )
    if name in SAID:
        raise ColumnError(
            f"the column {name} changes what is said, and no adapter for it was chosen: {remedy}", "columns"
        )
