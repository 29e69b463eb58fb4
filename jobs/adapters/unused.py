"""What of a source no adapter uses: named once, or refused where it would change what is said or shown.

Every column and every field of a turn is used, ignored by name (`sources.N.ignore`), or unused. An unused one is named
in the plan and in the report. Refused are a second column of images or videos, a second conversation, and fields that
change what is said, such as a system message: leaving them out would train something else without a word.
"""

import re
from collections.abc import Iterator

from pyspark.sql.types import ArrayType, DataType, NullType, StringType, StructType

from jobs.adapters.adapter import Adapter
from jobs.adapters.columns import ColumnError, Field, element_of, media_kind
from jobs.adapters.kept import has_bytes
from packing_udfs.config import Source

__all__ = ["unused_fields"]

CONVERSATIONS = ("messages", "conversations", "conversation", "texts")
# Columns that change what a conversation says, and the adapters' names for them.
SAID = {
    **dict.fromkeys(("system", "system_prompt", "system_message", "sys_prompt"), "system"),
    **dict.fromkeys(("tools", "functions", "available_tools"), "tools"),
}
MASKS = ("loss_mask", "loss_weight", "masked", "train_on_turn")
_MEDIA_NAME = re.compile(r"image|img|photo|picture|video")


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
        _check_may_stay(name, kind, adapter, leaves_media=source.adapter == "text")
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


def _check_may_stay(name: str, kind: DataType, adapter: Adapter, *, leaves_media: bool) -> None:
    """Raises ColumnError for a field that changes what is said, or shown unless somebody leaves images aside."""
    last, media = name.rpartition(".")[2].lower(), media_kind(kind)
    if isinstance(kind, NullType):
        return
    remedy = f"`ignore: [{name}]` leaves it out"
    is_named_so = _MEDIA_NAME.search(last) is not None
    media = None if leaves_media else media
    if not leaves_media and (_holds_image(kind) or (has_bytes(kind) and is_named_so)):
        what = "images" if isinstance(kind, ArrayType) else "an image"
        raise ColumnError(
            f"the column {name} holds {what} that would not be shown: `columns: {{images: {name}}}` shows it, {remedy}",
            "columns",
        )
    if isinstance(media, StringType) and is_named_so and not adapter.has_images:
        raise ColumnError(
            f"the column {name} names images or videos, which are read as bytes, never by path; {remedy}", "columns"
        )
    if last in CONVERSATIONS:
        raise ColumnError(
            f"the column {name} would not be trained, which is {kind.simpleString()}: {remedy}", "columns"
        )
    if last in MASKS:
        raise ColumnError(f"the field {name} says what is trained, in a way that is not known; {remedy}", "ignore")
    if last in SAID:
        raise ColumnError(
            f"the column {name} changes what is said, and the adapter does not use it: where rows have messages, "
            f"`columns: {{{SAID[last]}: {name}}}` does; {remedy}",
            "columns",
        )


def _holds_image(kind: DataType) -> bool:
    """Whether there is a struct with bytes in a type, as images are stored, at any depth."""
    if isinstance(kind, StructType):
        is_image = any(f.name.lower() == "bytes" and has_bytes(f.dataType) for f in kind.fields)
        return is_image or any(_holds_image(f.dataType) for f in kind.fields)
    return isinstance(kind, ArrayType) and _holds_image(kind.elementType)
