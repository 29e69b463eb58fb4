"""Messages about a wrong configuration: the field, its value and what is allowed."""

import difflib
from typing import Any

from pydantic import BaseModel

__all__ = ["message"]

_MESSAGES = {"tuple_type": "must be a list", "too_short": "must have at least one item"}


def message(fault: Any, tree: type[BaseModel]) -> str:
    """The line for a fault that pydantic found in `tree` (an item of `ValidationError.errors()`)."""
    field = ".".join(str(part) for part in fault["loc"]) or "configuration"
    if fault["type"] == "extra_forbidden":
        allowed = _allowed(fault["loc"][:-1], tree)
        close = difflib.get_close_matches(str(fault["loc"][-1]), allowed, n=1, cutoff=0.7)
        meant = f"did you mean {close[0]}? Allowed" if close else "allowed"
        return f"{field}: unknown key; {meant} here are {', '.join(allowed)}"
    if fault["type"] == "missing":
        return f"{field}: is required"
    if fault["type"] == "value_error":
        message = str(fault["ctx"]["error"])
        return message if field == "configuration" else f"{field}: {message}"
    if fault["type"] == "model_type":
        return f"{field}: {fault['input']!r} is refused: must have the keys {', '.join(_allowed(fault['loc'], tree))}"
    if fault["type"] == "string_type":
        return f"{field}: {fault['input']!r} is refused: must be text; in YAML, numbers and dates need quotes for that"
    return f"{field}: {fault['input']!r} is refused: {_MESSAGES.get(fault['type'], fault['msg'])}"


def _allowed(loc: tuple, model: Any) -> list[str]:
    """The names of the fields at a place in a tree of models."""
    for part in loc:
        if not isinstance(part, int):
            annotation = model.model_fields[part].annotation
            model = getattr(annotation, "__args__", (annotation,))[0]
    return list(model.model_fields)
