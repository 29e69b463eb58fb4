"""Sidecars: Parquet files that tell of finished shards whose run is not published yet.

A sidecar on the main branch is left over when somebody merged such a pull request before its run was done. The files
that it names belong to no dataset: the manifest, if there is one, is of the run before.

    main   data/train/00000.parquet   of the unfinished run, named in .packing/00001.parquet   left over
           data/train/00001.parquet   of the run before                                        in the manifest

A ShardFile counts only while the file there has the SHA-256 that it names: another content is somebody else's.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping

from jobs.output.finished_shard import ShardFile, load_files

__all__ = ["FOLDER", "is_there", "last_part", "left_in", "name_of", "names_in", "read_sidecar"]

FOLDER = ".packing"
_NAME = re.compile(rf"{re.escape(FOLDER)}/(\d{{5}})\.parquet")
logger = logging.getLogger(__name__)


def name_of(part: int) -> str:
    """Path of the sidecar of a pull request's part."""
    return f"{FOLDER}/{part:05d}.parquet"


def names_in(paths: Iterable[str]) -> list[str]:
    """The paths that are sidecars, sorted."""
    return sorted(path for path in paths if _NAME.fullmatch(path))


def last_part(paths: Iterable[str]) -> int:
    """The highest part that has a sidecar, 0 for none."""
    return max((int(found[1]) for path in paths if (found := _NAME.fullmatch(path))), default=0)


def read_sidecar(name: str, data: bytes) -> list[ShardFile]:
    """What a sidecar tells. One that cannot be read tells nothing: its shards are packed again."""
    try:
        return load_files(data)
    except ValueError as error:
        logger.warning("%s cannot be read, its shards are packed again: %s", name, error)
        return []


def is_there(file: ShardFile, contents: Mapping[str, str]) -> bool:
    """Whether a shard's file, if it has one, is among `contents` (path → SHA-256) unchanged."""
    return not file.num_bytes or contents.get(file.path) == file.sha256


def left_in(contents: Mapping[str, str], read: Callable[[str], bytes]) -> tuple[str, ...]:
    """Paths of shards that an unfinished run left on a branch with these `contents` (path → SHA-256), sorted."""
    files = [file for name in names_in(contents) for file in read_sidecar(name, read(name))]
    return tuple(sorted({file.path for file in files if file.num_bytes and is_there(file, contents)}))
