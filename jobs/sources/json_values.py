"""JSON where text was expected: `datasets` stores a column as JSON text when its rows differ in type.

One number among a million texts makes all of them JSON, in which a text has quotes. So values are decoded as they are
read. A text becomes the text. Conversations become turns of one type, whatever each of them is: a content that is text
and one that is a list of parts are both a list of parts. A value that is neither text nor parts becomes a part of type
`json`, which no adapter takes, so its row is quarantined. In another column that an adapter takes texts from, lists and
objects are no text, so the row's text is missing. Other JSON stays JSON text.

    "a0" and 42 in messages[].content    ─▶  [{"type": "text", "text": "a0"}]  and  [{"type": "json", "text": "42"}]

Cost: a JSON parse of each value, in Python, of such columns alone.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa

__all__ = ["decoded", "decoded_type", "has_json"]

_TURNS = ("messages", "conversations")
_CALLS = ("tool_calls", "function_call")
_TEXTS = ("reasoning_content", "reasoning", "thinking", "name", "tool_call_id")
_WEIGHTS = ("weight", "train", "training", "trainable", "loss")
PARTS = pa.list_(pa.struct([("type", pa.string()), ("text", pa.string()), ("index", pa.int64())]))
TURN = pa.struct(
    [
        ("role", pa.string()),
        ("content", PARTS),
        *((name, pa.string()) for name in _CALLS),
        *((name, pa.string()) for name in _TEXTS),
        *((name, pa.float64()) for name in _WEIGHTS),
        ("other", pa.string()),
    ]
)


def is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.JsonType)


def has_json(kind: pa.DataType) -> bool:
    """Whether there is JSON in a type, at any depth."""
    if pa.types.is_struct(kind):
        return any(has_json(field.type) for field in kind)
    return has_json(kind.value_type) if _is_list(kind) else is_json(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def decoded_type(name: str, kind: pa.DataType) -> pa.DataType:
    """The type of a column's values when they are decoded; the same type where it has no JSON."""
    if not has_json(kind):
        return kind
    if name.lower() in _TURNS:
        return pa.list_(TURN)
    return _texts(kind)


def _texts(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _texts(field.type)) for field in kind])
    if _is_list(kind):
        return pa.list_(_texts(kind.value_type))
    return pa.string() if is_json(kind) else kind


def decoded(name: str, column: pa.ChunkedArray, *, is_said: bool = False) -> pa.ChunkedArray:
    """A column's values, decoded. `is_said`: an adapter takes its texts, so lists and objects in it become null."""
    is_turns = name.lower() in _TURNS
    of_json = _parsed if is_turns else _said if is_said else _text
    kind, decode = decoded_type(name, column.type), _decoder(column.type, of_json)
    chunks = []
    for chunk in column.chunks:
        values = map(decode, chunk.to_pylist())
        chunks.append(pa.array(list(map(_turns, values) if is_turns else values), kind))
    return pa.chunked_array(chunks, kind)


def _decoder(kind: pa.DataType, of_json: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What replaces the JSON texts inside a value of a type by what `of_json` makes of them."""
    if is_json(kind):
        return of_json
    if pa.types.is_struct(kind):
        fields = {field.name: _decoder(field.type, of_json) for field in kind if has_json(field.type)}
        return lambda value: value and {name: fields.get(name, _same)(inner) for name, inner in value.items()}
    if _is_list(kind) and has_json(kind):
        inner = _decoder(kind.value_type, of_json)
        return lambda value: None if value is None else list(map(inner, value))
    return _same


def _same(value: Any) -> Any:
    return value


def _text(value: str | None) -> str | None:
    """A text that JSON holds; other JSON as it is."""
    found = _parsed(value)
    return found if isinstance(found, str) else value


def _said(value: str | None) -> str | None:
    """As `_text`; null for a list or an object, which nobody says."""
    return None if isinstance(_parsed(value), list | dict) else _text(value)


def _parsed(value: str | None) -> Any:
    """What JSON text stands for; text that is no JSON stands for itself."""
    if value is None:
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _turns(found: Any) -> list[dict | None] | None:
    return [_turn(turn) for turn in found] if isinstance(found, list) else None


def _turn(turn: Any) -> dict | None:
    """A turn of {role, content} or {from, value}; None for anything else. `other`: fields that no adapter knows."""
    if not isinstance(turn, dict):
        return None
    role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
    known = {"role", "from", "content", "value", *_CALLS, *_TEXTS, *_WEIGHTS}
    other = {name: value for name, value in turn.items() if name not in known and value is not None}
    return {
        "role": role if isinstance(role, str) else None,
        "content": None if content is None else [_part(one) for one in _listed(content)],
        "other": _dumped(other) if other else None,
        **{name: _dumped(turn[name]) for name in _CALLS if turn.get(name)},
        **{name: _as_text(turn[name]) for name in _TEXTS if turn.get(name) is not None},
        **{name: _as_weight(turn[name]) for name in _WEIGHTS if turn.get(name) is not None},
    }


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else _dumped(value)


def _as_weight(value: Any) -> float:
    """0 and 1 for false and true; a value that says neither is no weight, and its row is quarantined."""
    return float(value) if isinstance(value, int | float) else math.nan


def _listed(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def _part(value: Any) -> dict:
    if isinstance(value, str):
        return {"type": "text", "text": value}
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        text, index = value.get("text"), value.get("index")
        text = text if isinstance(text, str) or text is None else _dumped(text)
        return {"type": value["type"], "text": text, "index": index if isinstance(index, int) else None}
    return {"type": "json", "text": _dumped(value)}
