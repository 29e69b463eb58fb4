"""Expressions of a conversation: parts of a content, markers in texts, images in parts, and what makes no sample."""

import operator
from collections.abc import Callable, Mapping
from functools import reduce

from pyspark.sql.types import ArrayType, BooleanType, StringType

from jobs.adapters import expressions as E
from jobs.adapters.columns import Field
from jobs.adapters.expressions import Expression
from jobs.adapters.parts import MEDIA, part

__all__ = [
    "EXTRAS",
    "TRAIN",
    "TYPES",
    "as_text",
    "embedded",
    "from_uri",
    "given_to_template",
    "is_untrained",
    "part_of",
    "reason_of",
    "reason_of_indices",
    "reason_of_urls",
    "reason_of_weights",
]

# Types of parts, of chat templates and of OpenAI's two APIs, as the chat-template form names them.
TYPES = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
}
EXTRAS = (  # fields of a turn that go to the template
    *("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"),
    *("name", "tool_call_id"),
)
TRAIN = ("weight", "train", "training", "trainable", "loss")  # 0 or false: the turn is not trained
_KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool")


def as_text(field: Field, given: Expression) -> Expression:
    """JSON of a column: its text where it is JSON already, null where there is none."""
    if isinstance(field.kind, StringType):
        return E.when(given.has_words(), given)
    return E.as_json(given)


def given_to_template(field: Field, given: Expression) -> Expression:
    """A field of a turn for the template, null for an empty one."""
    if isinstance(field.kind, StringType):
        return E.when(given.has_words(), given)
    return E.when(given.size() > 0, given) if isinstance(field.kind, ArrayType) else given


def is_untrained(fields: Mapping[str, Field], turn: Expression) -> Expression | None:
    """Whether a turn says that it is not to be trained; None where no turn can."""
    found = [_is_false(fields[name], turn[name]) for name in TRAIN if name in fields]
    return reduce(operator.or_, [E.coalesce(one, False) for one in found]) if found else None


def _is_false(field: Field, given: Expression) -> Expression:
    return ~given if isinstance(field.kind, BooleanType) else given == 0


def reason_of_weights(fields: Mapping[str, Field], turns: Expression) -> Expression:
    """A weight of a turn that is neither 0 nor 1."""
    names = [name for name in TRAIN if name in fields and not isinstance(fields[name].kind, BooleanType)]
    return E.coalesce(E.constant(None, "string"), *(_reason_of_weight(name, turns) for name in names))


def _reason_of_weight(name: str, turns: Expression) -> Expression:
    odd = turns.transform(lambda turn: turn[name]).filter(lambda w: ~((w == 0) | (w == 1)))
    told = E.constant(f"field_unsupported: {name} ", "string").join(odd.get(0).as_text())
    return E.when(odd.size() > 0, told.join(", where 0 and 1 can be trained"))


def reason_of_indices(chosen: Expression, images: Expression) -> Expression:
    """Images that no part names."""
    is_off = (chosen.size() > 0) & ~(chosen.distinct().size() == images.size())
    return E.when(is_off, "image_count: the parts' `index` does not name each image")


def embedded(turns: Expression, field: Field, made: Callable[[Expression], Expression]) -> Expression:
    """What is made of a field of the parts of the content, in their order, where there is one: images."""

    def at(given: Expression) -> Expression:
        return reduce(lambda struct, name: struct[name], field.path, given)

    def of_turn(turn: Expression) -> Expression:
        parts = turn["second"].filter(lambda given: ~at(given).is_null())
        return E.coalesce(parts.transform(lambda given: made(at(given))), E.constant([], MEDIA))

    return E.coalesce(turns.transform(of_turn).flatten(), E.constant([], MEDIA))


def from_uri(uri: Expression) -> Expression:
    """The image in a data: URI. Other addresses stop the row."""
    return E.struct(bytes=uri.base64(), path=E.constant(None, "string"))


def reason_of_urls(turns: Expression, url: Field) -> Expression:
    def at(given: Expression) -> Expression:
        return reduce(lambda struct, name: struct[name], url.path, given)

    urls = turns.transform(lambda turn: turn["second"].transform(at)).flatten()
    others = urls.filter(lambda one: ~one.is_null() & ~one.lower().starts("data:"))
    told = E.constant("field_unsupported: image_url ", "string").join(others.get(0).start(100), " is not fetched")
    return E.when(others.size() > 0, told)


def part_of(kind: Expression, text: Expression) -> Expression:
    kind = kind.renamed(TYPES)
    return part(kind, E.when(kind == "text", text))


def reason_of(messages: Expression) -> Expression:
    parts = messages.transform(lambda said: said["content"]).flatten()  # null when a content is
    is_missing = (
        (messages.size() == 0)
        | messages.any(lambda said: said["role"].is_null() | said["content"].is_null() | _says_nothing(said))
        | parts.any(lambda one: one["type"].is_null() | ((one["type"] == "text") & one["text"].is_null()))
    )
    strange = messages.transform(lambda said: said["role"]).filter(lambda role: ~role.is_in(_KNOWN_ROLES))
    is_unknown = parts.any(lambda one: ~one["type"].is_in(("text", "image", "video")))
    unknown = parts.transform(lambda one: one["type"]).filter(lambda kind: ~kind.is_in(("text", "image", "video")))
    unsupported = E.when(is_unknown, E.constant("part_unsupported: ", "string").join(unknown.get(0)))
    role = E.constant("role_unknown: ", "string").join(strange.get(0))
    return E.when(is_missing, "texts_missing", E.when(strange.size() > 0, role, unsupported))


def _says_nothing(said: Expression) -> Expression:
    """Whether it is an answer without words, images and calls of tools."""
    says = said["content"].any(lambda one: ~(one["type"] == "text") | E.coalesce(one["text"].has_words(), False))
    calls = E.coalesce(said["extra"].has('"tool_calls":') | said["extra"].has('"function_call":'), False)
    return (said["role"] == "assistant") & ~says & ~calls
