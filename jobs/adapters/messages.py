"""Conversations in `messages` or `conversations`, with images and videos between the words, or with none.

The name of a turn's first field tells two forms apart:

- OpenAI's `role`, `content`: the content is text, or a list of parts. Parts of type `image` (`image_url`, `video` …)
  are placeholders. Text is text: somebody typed an `<image>` in it. Where a conversation has no placeholder, the images
  and videos stand before the first question.
- ShareGPT's `from`, `value`: `<image>` and `<video>` in a text are placeholders, and a line break beside one goes with
  it. Where a source has videos and no images, both stand for a video.

The k-th placeholder of a kind is the row's k-th image or video. A row with unequal numbers ends in the quarantine
(`image_count`). Images inside the content (`content[].image` with bytes) are taken from there.
"""

from dataclasses import dataclass
from typing import Self

from pyspark.sql.types import ArrayType, DataType, StringType

from jobs.adapters import expressions as E
from jobs.adapters.adapter import Adapter, Sample
from jobs.adapters.columns import Columns, Field, Turns, element_of, field_of, media_kind, turns_of
from jobs.adapters.expressions import Expression
from jobs.adapters.parts import MEDIA, media, medium, message, pairs, part, placeholders
from packing_udfs.config import Source

__all__ = ["Messages", "Text"]

_ROLES = {"human": "user", "gpt": "assistant"}
# Types of parts, of chat templates and of OpenAI's two APIs, as the chat-template form names them.
_TYPES = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
}


@dataclass(frozen=True)
class Messages(Adapter):
    """The adapter `messages`."""

    NEEDS = "messages or conversations (a list of {role, content} or {from, value}), and images or videos"
    USES = ("images", "image", "videos", "video", "messages", "conversations")

    turns: Turns
    images: tuple[Field, ...]
    videos: tuple[Field, ...]

    @classmethod
    def find(cls, columns: Columns) -> Self | None:
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
        inner = field_of(element_of(self.turns.kinds[1]), "image")
        kind = media_kind(inner.kind) if inner else None
        is_image = kind is not None and inner and not isinstance(inner.kind, StringType | ArrayType)
        return inner if is_image else None

    @property
    def is_sharegpt(self) -> bool:
        return self.turns.names[0].lower() == "from"

    def make(self, source: Source) -> Sample:
        turns = E.once(pairs(self.turns))
        videos = E.once(media(self.videos, null_is_none=True))
        if self.embedded and not self.images:
            images = E.once(_embedded(turns, self.embedded))
        else:
            images = E.once(media(self.images, null_is_none=True))
        said = E.once(turns.transform(self._message))
        messages = said if self.is_sharegpt else _with_placeholders(said, images, videos)
        return Sample(messages, E.concat(images, videos), _reason(said))

    def _message(self, turn: Expression) -> Expression:
        return message(turn["first"].lower().renamed(_ROLES), self._content(turn["second"]))

    def _content(self, content: Expression) -> Expression:
        kind = self.turns.kinds[1]
        if isinstance(kind, ArrayType):
            type_, text = (found.name for name in ("type", "text") if (found := field_of(kind.elementType, name)))
            return content.transform(lambda given: _part(given[type_], given[text]))
        if self.is_sharegpt and (self.images or self.videos):
            return _split(content, has_images=bool(self.images), has_videos=bool(self.videos))
        return E.array(part("text", content))


@dataclass(frozen=True)
class Text(Messages):
    """The adapter `text`: the same conversations without images; `<image>` in them is text."""

    NEEDS = "messages or conversations (a list of {role, content} or {from, value})"
    USES = ("messages", "conversations")

    @classmethod
    def find(cls, columns: Columns) -> Self | None:
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


def _is_content(kind: DataType) -> bool:
    """Whether a content is text, or a list of parts with a type and a text."""
    if isinstance(kind, ArrayType):
        return all(field_of(kind.elementType, name) for name in ("type", "text"))
    return isinstance(kind, StringType)


def _embedded(turns: Expression, image: Field) -> Expression:
    """The images inside the parts of the content, in their order."""

    def of_turn(turn: Expression) -> Expression:
        parts = turn["second"].filter(lambda given: ~given[image.name].is_null())
        return E.coalesce(parts.transform(lambda given: medium(given[image.name], image.kind)), E.constant([], MEDIA))

    return E.coalesce(turns.transform(of_turn).flatten(), E.constant([], MEDIA))


def _part(kind: Expression, text: Expression) -> Expression:
    kind = kind.renamed(_TYPES)
    return part(kind, E.when(kind == "text", text))


def _split(text: Expression, *, has_images: bool, has_videos: bool) -> Expression:
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


def _reason(messages: Expression) -> Expression:
    parts = messages.transform(lambda said: said["content"]).flatten()  # null when a content is
    is_missing = (
        (messages.size() == 0)
        | messages.any(lambda said: said["role"].is_null() | said["content"].is_null())
        | parts.any(lambda one: one["type"].is_null() | ((one["type"] == "text") & one["text"].is_null()))
    )
    is_unknown = parts.any(lambda one: ~one["type"].is_in(("text", "image", "video")))
    return E.when(is_missing, "texts_missing", E.when(is_unknown, "part_unsupported"))


def _with_placeholders(messages: Expression, images: Expression, videos: Expression) -> Expression:
    """The messages, with images and videos before the first question where no placeholder says where they stand."""
    parts = messages.transform(lambda said: said["content"]).flatten()
    is_placed = parts.any(lambda one: ~(one["type"] == "text"))
    first = E.coalesce(messages.transform(lambda said: said["role"]).index_of("user"), 0)
    before = placeholders(images.size(), videos.size())

    def placed(said: Expression, i: Expression) -> Expression:
        content = E.when(i == first, E.concat(before, said["content"]), said["content"])
        return message(said["role"], content)

    return E.when(is_placed, messages, messages.transform(placed))
