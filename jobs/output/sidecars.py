"""Sidecars of a pull request's finished shards (`pull_request`): their names, what is in them, and what they tell.

A sidecar on the main branch is what is left when somebody merged such a pull request before its run was done. The
files that it names are then there and belong to no dataset: the manifest, if there is one, is of the run before.

    main   data/train/00000.parquet   of the unfinished run, by .packing/00001.parquet   left
           data/train/00001.parquet   of the run before                                  in the manifest

A row counts only while the file there has the SHA-256 that it names: what somebody put in its place is theirs.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping

from jobs.output.finished_shard import load_rows

FOLDER = ".packing"
_NAME = re.compile(rf"{re.escape(FOLDER)}/(\d{{5}})\.parquet")
logger = logging.getLogger(__name__)


def name_of(part: int) -> str:
    """Path of the sidecar of a pull request's part."""
    return f"{FOLDER}/{part:05d}.parquet"


def names_in(paths: Iterable[str]) -> list[str]:
    """Those of the paths that are sidecars', sorted."""
    return sorted(path for path in paths if _NAME.fullmatch(path))


def last_part(paths: Iterable[str]) -> int:
    """The highest part of which there is a sidecar, 0 for none."""
    return max((int(_NAME.fullmatch(path)[1]) for path in names_in(paths)), default=0)


def read_rows(name: str, data: bytes) -> list[dict]:
    """The rows of a sidecar; none where it cannot be read: its shards are packed again."""
    try:
        return load_rows(data)
    except ValueError as error:
        logger.warning("%s cannot be read, its shards are packed again: %s", name, error)
        return []


def is_there(row: dict, files: Mapping[str, str]) -> bool:
    """Whether a row's file, if it has one, is among `files` (path → SHA-256) with the row's content."""
    return not row["num_bytes"] or files.get(row["path"]) == row["sha256"]


def left_in(files: Mapping[str, str], read: Callable[[str], bytes]) -> tuple[str, ...]:
    """Paths of shards that an unfinished run left on a branch of these files (path → SHA-256), sorted."""
    rows = [row for name in names_in(files) for row in read_rows(name, read(name))]
    return tuple(sorted({row["path"] for row in rows if row["num_bytes"] and is_there(row, files)}))
