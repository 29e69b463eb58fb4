"""What a name stands for: a folder, here or behind a URL, or a dataset repository on the Hub."""

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

import fsspec

__all__ = ["Location", "is_folder", "is_repository", "locate", "open_folder"]

_HUB_URL = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/[^/@]+/[^/@]+|[^/@]+))?/?")


@dataclass(frozen=True)
class Location:
    """A folder by its absolute path or URL, or a repository by owner/name, at `revision` if that was given."""

    name: str
    is_folder: bool
    revision: str | None = None


def is_folder(name: str) -> bool:
    """Whether a name alone shows that it is a folder: an absolute path, or a URL such as s3://… (but not hf://…)."""
    return name.startswith("/") or ("://" in name and not name.startswith("hf://"))


def is_repository(name: str) -> bool:
    """Whether a name has the form owner/name. The Hub has more rules for its characters."""
    return name.count("/") == 1 and not name.startswith(("/", ".", "~"))


def locate(name: str | os.PathLike[str], revision: str | None = None) -> Location:
    """What a name stands for: a folder that exists here, any fsspec URL, `owner/name` or
    `hf://datasets/owner/name[@revision]`. Raises ValueError for other names and for a revision that does not fit."""
    text = os.fspath(name)
    if text.startswith("hf://"):
        if not (found := _HUB_URL.fullmatch(text)):
            raise ValueError(f"{text}: must be hf://datasets/owner/name; @revision may follow")
        named = unquote(found[2]) if found[2] else None
        if named and revision not in (None, named):
            raise ValueError(f"{text} and revision={revision!r}: two revisions; give one")
        return Location(found[1], False, named or revision)
    if "://" in text or os.path.isdir(text):
        if revision is not None:
            raise ValueError(f"{text}: is a folder, which has no revision {revision!r}")
        return Location(text if "://" in text else os.path.abspath(text), True)
    if not is_repository(text):
        raise ValueError(f"{text}: is no folder here, no URL and no repository owner/name")
    from huggingface_hub.utils import validate_repo_id  # here: a configuration is read without it

    validate_repo_id(text)
    return Location(text, False, revision)


def open_folder(folder: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """fsspec's file system for a folder, and the folder's name in it. Raises ValueError if fsspec cannot open it."""
    try:
        return fsspec.core.url_to_fs(folder)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{folder} cannot be opened: {error}") from None
