"""Conversations in `messages` or `conversations`, with images and videos between the words, or with none.

The name of a turn's first field tells two forms apart:

- OpenAI's `role`, `content`: the content is text, or a list of parts. Parts of type `image` (`image_url`, `video` …)
  are placeholders. Where a conversation has none, `<image>` and `<video>` in its texts are. Where it has neither, the
  images and videos stand before the first question.
- ShareGPT's `from`, `value`: `<image>` and `<video>` in a text are placeholders.

A line break beside a marker goes with it. Where a source has videos and no images, both markers stand for a video. The
k-th placeholder of a kind is the row's k-th image or video, or the one that the part's `index` names. A row with
unequal numbers ends in the quarantine (`image_count`). Images inside the content (`content[].image` with bytes) are
taken from there.

What else a turn has goes to the chat template (`EXTRAS`), or says whether the turn is trained (`TRAIN`). A
column `system` is a first message, a column `tools` goes to the template.
"""

from dataclasses import dataclass, replace
from typing import Self

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    StringType,
    StructType,
)

from jobs.adapters import expressions as E
from jobs.adapters.adapter import Adapter, Sample
from jobs.adapters.columns import ColumnError, Columns, Field, Turns, element_of, field_of, media_kind, turns_of
from jobs.adapters.conversation import (
    EXTRAS,
    TRAIN,
    TYPES,
    as_text,
    embedded,
    from_uri,
    given_to_template,
    is_untrained,
    part_of,
    reason_of,
    reason_of_indices,
    reason_of_urls,
    reason_of_weights,
)
from jobs.adapters.expressions import Expression
from jobs.adapters.parts import (
    CONTENT,
    MEDIA,
    has_marker,
    media,
    medium,
    message,
    pairs,
    part,
    placeholders,
    split,
    value,
)
from packing_udfs.config import Source

__all__ = ["Messages", "Text"]

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant"}


@dataclass(frozen=True)
class Messages(Adapter):
    """The adapter `messages`."""

    NEEDS = "messages or conversations (a list of {role, content} or {from, value}), and images or videos"
    USES = ("images", "image", "videos", "video", "messages", "conversations", "system", "tools")

    turns: Turns
    images: tuple[Field, ...]
    videos: tuple[Field, ...]
    system: Field | None = None
    tools: Field | None = None

    @classmethod
    def find(cls, columns: Columns) -> Self | None:
        turns = _turns(columns)
        if turns is None:
            return None
        found = cls(turns, columns.images(), columns.videos(), *_beside(columns))
        return found if found.images or found.videos or found.embedded or found.url else None

    @property
    def fields(self) -> tuple[Field, ...]:
        more = [field for field in (self.system, self.tools) if field]
        first, content, *others = self.turns.fields
        return (first, *self._of_content(content), *others, *self.images, *self.videos, *more)

    def _of_content(self, content: Field) -> tuple[Field, ...]:
        """What is used of the content: all of a text, some fields of parts."""
        struct = element_of(self.turns.kinds[1])
        if not isinstance(self.turns.kinds[1], ArrayType):
            return (content,)
        found = (field_of(struct, "type"), field_of(struct, "text"), self.index, self.embedded, self.url)
        return tuple(Field(content.path + field.path, field.kind) for field in found if field)

    @property
    def embedded(self) -> Field | None:
        """The field of a content's parts that holds images with their bytes."""
        inner = field_of(element_of(self.turns.kinds[1]), "image")
        kind = media_kind(inner.kind) if inner else None
        is_image = kind is not None and inner and not isinstance(inner.kind, StringType | ArrayType)
        return inner if is_image else None

    @property
    def url(self) -> Field | None:
        """The field of a content's parts that holds an image's address: text, or a struct with `url`."""
        inner = field_of(element_of(self.turns.kinds[1]), "image_url")
        found = inner and (inner.inner("url") or inner)
        return found if found and isinstance(found.kind, StringType) else None

    @property
    def is_sharegpt(self) -> bool:
        return self.turns.names[0].lower() == "from"

    def make(self, source: Source) -> Sample:
        turns = E.once(pairs(self.turns))
        videos = E.once(media(self.videos, null_is_none=True))
        said = E.once(turns.transform(self._message))
        fields = {field.name.lower(): field for field in self.turns.more}
        reason = E.coalesce(reason_of(said), reason_of_weights(fields, turns), self._reason_of_markers(source, said))
        if self.images:
            images = E.once(media(self.images, null_is_none=True))
            reason = E.coalesce(reason, self._reason_of_two_places(turns, images))
        elif image := self.embedded:
            images = E.once(embedded(turns, image, lambda given: medium(given, image.kind)))
        elif self.url:
            images = E.once(embedded(turns, self.url, from_uri))
            reason = E.coalesce(reason, reason_of_urls(turns, self.url))
        else:
            images = E.constant([], MEDIA)
        messages = said if self.is_sharegpt else self._with_placeholders(said, images, videos)
        if self.index:
            chosen = E.once(self._chosen(turns))
            reason = E.coalesce(reason, reason_of_indices(chosen, images))
            images = E.when(chosen.size() == 0, images, chosen.transform(lambda i: images.get(i)))
        if self.system:
            text = value(self.system)
            has_one = messages.any(lambda one: one["role"] == "system")
            reason = E.coalesce(
                reason, E.when(text.has_words() & has_one, "field_unsupported: system, beside a message of the system")
            )
            first = E.array(message("system", E.array(part("text", text))))
            messages = E.when(E.coalesce(text.has_words(), False), E.concat(first, messages), messages)
        sample = Sample(messages, E.concat(images, videos), reason)
        return replace(sample, tools=as_text(self.tools, value(self.tools))) if self.tools else sample

    def _reason_of_two_places(self, turns: Expression, images: Expression) -> Expression:
        """Images in the content beside those of a column: which are shown is not known."""
        found = [embedded(turns, field, lambda given: given) for field in (self.embedded, self.url) if field]
        reason = E.constant(None, "string")
        for one in found:
            told = "image_count: images stand in the messages and in a column of their own"
            reason = E.coalesce(reason, E.when((one.size() > 0) & (images.size() > 0), told))
        return reason

    def _message(self, turn: Expression) -> Expression:
        role = turn["first"].lower().renamed(_ROLES)
        fields = {field.name.lower(): field for field in self.turns.more}
        extra = {name: given_to_template(fields[name], turn[name]) for name in EXTRAS if name in fields}
        trains = is_untrained(fields, turn)
        if trains is not None:
            extra["train"] = E.when(trains, False)
        content = self._content(turn["second"])
        calls = [extra[name] for name in ("tool_calls", "function_call") if name in extra]
        if calls:  # a turn that calls tools may say nothing
            content = E.coalesce(content, E.when(~E.coalesce(*calls).is_null(), E.constant([], CONTENT)))
        return message(role, content, E.as_json(E.struct(**extra)) if extra else None)

    def _content(self, content: Expression) -> Expression:
        kind = self.turns.kinds[1]
        if isinstance(kind, ArrayType):
            type_, text = (found.name for name in ("type", "text") if (found := field_of(kind.elementType, name)))
            return content.transform(lambda given: part_of(given[type_], given[text]))
        if self.is_sharegpt and (self.images or self.videos):
            return self._split(content)
        return E.when(~content.is_null(), E.array(part("text", content)))

    def _split(self, text: Expression) -> Expression:
        return split(text, has_images=bool(self.images or self.embedded), has_videos=bool(self.videos))

    def _with_placeholders(self, messages: Expression, images: Expression, videos: Expression) -> Expression:
        """The messages, with images and videos where a placeholder or a marker is, else before the first question."""
        parts = E.once(messages.transform(lambda said: said["content"]).flatten())
        is_placed = parts.any(lambda one: ~(one["type"] == "text"))
        is_marked = parts.any(lambda one: has_marker(one["text"]))
        first = E.coalesce(messages.transform(lambda said: said["role"]).index_of("user"), 0)
        before = placeholders(images.size(), videos.size())

        def split(said: Expression) -> Expression:
            content = said["content"].transform(lambda one: self._split(one["text"])).flatten()
            return message(said["role"], content, said["extra"])

        def placed(said: Expression, i: Expression) -> Expression:
            content = E.when(i == first, E.concat(before, said["content"]), said["content"])
            return message(said["role"], content, said["extra"])

        marked = E.when(is_marked, messages.transform(split), messages.transform(placed))
        return E.when(is_placed, messages, marked)

    @property
    def index(self) -> Field | None:
        """The field of a content's parts that numbers the images."""
        inner = field_of(element_of(self.turns.kinds[1]), "index")
        if inner and not isinstance(inner.kind, IntegerType | LongType):
            raise ColumnError(
                f"{self.turns.field.name}.content.index is {inner.kind.simpleString()}, and numbers images: store "
                "int32 or int64"
            )
        return inner

    def _chosen(self, turns: Expression) -> Expression:
        """The numbers of images in the parts that stand for one, an empty list where none has a number."""
        type_ = field_of(element_of(self.turns.kinds[1]), "type")
        assert self.index
        assert type_
        name, kind = self.index.name, type_.name

        def of_turn(turn: Expression) -> Expression:
            images = turn["second"].filter(lambda given: given[kind].renamed(TYPES) == "image")
            return E.coalesce(images.transform(lambda given: given[name]), E.constant([], "array<bigint>"))

        found = E.coalesce(turns.transform(of_turn).flatten(), E.constant([], "array<bigint>"))
        return E.when(found.any(lambda i: ~i.is_null()), found, E.constant([], "array<bigint>"))

    def _reason_of_markers(self, source: Source, messages: Expression) -> Expression:
        """None: a marker in a source of images is a placeholder."""
        return E.constant(None, "string")


@dataclass(frozen=True)
class Text(Messages):
    """The adapter `text`: the same conversations without images; `<image>` in them is text."""

    NEEDS = "messages or conversations (a list of {role, content} or {from, value})"
    USES = ("messages", "conversations", "system", "tools")

    @classmethod
    def find(cls, columns: Columns) -> Self | None:
        turns = _turns(columns)
        return None if turns is None else cls(turns, (), (), *_beside(columns))

    has_images = False

    @property
    def embedded(self) -> None:
        return None

    @property
    def url(self) -> None:
        return None

    def _with_placeholders(self, messages: Expression, images: Expression, videos: Expression) -> Expression:
        return messages

    def _reason_of_markers(self, source: Source, messages: Expression) -> Expression:
        """A marker that no image stands for, unless somebody says that all is text."""
        if source.adapter == "text":
            return E.constant(None, "string")
        parts = messages.transform(lambda said: said["content"]).flatten()
        is_marked = parts.any(lambda one: (one["type"] == "text") & has_marker(one["text"]))
        return E.when(
            is_marked, "image_count: <image> or <video> in a source without; `adapter: text` takes it for text"
        )


def _turns(columns: Columns) -> Turns | None:
    field = columns.find("messages", "conversations")
    if field is None:
        return None
    for names in (("role", "content"), ("from", "value")):
        turns = turns_of(field, *names)
        if turns and _is_content(turns.kinds[1]):
            return replace(turns, more=_more(turns))
    return None


def _more(turns: Turns) -> tuple[Field, ...]:
    """The further fields of a turn that are used. Raises ColumnError for their types, and for a struct of lists."""
    struct = element_of(turns.field.kind)
    found = [(name, field) for name in (*EXTRAS, *TRAIN) if (field := field_of(struct, name))]
    if found and turns.is_transposed:
        raise ColumnError(f"{turns.field.name}.{found[0][0]} is one list for all turns: store a list of turns instead")
    for name, field in found:
        if name in TRAIN and not isinstance(field.kind, BooleanType | NumericType):
            raise ColumnError(
                f"{turns.field.name}.{field.name} is {field.kind.simpleString()}, and says whether a turn is trained: "
                "store true or false, or 1 or 0"
            )
    return tuple(field for _, field in found)


def _beside(columns: Columns) -> tuple[Field | None, Field | None]:
    """The columns `system` and `tools`, of the types that can be used."""
    system, tools = columns.find("system"), columns.find("tools")
    if system and not isinstance(system.kind, StringType):
        raise ColumnError(f"the column {system.name} is {system.kind.simpleString()}, and a system message is text")
    if tools and not isinstance(tools.kind, StringType | ArrayType | StructType | MapType):
        raise ColumnError(
            f"the column {tools.name} is {tools.kind.simpleString()}, and tools are a list of JSON schemas"
        )
    return system, tools


def _is_content(kind: DataType) -> bool:
    """Whether a content is text, or a list of parts with a type and a text."""
    if isinstance(kind, ArrayType):
        return all(field_of(kind.elementType, name) for name in ("type", "text"))
    return isinstance(kind, StringType)
