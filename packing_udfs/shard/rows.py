"""A shard's rows as the grouped UDF is given them, put in order and freed from pandas; and which of them repeat."""

import json
from typing import Any

import pandas as pd

from packing_udfs import contract

__all__ = ["Rows", "duplicates"]


class Rows:
    """A shard's samples in the shard's order: the columns as plain lists, nulls as None.

    Spark hands columns of objects to pandas, whose access by row costs more than the tokenizer; nested lists arrive
    as NumPy arrays of dicts, and null integers turn their column into floats with NaN.
    """

    def __init__(self, samples: pd.DataFrame):
        samples = samples.sort_values(["sample_id", "source", "file", "row", "copy"], kind="stable")
        column = {name: samples[name].astype(object) for name in contract.SAMPLE_SCHEMA.names}
        plain = {name: values.where(values.notna(), None).tolist() for name, values in column.items()}
        self.sample_id: list[int] = plain["sample_id"]
        self.source: list[str] = plain["source"]
        self.file: list[str] = plain["file"]
        self.row: list[int] = plain["row"]
        self.copy = [int(value or 0) for value in plain["copy"]]
        self.reason: list[str | None] = plain["reason"]
        self.num_turns_dropped = [int(value or 0) for value in plain["num_turns_dropped"]]
        self._kept = {
            name: plain[column.keeps]
            for name, column in contract.PACK_COLUMNS.items()
            if column.keeps not in (None, "sample_id", "source")
        }
        self._messages: list = plain["messages"]
        self._tools: list[str | None] = plain["tools"]
        self.images: list[list[Any]] = [[] if value is None else list(value) for value in plain["images"]]

    def __len__(self) -> int:
        return len(self.sample_id)

    def kept(self, i: int) -> dict[str, Any]:
        """What packs keep of a row in further columns of the contract, by their names."""
        return {name: values[i] for name, values in self._kept.items()}

    def messages(self, i: int) -> list[dict] | None:
        """A row's messages as lists and dicts, with all that the template needs; None when there are none, or a null
        stands where text should be. Raises ValueError for text that should be JSON and is not.

        Made when asked for: so many small objects at a time would keep Python's garbage collector busy.
        """
        plain = []
        for message in () if self._messages[i] is None else self._messages[i]:
            if message is None or message["content"] is None:
                return None
            content = [None if c is None else {"type": c["type"], "text": c["text"]} for c in message["content"]]
            if any(part is None or (part["type"] == "text" and part["text"] is None) for part in content):
                return None
            plain.append({"role": message["role"], "content": content, **parsed(message.get("extra"), {})})
        return plain or None

    def tools(self, i: int) -> list[dict] | None:
        """The tools that a row's conversation may call. Raises ValueError as `messages`."""
        return parsed(self._tools[i], None)


def parsed(text: str | None, nothing: Any) -> Any:
    """A JSON value whose fields may be JSON once more, as tool calls are stored as text. Raises ValueError."""
    if not text:
        return nothing
    try:
        value = json.loads(text)
        if isinstance(value, dict):
            return {name: json.loads(v) if _is_nested(name, v) else v for name, v in value.items()}
        return value
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def _is_nested(name: str, value: Any) -> bool:
    return name in ("tool_calls", "function_call") and isinstance(value, str)


def _content(rows: Rows, i: int):
    """What makes a sample: image bytes (not paths) and messages, in a form that compares by value."""
    return [None if image is None else image["bytes"] for image in rows.images[i]], rows.messages(i), rows.tools(i)


def duplicates(rows: Rows) -> set[int]:
    """Rows whose content equals an earlier row's of the same copy number; equal ids are confirmed by bytes."""
    found: set[int] = set()
    first: dict[tuple[int, int], list[int]] = {}
    for i, key in enumerate(zip(rows.sample_id, rows.copy, strict=True)):
        if rows.reason[i] is not None:
            continue
        earlier = first.setdefault(key, [])
        if any(_content(rows, i) == _content(rows, j) for j in earlier):
            found.add(i)
        else:
            earlier.append(i)
    return found
