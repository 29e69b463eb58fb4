"""What adapters make samples of: images and videos, turns in two layouts, messages and their parts."""

from functools import reduce

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, StructType

from jobs.adapters import expressions as E
from jobs.adapters.adapter import Sample
from jobs.adapters.columns import Field, Turns, field_of
from jobs.adapters.expressions import Expression
from packing_udfs.contract import SAMPLE_SCHEMA

__all__ = [
    "CONTENT",
    "MEDIA",
    "answered",
    "exchange",
    "has_marker",
    "media",
    "medium",
    "message",
    "pairs",
    "part",
    "placeholders",
    "split",
    "value",
]

_TYPES = from_arrow_schema(SAMPLE_SCHEMA)
MEDIA = _TYPES["images"].dataType
CONTENT = _TYPES["messages"].dataType.elementType["content"].dataType  # pyright: ignore[reportAttributeAccessIssue]


def value(field: Field) -> Expression:
    """The value of a column, or of a field inside one."""
    first, *inner = field.path
    return reduce(lambda struct, name: struct[name], inner, E.column(first))


def media(fields: tuple[Field, ...], *, null_is_none: bool) -> Expression:
    """Images or videos of a row, list<struct<bytes, path>>, never null.

    `null_is_none`: a null in a column of single images is no image; else it is an image without bytes. Of several
    columns a null is always no image. In a list a null is always an image without bytes.
    """
    null_is_none = null_is_none or len(fields) > 1
    lists = [_media_of(value(field), field.kind, null_is_none) for field in fields]
    return E.concat(*lists) if lists else E.constant([], MEDIA)


def _media_of(column: Expression, kind: DataType, null_is_none: bool) -> Expression:
    if isinstance(kind, ArrayType):
        one_kind = kind.elementType
        found = column.transform(lambda one: medium(one, one_kind))
    else:
        found = E.array(medium(column, kind))
        if null_is_none:
            found = E.when(~column.is_null(), found)
    return E.coalesce(found, E.constant([], MEDIA))


def medium(one: Expression, kind: DataType) -> Expression:
    """An image or video as struct<bytes, path>; null for null."""
    data, path = one, E.constant(None, "string")
    if isinstance(kind, StructType):
        data_field, path_field = field_of(kind, "bytes"), field_of(kind, "path")
        assert data_field, f"{kind.simpleString()} has no bytes"
        data, path = one[data_field.name], one[path_field.name].as_text() if path_field else path
    return E.when(~one.is_null(), E.struct(bytes=data, path=path))


def pairs(turns: Turns) -> Expression:
    """Turns as list<struct> of `first`, `second` and, by their names in lower case, `more`; null when there is none."""
    source, (first, second) = value(turns.field), turns.names
    if turns.is_transposed:
        return source[first].zip_with(source[second], lambda a, b: E.struct(first=a, second=b))

    def turn_of(turn: Expression) -> Expression:
        more = {field.name.lower(): turn[field.name] for field in turns.more}
        return E.struct(first=turn[first], second=turn[second], **more)

    return source.transform(turn_of)


def part(kind: Expression | str, text: Expression | None = None) -> Expression:
    """One part of a message's content: struct<type, text>."""
    return E.struct(type=kind, text=E.constant(None, "string") if text is None else text.as_text())


def message(role: Expression | str, content: Expression, extra: Expression | None = None) -> Expression:
    """One message of the chat-template form: struct<role, content, extra>."""
    return E.struct(role=role, content=content, extra=E.constant(None, "string") if extra is None else extra)


def placeholders(num_images: Expression, num_videos: Expression | int) -> Expression:
    """Parts that stand for so many images, then for so many videos."""
    return E.concat(E.repeat(part("image"), num_images), E.repeat(part("video"), num_videos))


def exchange(asked: Expression, answer: Expression) -> Expression:
    """Two messages: the parts of a question, and its answer."""
    return E.array(message("user", asked), message("assistant", E.array(part("text", answer))))


def answered(images: tuple[Field, ...], videos: tuple[Field, ...], question: Expression, answer: Expression) -> Sample:
    """A sample of one question about a row's images and videos, and its answer."""
    shown = E.once(media(images, null_is_none=bool(videos)))
    played = E.once(media(videos, null_is_none=bool(images)))
    answer = E.once(answer)
    is_missing = question.is_null() | ~E.coalesce(answer.has_words(), False)
    marked = split(question, has_images=bool(images), has_videos=bool(videos))
    before = E.concat(placeholders(shown.size(), played.size()), E.array(part("text", question)))
    messages = exchange(E.when(has_marker(question), marked, before), answer)
    return Sample(messages, E.concat(shown, played), E.when(is_missing, "texts_missing"))


def has_marker(text: Expression) -> Expression:
    return E.coalesce(text.has("<image>") | text.has("<video>"), False)


def split(text: Expression, *, has_images: bool, has_videos: bool) -> Expression:
    """The parts of a text with `<image>` and `<video>` in it; a line break on each side of a marker goes with it.

    "<image>\\nWhat is it?" ─▶ [image, "What is it?"]
    """
    markers = {"<image>": "image" if has_images else "video"} | ({"<video>": "video"} if has_videos else {})
    alone = text.unwrap(f"\\n?({'|'.join(markers)})\\n?")
    pieces = alone.split("|".join(f"(?<={marker})|(?={marker})" for marker in markers))

    def of_piece(piece: Expression) -> Expression:
        is_marker = piece.is_in(tuple(markers))
        return part(E.when(is_marker, piece.renamed(markers), "text"), E.when(~is_marker, piece))

    parts = pieces.filter(lambda piece: ~(piece == "")).transform(of_piece)
    return E.when(parts.size() == 0, E.array(part("text", text)), parts)
