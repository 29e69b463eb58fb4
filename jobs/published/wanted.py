"""Which samples a takedown takes: by id, or by where they come from."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["ORIGIN_COLUMNS", "Origin", "TakedownError", "Wanted", "Where", "ids_of", "where_of"]

ORIGIN_COLUMNS = ("sample_sources", "sample_files", "sample_rows")  # of packs, in the order of `Origin`


class TakedownError(ValueError):
    """A takedown that cannot be done as asked; the message says why. Nothing was published."""


class Origin(NamedTuple):
    """Where a sample comes from: a source of the configuration, a file of it and a row in that."""

    source: str
    file: str
    row: int


class Where(NamedTuple):
    """Samples by where they come from; None is any."""

    source: str | None = None
    file: str | None = None
    row: int | None = None

    def takes(self, origin: Origin) -> bool:
        return all(wanted in (None, there) for wanted, there in zip(self, origin, strict=True))


@dataclass(frozen=True)
class Wanted:
    """Which samples go: by id, and by where they come from."""

    ids: frozenset[int] = frozenset()
    where: tuple[Where, ...] = ()

    def takes(self, sample_id: int, origin: Origin) -> bool:
        return sample_id in self.ids or any(where.takes(origin) for where in self.where)


def where_of(words: Sequence[str]) -> Where:
    """`file=a.parquet row=7` as samples by where they come from. Raises TakedownError."""
    given: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in Where._fields or not value or name in given or (name == "row" and not value.isdecimal()):
            raise TakedownError(f"--where: {word!r} is refused: must be source=NAME, file=PATH or row=NUMBER, once")
        given[name] = value
    if "row" in given and "file" not in given:
        raise TakedownError(f"--where: row={given['row']} needs file=PATH beside it, in which it is counted from 0")
    return Where(given.get("source"), given.get("file"), int(given["row"]) if "row" in given else None)


def ids_of(option: str, text: str) -> set[int]:
    """The ids in a text. Raises TakedownError, which names the option that gave it."""
    words = text.replace(",", " ").split()
    if odd := next((word for word in words if not re.fullmatch(r"[+-]?\d+", word)), None):
        raise TakedownError(f"{option}: {odd!r} is refused: ids are whole numbers, as `sample_ids` has them")
    if not words:
        raise TakedownError(f"{option}: there are none")
    return {int(word) for word in words}
