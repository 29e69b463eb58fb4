"""A configuration from a YAML file plus `key=value` overrides, and its fields as `--help` prints them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from packing_udfs.config import Config, ConfigError, parse

__all__ = ["describe", "load"]


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses the same key twice in a mapping. YAML's own loader takes the last one."""

    def construct_mapping(self, node, deep=False):
        seen = []  # not a set, because a key may be a list; the loader itself refuses that
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value} stands twice", key.start_mark)
            seen.append(key.value)
        return super().construct_mapping(node, deep)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file and apply overrides (`pack.seq_len=8192`, `sources.0.split=test`; values are YAML).

    Raises ConfigError, which names the file or field, the value and what is allowed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration {path}: cannot be read: {error}") from None
    try:
        tree = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"configuration {path}: is not YAML: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"configuration {path}: must be a mapping with the keys {', '.join(Config.model_fields)}")
    for override in overrides:
        _override(tree, override)
    return parse(tree)


def _override(tree: Any, text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"override {text!r}: must be key=value, as in pack.seq_len=8192")
    *parents, last = key.split(".")
    for part in parents:
        at = _key(tree, part, key)
        tree = tree.setdefault(at, {}) if isinstance(tree, dict) else tree[at]
        if not isinstance(tree, dict | list):
            raise ConfigError(f"override {text!r}: {part} is a value, not a group of fields")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"override {text!r}: the value is not YAML") from None
    tree[_key(tree, last, key)] = parsed


def _key(tree: dict | list, part: str, key: str) -> Any:
    """The part of an override's key as a key of a mapping, or as an index into a list."""
    if isinstance(tree, dict):
        return part
    if not part.isdecimal() or int(part) >= len(tree):
        raise ConfigError(f"override {key}: {part!r} is no index into a list of {len(tree)}")
    return int(part)


def describe(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """The dotted name, default and meaning of each field, for `--help`."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        args = getattr(annotation, "__args__", ())
        inner = next((a for a in (annotation, *args) if isinstance(a, type) and issubclass(a, BaseModel)), None)
        dotted = f"{prefix}{name}"
        if inner is None:
            default = "required" if field.is_required() else f"default {field.default!r}"
            choices = [str(arg) for arg in args if isinstance(arg, str)]
            one_of = f"; one of {', '.join(choices)}" if choices else ""
            yield f"  {dotted} ({default}{one_of})\n      {field.description}"
        else:
            yield from describe(inner, f"{dotted}.N." if args else f"{dotted}.")
