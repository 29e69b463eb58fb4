"""Conversations in `messages` or `conversations`, with images and videos between the words, or with none.

Two forms, told apart by the name of a turn's first field:

- OpenAI's `role`, `content`: the content is text, or a list of parts of which those of type `image` (`image_url`,
  `video` …) are placeholders. Text is text: `<image>` in it was typed by someone. A conversation without
  any placeholder has its images and videos before the first question.
- ShareGPT's `from`, `value`: `<image>` and `<video>` in a text are placeholders, as the format has them, each with
  a line break beside it. Where a source has videos and no images, both stand for a video.

The k-th placeholder of a kind is the k-th image or video of the row; unequal numbers end in the quarantine
(`image_count`). Images that are part of the content itself (`content[].image` with bytes) are taken from there.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructType

from jobs.adapters.columns import Columns, Field, Turns, field_of, media_kind, turns_of
from jobs.adapters.expressions import MEDIA, MESSAGES, any_null, media, medium, message, pairs, part
from jobs.adapters.expressions import placeholders as placeholder_parts
from jobs.adapters.provenance import FILE, ROW
from packing_udfs.config import Source

ROLES = {"human": "user", "gpt": "assistant"}
# Types of parts, of chat templates and of OpenAI's two APIs, as the chat-template form names them.
TYPES = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
}


@dataclass(frozen=True)
class Messages:
    """The adapter `messages`, for the columns of one source."""

    NEEDS = "messages or conversations (a list of {role, content} or {from, value}), and images or videos"
    USES = ("images", "image", "videos", "video", "messages", "conversations")

    turns: Turns
    images: tuple[Field, ...]
    videos: tuple[Field, ...]

    @classmethod
    def find(cls, columns: Columns) -> "Messages | None":
        turns = _turns(columns)
        if turns is None:
            return None
        found = cls(turns, columns.images(), columns.videos())
        return found if found.images or found.videos or found.embedded else None

    @property
    def fields(self) -> tuple[Field, ...]:
        return (self.turns.field, *self.images, *self.videos)

    @property
    def embedded(self) -> Field | None:
        """The field of a content's parts that holds images with their bytes."""
        content = self.turns.kinds[1]
        inner = field_of(content.elementType, "image") if isinstance(content, ArrayType) else None
        return (
            inner if inner and media_kind(inner.kind) and not isinstance(inner.kind, StringType | ArrayType) else None
        )

    @property
    def is_sharegpt(self) -> bool:
        return self.turns.names[0].lower() == "from"

    def make(self, rows: DataFrame, source: Source) -> DataFrame:
        first = rows.select(
            FILE,
            ROW,
            pairs(self.turns).alias("turns"),
            media(self.images, null_is_none=True).alias("given"),
            media(self.videos, null_is_none=True).alias("videos"),
        )
        with_parts = (
            first.withColumn("images", self._embedded() if self.embedded and not self.images else F.col("given"))
            .withColumn("messages", F.transform("turns", lambda t: message(_role(t["a"]), self._parts(t["b"]))))
            .withColumn("reason", self._reason())
        )
        if not self.is_sharegpt:
            with_parts = with_parts.withColumn("messages", _with_placeholders())
        return (
            with_parts.withColumn("images", F.concat("images", "videos"))
            .withColumn("messages", F.col("messages").cast(MESSAGES))
            .withColumn("num_turns_dropped", F.lit(0))
        )

    def _embedded(self) -> Column:
        name, kind = self.embedded.path[0], self.embedded.kind

        def of_turn(turn: Column) -> Column:
            there = F.filter(turn["b"], lambda p: p.getField(name).isNotNull())
            return F.coalesce(
                F.transform(there, lambda p: medium(p.getField(name), kind)).cast(MEDIA), F.array().cast(MEDIA)
            )

        return F.coalesce(F.flatten(F.transform("turns", of_turn)), F.array().cast(MEDIA))

    def _parts(self, content: Column) -> Column:
        kind = self.turns.kinds[1]
        if isinstance(kind, ArrayType):
            type_, text = (field_of(kind.elementType, name).path[0] for name in ("type", "text"))
            return F.transform(content, lambda p: _part(p.getField(type_), p.getField(text)))
        if self.is_sharegpt and (self.images or self.videos):
            return _split(content, has_images=bool(self.images), has_videos=bool(self.videos))
        return F.array(part("text", content))

    def _reason(self) -> Column:
        parts = F.flatten(F.transform("messages", lambda m: m["content"]))  # null when a content is
        return (
            F.when(F.coalesce(F.size("messages"), F.lit(0)) < 1, "texts_missing")
            .when(any_null(F.col("messages"), lambda m: m["role"].isNull() | m["content"].isNull()), "texts_missing")
            .when(any_null(parts, lambda p: p["type"].isNull()), "texts_missing")
            .when(any_null(parts, lambda p: (p["type"] == "text") & p["text"].isNull()), "texts_missing")
            .when(any_null(parts, lambda p: ~p["type"].isin("text", "image", "video")), "part_unsupported")
        )


@dataclass(frozen=True)
class Text(Messages):
    """The adapter `text`: the same conversations without images; `<image>` in them is text."""

    NEEDS = "messages or conversations (a list of {role, content} or {from, value})"
    USES = ("messages", "conversations")

    @classmethod
    def find(cls, columns: Columns) -> "Text | None":
        turns = _turns(columns)
        return None if turns is None else cls(turns, (), ())

    @property
    def embedded(self) -> None:
        return None


def _turns(columns: Columns) -> Turns | None:
    field = columns.find("messages", "conversations")
    if field is None:
        return None
    for names in (("role", "content"), ("from", "value")):
        turns = turns_of(field, *names)
        if turns and _is_content(turns.kinds[1]):
            return turns
    return None


def _is_content(kind) -> bool:
    """Whether a content is text, or a list of parts with a type and a text."""
    if isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
        return all(field_of(kind.elementType, name) for name in ("type", "text"))
    return isinstance(kind, StringType)


def _role(role: Column) -> Column:
    lower = F.lower(role)
    named = F.when(lower.isNull(), None)
    for theirs, ours in ROLES.items():
        named = named.when(lower == theirs, ours)
    return named.otherwise(lower)


def _part(kind: Column, text: Column) -> Column:
    named = F.when(kind.isNull(), None)
    for theirs, ours in TYPES.items():
        named = named.when(kind == theirs, ours)
    named = named.otherwise(kind)
    return part(named, F.when(named == "text", text))


def _split(text: Column, *, has_images: bool, has_videos: bool) -> Column:
    """A text with `<image>` and `<video>` in it as parts; a line break on each side of a marker goes with it.

    "<image>\\nWhat is it?" ─▶ [image, "What is it?"]
    """
    markers = "<image>|<video>" if has_videos else "<image>"
    image_is = "image" if has_images else "video"
    alone = F.regexp_replace(text, f"\\n?({markers})\\n?", "$1")
    around = "|".join(f"(?<={marker})|(?={marker})" for marker in markers.split("|"))

    def kind(piece: Column) -> Column:
        is_video = (piece == "<video>") & F.lit(has_videos)
        return F.when(piece == "<image>", F.lit(image_is)).when(is_video, F.lit("video")).otherwise("text")

    parts = F.transform(F.split(alone, around), lambda piece: _part(kind(piece), piece))
    parts = F.filter(parts, lambda p: (p["type"] != "text") | (p["text"] != ""))
    return F.when(F.size(parts) > 0, parts).otherwise(F.array(part("text", text)))


def _with_placeholders() -> Column:
    """The messages, with images and videos before the first question where nothing says where they stand."""
    parts = F.flatten(F.transform("messages", lambda m: m["content"]))
    is_placed = any_null(parts, lambda p: p["type"] != "text")
    first = F.greatest(F.array_position(F.transform("messages", lambda m: m["role"]), "user"), F.lit(1)) - 1
    before = placeholder_parts(F.size("images"), F.size("videos"))
    placed = F.transform(
        "messages",
        lambda m, i: F.when(i == first, message(m["role"], F.concat(before, m["content"]))).otherwise(m),
    )
    return F.when(is_placed, F.col("messages")).otherwise(placed)
