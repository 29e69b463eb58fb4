"""How a folder shows one state of a dataset at a time: `published.json` maps the dataset's paths to files.

A folder has no commits, and no file system or object store replaces several files at once. So a published file never
changes: its name has 16 digits of its SHA-256. One small file, replaced last and as a whole, maps paths to files.

    published.json                                    {"files": {"data/train/00000.parquet": {"file": …}, …}, …}
    data/train/00000-5f70bf18a086007016.parquet       the file of data/train/00000.parquet

A reader looks paths up there once, so it sees the old dataset or the new one, never parts of both. Files of the last
state stay until the next one, for readers that still use them. Without `published.json` a folder's paths are its files.
Rejected: plain file names (a reader sees parts of both states while files are replaced), a folder per state (one
changed shard in a hundred copies all of them).
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

__all__ = ["DIGITS", "PUBLISHED", "FolderError", "Stored", "Tree", "is_stored", "load", "places", "stored_name"]

PUBLISHED = "published.json"
DIGITS = 16
_STORED = re.compile(rf".+-[0-9a-f]{{{DIGITS}}}(\.\w+)?")


class FolderError(ValueError):
    """A published.json that a packing job did not write."""


@dataclass(frozen=True)
class Stored:
    """The file of a dataset's path: its own path in the folder, its bytes and SHA-256 (hex)."""

    file: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Tree:
    """One state of a dataset: path → file, the fingerprints of the run that made it, and the files before it.

    before: files of the last state that stay until the next one, for readers and runs that still use them;
    gone: files that were removed when it was published, or will be with the next state if that run was killed.
    """

    files: Mapping[str, Stored]
    run: str = ""
    shards: str = ""
    before: Sequence[str] = ()
    gone: Sequence[str] = ()

    @property
    def commit(self) -> str:
        """SHA-256 of paths and contents, used as a commit."""
        contents = [[path, stored.sha256] for path, stored in sorted(self.files.items())]
        return hashlib.sha256(json.dumps(contents).encode()).hexdigest()

    def dump(self) -> bytes:
        """The content of published.json."""
        files = {path: asdict(stored) for path, stored in sorted(self.files.items())}
        tree = {"commit": self.commit, "run": self.run, "shards": self.shards, "files": files}
        tree |= {"before": sorted(self.before), "gone": sorted(self.gone)}
        return json.dumps(tree, indent=1, ensure_ascii=False).encode() + b"\n"

    @property
    def ours(self) -> set[str]:
        """All files that runs have written, as far as it says. A run may remove these and no others."""
        return {stored.file for stored in self.files.values()} | {*self.before, *self.gone}


def load(data: bytes) -> Tree:
    """The state in a published.json. Raises FolderError."""
    try:
        tree = json.loads(data)
        files = {path: Stored(**stored) for path, stored in tree["files"].items()}
        found = Tree(files, tree["run"], tree["shards"], tuple(tree["before"]), tuple(tree.get("gone", ())))
        if found.commit != tree["commit"]:
            raise FolderError(f"{PUBLISHED}: its files are not those of its commit {tree['commit']}")
        return found
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FolderError(f"{PUBLISHED} is not as a packing job writes it: {error!r}") from None


def places(read: Callable[[str], bytes]) -> dict[str, str]:
    """Path → file of a folder's dataset; empty for a folder without published.json.

    `read` returns a file of the folder or raises FileNotFoundError. Raises FolderError.
    """
    try:
        tree = load(read(PUBLISHED))
    except FileNotFoundError:
        return {}
    return {path: stored.file for path, stored in tree.files.items()}


def stored_name(path: str, sha256: str) -> str:
    """The file for a path: data/train/00000-5f70….parquet for data/train/00000.parquet."""
    name = PurePosixPath(path)
    return str(name.with_name(f"{name.stem}-{sha256[:DIGITS]}{name.suffix}"))


def is_stored(path: str) -> bool:
    """Whether a file's name is of this form."""
    return _STORED.fullmatch(PurePosixPath(path).name) is not None
