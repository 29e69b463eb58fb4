"""Spark SQL expressions that several adapters are made of: media, parts of messages, turns in two layouts."""

from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, StructType

from jobs.adapters.columns import Field, Turns, field_of
from packing_udfs.contract import SAMPLE_SCHEMA

SAMPLE = from_arrow_schema(SAMPLE_SCHEMA)
MEDIA = SAMPLE["images"].dataType
MESSAGES = SAMPLE["messages"].dataType
MESSAGE = MESSAGES.elementType
CONTENT = MESSAGE["content"].dataType


def column(field: Field) -> Column:
    """The column of a field; names may have dots in them."""
    first, *inner = field.path
    return reduce(lambda c, name: c.getField(name), inner, F.col("`" + first.replace("`", "``") + "`"))


def media(fields: tuple[Field, ...], *, null_is_none: bool) -> Column:
    """Images or videos of a row as array<struct<bytes, path>>, never null.

    `null_is_none`: whether a null in a column of single images means that there is no image, or one without bytes.
    In a list a null is always an image without bytes; among several columns it is always none.
    """
    null_is_none = null_is_none or len(fields) > 1
    lists = [_media_list(column(field), field.kind, null_is_none) for field in fields]
    return F.concat(*lists) if lists else F.array().cast(MEDIA)


def _media_list(media: Column, kind, null_is_none: bool) -> Column:
    if isinstance(kind, ArrayType):
        found = F.transform(media, lambda one: medium(one, kind.elementType))
    else:
        found = F.array(medium(media, kind))
        if null_is_none:
            found = F.when(media.isNotNull(), found)
    return F.coalesce(found.cast(MEDIA), F.array().cast(MEDIA))


def medium(one: Column, kind) -> Column:
    """struct<bytes, path>, by name: a cast would go by position."""
    if isinstance(kind, StructType):
        path = field_of(kind, "path")
        made = F.struct(
            one.getField(field_of(kind, "bytes").path[0]).cast("binary").alias("bytes"),
            (one.getField(path.path[0]) if path else F.lit(None)).cast("string").alias("path"),
        )
    else:
        made = F.struct(one.cast("binary").alias("bytes"), F.lit(None).cast("string").alias("path"))
    return F.when(one.isNotNull(), made)


def pairs(turns: Turns) -> Column:
    """Turns as array<struct<a, b>> of their two fields; null when there is no list."""
    source, (first, second) = column(turns.field), turns.names
    if turns.is_transposed:
        return F.zip_with(source.getField(first), source.getField(second), _pair)
    return F.transform(source, lambda turn: _pair(turn.getField(first), turn.getField(second)))


def _pair(first: Column, second: Column) -> Column:
    return F.struct(first.alias("a"), second.alias("b"))


def part(kind: str | Column, text: Column | None = None) -> Column:
    """One part of a message's content."""
    kind = F.lit(kind) if isinstance(kind, str) else kind
    text = F.lit(None) if text is None else text
    return F.struct(kind.cast("string").alias("type"), text.cast("string").alias("text"))


def message(role: str | Column, content: Column) -> Column:
    """One message of the chat-template form."""
    role = F.lit(role) if isinstance(role, str) else role
    return F.struct(role.cast("string").alias("role"), content.cast(CONTENT).alias("content"))


def placeholders(num_images: Column, num_videos: Column) -> Column:
    """Parts that stand for so many images, then for so many videos."""
    return F.concat(F.array_repeat(part("image"), num_images), F.array_repeat(part("video"), num_videos))


def asked(num_images: Column, num_videos: Column, question: Column, answer: Column) -> Column:
    """A conversation of one question about images and videos, which stand before it, and its answer."""
    content = F.concat(placeholders(num_images, num_videos), F.array(part("text", question)))
    return F.array(message("user", content), message("assistant", F.array(part("text", answer)))).cast(MESSAGES)


def any_null(values: Column, is_null) -> Column:
    """Whether `is_null` holds for any element; false when there are none."""
    return F.coalesce(F.exists(values, is_null), F.lit(False))
