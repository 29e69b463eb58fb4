"""The adapters once more, in plain Python, for looking at a few rows where there is no Spark (`jobs.forecast`).

The job's own adapters are Spark expressions, which nothing but a JVM evaluates. What is here says the same of one row
as Python has it, and `tests/spark/test_plain_adapters.py` holds the two against each other on generated rows. Nothing
that is published is made here.
"""

import re
from collections import Counter
from typing import NamedTuple

from pyspark.sql.types import ArrayType, StructType

from jobs.adapters.captions import Captions
from jobs.adapters.columns import Field, Turns, field_of
from jobs.adapters.finevision import FineVision
from jobs.adapters.messages import ROLES, TYPES, Messages
from jobs.adapters.vqa import Vqa
from packing_udfs.config import Source


class PlainSample(NamedTuple):
    """A row as `adapters.to_samples` makes it; a row that makes no sample has but a reason."""

    messages: list[dict] | None
    images: list[dict | None] | None
    reason: str | None
    num_turns_dropped: int


def to_sample(row: dict, adapter, source: Source) -> PlainSample:
    """A row of a source, as `pyarrow` gives it, as a sample."""
    if isinstance(adapter, FineVision):
        made = _finevision(row, adapter, source)
    elif isinstance(adapter, Messages):
        made = _messages(row, adapter)
    elif isinstance(adapter, Vqa):
        made = _asked(row, adapter, value(row, adapter.question), _answer(value(row, adapter.answer), adapter.answer))
    else:
        assert isinstance(adapter, Captions)
        made = _asked(row, adapter, source.prompt, _first(value(row, adapter.caption), adapter.caption))
    return made if made.reason is None else made._replace(messages=None, images=None)


def value(row: dict, field: Field):
    """A row's value of a field; None below a null."""
    found = row
    for name in field.path:
        found = None if found is None else found[name]
    return found


def media(row: dict, fields: tuple[Field, ...], *, null_is_none: bool) -> list[dict | None]:
    """Images or videos of a row, with `null_is_none` as in `expressions.media`."""
    found, null_is_none = [], null_is_none or len(fields) > 1
    for field in fields:
        there = value(row, field)
        if isinstance(field.kind, ArrayType):
            found += [_medium(one, field.kind.elementType) for one in there or ()]
        elif there is not None or not null_is_none:
            found.append(_medium(there, field.kind))
    return found


def _medium(one, kind) -> dict | None:
    if one is None:
        return None
    if not isinstance(kind, StructType):
        return {"bytes": one, "path": None}
    path = field_of(kind, "path")
    return {"bytes": one[field_of(kind, "bytes").path[0]], "path": one[path.path[0]] if path else None}


def _part(kind: str | None, text: str | None = None) -> dict:
    return {"type": kind, "text": text}


def _placeholders(num_images: int, num_videos: int = 0) -> list[dict]:
    return [_part("image")] * num_images + [_part("video")] * num_videos


def _exchange(placeholders: list[dict], question: str | None, answer: str | None) -> list[dict]:
    return [
        {"role": "user", "content": [*placeholders, _part("text", question)]},
        {"role": "assistant", "content": [_part("text", answer)]},
    ]


def _pairs(row: dict, turns: Turns) -> list[tuple] | None:
    """A row's turns as pairs of their two fields; None when there is no list."""
    there, (first, second) = value(row, turns.field), turns.names
    if there is None:
        return None
    if not turns.is_transposed:
        return [(None, None) if turn is None else (turn[first], turn[second]) for turn in there]
    a, b = there[first], there[second]
    if a is None or b is None:
        return None
    longest = max(len(a), len(b))
    return list(zip(*(x + [None] * (longest - len(x)) for x in (list(a), list(b))), strict=True))


def _finevision(row: dict, adapter: FineVision, source: Source) -> PlainSample:
    images, turns = media(row, adapter.images, null_is_none=True), _pairs(row, adapter.texts) or []
    ratings = {name: value(row, field) or () for name, field in adapter.ratings}
    kept = [turn for i, turn in enumerate(turns) if _passes(ratings, i, source)]
    if not turns or any(None in turn for turn in turns):
        reason = "texts_missing"
    else:
        reason = None if kept else "ratings"
    messages = [m for i, turn in enumerate(kept) for m in _exchange(_placeholders(0 if i else len(images)), *turn)]
    return PlainSample(messages, images, reason, len(turns) - len(kept))


def _passes(ratings: dict[str, list], i: int, source: Source) -> bool:
    given = {name: values[i] for name, values in ratings.items() if i < len(values)}
    return all(rating is None or rating >= getattr(source.min_ratings, name) for name, rating in given.items())


def _asked(row: dict, adapter: Vqa | Captions, question: str | None, answer: str | None) -> PlainSample:
    images = media(row, adapter.images, null_is_none=bool(adapter.videos))
    videos = media(row, adapter.videos, null_is_none=bool(adapter.images))
    is_missing = question is None or answer is None or answer.strip(" ") == ""
    messages = _exchange(_placeholders(len(images), len(videos)), question, answer)
    return PlainSample(messages, images + videos, "texts_missing" if is_missing else None, 0)


def _answer(answers, field: Field) -> str | None:
    """The text given most often, the earliest of those that are level."""
    if not isinstance(field.kind, ArrayType):
        return answers
    if isinstance(field.kind.elementType, StructType):
        name = field_of(field.kind.elementType, "answer").path[0]
        answers = [answer and answer[name] for answer in answers or ()]
    counts = Counter(answer for answer in answers or () if answer is not None)
    return counts.most_common(1)[0][0] if counts else None  # of equals, the first met


def _first(captions, field: Field) -> str | None:
    if isinstance(field.kind, ArrayType):
        return next((caption for caption in captions or () if caption is not None), None)
    return captions


def _messages(row: dict, adapter: Messages) -> PlainSample:
    turns = _pairs(row, adapter.turns)
    images, videos = (media(row, fields, null_is_none=True) for fields in (adapter.images, adapter.videos))
    if adapter.embedded and not adapter.images:
        name, kind = adapter.embedded.path[0], adapter.embedded.kind
        parts = [part for _, content in turns or () for part in content or () if part is not None]
        images = [_medium(part[name], kind) for part in parts if part[name] is not None]
    messages = [{"role": _role(role), "content": _content(content, adapter)} for role, content in turns or ()]
    reason = _reason(messages)
    if reason is None and not adapter.is_sharegpt:
        _place(messages, _placeholders(len(images), len(videos)))
    return PlainSample(messages, images + videos, reason, 0)


def _role(role: str | None) -> str | None:
    return role and ROLES.get(role.lower(), role.lower())


def _content(content, adapter: Messages) -> list[dict] | None:
    kind, splits = adapter.turns.kinds[1], adapter.is_sharegpt and (adapter.images or adapter.videos)
    if isinstance(kind, ArrayType):
        type_, text = (field_of(kind.elementType, name).path[0] for name in ("type", "text"))
        return None if content is None else [_named(p and p[type_], p and p[text]) for p in content]
    if not splits:
        return [_part("text", content)]
    return None if content is None else _split(content, adapter)


def _named(kind: str | None, text: str | None) -> dict:
    kind = TYPES.get(kind, kind)
    return _part(kind, text if kind == "text" else None)


def _split(text: str, adapter: Messages) -> list[dict]:
    """As `messages._split`."""
    markers = "<image>|<video>" if adapter.videos else "<image>"
    kinds = {"<image>": "image" if adapter.images else "video", "<video>": "video"}
    pieces = re.split(f"({markers})", re.sub(f"\n?({markers})\n?", r"\1", text))
    found = [_part(kinds[p]) if re.fullmatch(markers, p) else _part("text", p) for p in pieces if p]
    return found or [_part("text", text)]


def _reason(messages: list[dict]) -> str | None:
    if not messages or any(m["role"] is None or m["content"] is None for m in messages):
        return "texts_missing"
    parts = [part for message in messages for part in message["content"]]
    if any(p["type"] is None or (p["type"] == "text" and p["text"] is None) for p in parts):
        return "texts_missing"
    return None if all(p["type"] in ("text", "image", "video") for p in parts) else "part_unsupported"


def _place(messages: list[dict], placeholders: list[dict]) -> None:
    """Put placeholders before the first question, where nothing says where they stand."""
    if all(part["type"] == "text" for message in messages for part in message["content"]):
        roles = [message["role"] for message in messages]
        first = messages[roles.index("user") if "user" in roles else 0]
        first["content"] = [*placeholders, *first["content"]]
