"""How a folder shows one state of a dataset at a time: `published.json` says which file stands for which path.

A folder has no commits, and no file system or object store replaces several files at once. So a file of a published
dataset never changes: it is stored under a name with 16 digits of its SHA-256, and one small file, replaced last and
whole, maps the dataset's paths to the files.

    published.json                                    {"files": {"data/train/00000.parquet": {"file": …}, …}, …}
    data/train/00000-5f70bf18a086007016.parquet       stands for data/train/00000.parquet

Whoever reads looks paths up there once and keeps to what it found: it sees the old dataset or the new one, never parts
of both. Files of the state before stay until the next one, for readers that are still at them. A folder without
`published.json` is what its files are called. Rejected: files under their plain names (a reader sees half of each
while they are replaced), a folder for each state (a changed shard in a hundred copies all of them).
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

PUBLISHED = "published.json"
DIGITS = 16
_STORED = re.compile(rf".+-[0-9a-f]{{{DIGITS}}}(\.\w+)?")


class FolderError(ValueError):
    """A published.json that is none."""


@dataclass(frozen=True)
class Stored:
    """A file that stands for a path of the dataset: its path in the folder, bytes and SHA-256 (hex)."""

    file: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Tree:
    """One state of a dataset: path → file, the fingerprints of the run that made it, and the files before it.

    before: files that it does not name and that stay until the next state, for readers and runs that are still at them;
    gone: files that went when it was published, or go with the next state where that run was killed in between.
    """

    files: Mapping[str, Stored]
    run: str = ""
    shards: str = ""
    before: Sequence[str] = ()
    gone: Sequence[str] = ()

    @property
    def commit(self) -> str:
        """SHA-256 of paths and contents: what stands for a commit."""
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
        """All files of the folder that runs have written, as far as it says: what may be removed, and nothing else."""
        return {stored.file for stored in self.files.values()} | {*self.before, *self.gone}


def load(data: bytes) -> Tree:
    """The tree of a published.json. Raises FolderError."""
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
    """Path → file of a folder's dataset; empty for a folder without published.json, where a path is a file.

    `read` gives a file of the folder and raises FileNotFoundError when there is none. Raises FolderError.
    """
    try:
        tree = load(read(PUBLISHED))
    except FileNotFoundError:
        return {}
    return {path: stored.file for path, stored in tree.files.items()}


def stored_name(path: str, sha256: str) -> str:
    """Where a path's file is stored: data/train/00000-5f70….parquet for data/train/00000.parquet."""
    name = PurePosixPath(path)
    return str(name.with_name(f"{name.stem}-{sha256[:DIGITS]}{name.suffix}"))


def is_stored(path: str) -> bool:
    """Whether a file in the folder has such a name."""
    return _STORED.fullmatch(PurePosixPath(path).name) is not None
