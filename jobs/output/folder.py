"""Packs to a folder: a Unity Catalog Volume, a mounted disk, or an object store that fsspec opens.

The files of a dataset are those of the Hub, byte for byte; `packing_udfs.storage.folder_state` tells how a folder shows
all files of a run at once. In the order of a run:

    upload    a worker copies its finished shard: written locally, then copied from front to end, as Volumes need it
    add       the driver notes the shard's results in .packing/, so that a later attempt goes on from there
    publish   small files, a check that every file is there, then published.json, which makes the run visible
    after it  plain copies of what people open (README.md, report.html); the files of the state before last are removed

On a disk a file gets its name when it is whole; an object store takes a PUT whole or not at all. So a run that is
killed at any point leaves the dataset as it was, and files that the next run uses or removes.

A file that is there is reused only if its content is right (`Store.holds`). So the same job again repairs a damaged
folder; to find it whole costs one read of the dataset.

Only files that a run wrote are ever removed: those that published.json names, now or before, and those with an empty
note in .packing/written/. The note is written before the file and removed when published.json has the name. So a folder
may hold other files of any name. Rejected: going by names (files of a dataset without its published.json look alike).

One run at a time may write to a folder. There is no lock: a run checks published.json right before it replaces it, and
again afterwards, with all files. If two runs meet in the milliseconds between check and write, the later state stands
and is whole, and the earlier run fails unless its last check is over. Beside a takedown, which removes at once, the
later run may find files missing; it fails and says so. Rejected: writing in place (readers would see it), a lock file
(a crash leaves it; locks of the system do not reach over all mounts), fsspec's transactions (they rename file by file).
"""

import hashlib
import logging
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from jobs.output.finished_shard import ShardFile, dump_files
from jobs.output.folder_files import Store
from jobs.output.interface import Head, MovedError, OutputError, Published, PublishError, Run
from jobs.output.sidecars import FOLDER as SIDECARS
from jobs.output.sidecars import read_sidecar
from packing_udfs.contract import REPORT
from packing_udfs.storage.byte_source import Source
from packing_udfs.storage.folder_state import DIGITS, PUBLISHED, FolderError, Stored, Tree, is_stored, load, stored_name
from packing_udfs.storage.folders import open_folder
from packing_udfs.storage.hub import open_source

__all__ = ["Folder", "FolderDraft"]

WRITTEN = f"{SIDECARS}/written/"  # notes of files that published.json does not name yet
THREADS = 8  # files read at a time
RETRY_SECONDS = 60  # a read is repeated for so long
_PARTS = ("data", "manifest", "quarantine")  # folders of a dataset; people open the other files
_HALF = re.compile(r"\.(.+)\.[0-9a-f]{32}")  # an unfinished copy; the group is the file's name
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Folder(Published):
    """A folder as an output: an absolute path or a URL."""

    folder: str
    keeps_before: bool = True  # files of the state before, until the next one

    @cached_property
    def store(self) -> Store:
        return Store(*open_folder(self.folder))

    def __getstate__(self) -> dict:
        # Without the store: a file system's connections belong to a process.
        return {"folder": self.folder, "keeps_before": self.keeps_before}

    def check_token(self) -> None:
        """Raises OutputError when nothing opens such an address, or a file has it."""
        try:
            is_file = self.store.is_file()
        except (ValueError, OSError) as error:
            raise OutputError(f"output.repo: {error}") from None
        if is_file:
            raise OutputError(f"output.repo: {self.folder} is a file; name a folder, which may be a new one")

    def read_head(self) -> Head:
        """What the folder shows; an empty Head when there is none. Raises OutputError."""
        try:
            return self._read_head()
        except UnicodeDecodeError as error:
            raise OutputError(f"output.repo: the README.md in {self.folder} is not UTF-8, repair it: {error}") from None
        except (OSError, FolderError) as error:
            raise OutputError(f"output.repo: {self.folder} cannot be read: {error}") from None

    def _read_head(self) -> Head:
        tree, files = self.tree(), self.store.list()
        readme = self.store.read("README.md") if "README.md" in files else b""  # the copy that people edit
        if tree is None:
            paths = sorted(path for path in files if not is_stored(path) and path[0] != ".")
            return Head(None, tuple(paths), readme.decode())
        return Head.of(tree.commit, tree.files, readme, lambda path: self.store.read(tree.files[path].file))

    def create(self, private: bool) -> Head:
        """Make the folder unless it exists, write to it as a test, and return what it shows. Raises OutputError."""
        probe = f"{SIDECARS}/probe-{uuid.uuid4().hex}"
        try:
            self.store.put(probe, b"")
            self.store.remove([probe])
        except OSError as error:
            raise OutputError(f"output.repo: {self.folder} cannot be written to: {error}") from None
        return self.read_head()

    def tree(self) -> Tree | None:
        """What published.json says now, None without one."""
        try:
            return load(self.store.read(PUBLISHED))
        except FileNotFoundError:
            return None

    def read(self, path: str, commit: str) -> bytes:
        """A file at a commit. Raises MovedError when the folder shows another one."""
        tree = self.tree()
        if tree is None or tree.commit != commit:
            raise MovedError(self.folder, commit)
        return self.store.read(tree.files[path].file)

    def source(self, commit: str) -> Source:
        """Where workers read what is published at a commit. Raises MovedError."""
        self.read(REPORT, commit)
        source = open_source(self.folder, retry_seconds=RETRY_SECONDS)
        source.read_file(REPORT)  # loads the folder's state, which is pickled with the source
        return source

    def remind(self, path_in_repo: str, data: bytes) -> None:
        """A folder has no cache."""

    def upload(self, path_in_repo: str, content: Path | bytes) -> Stored:
        """Note a path's file as written by a run, write it unless it is there with this content, and say where it is.

        The note comes first, also for a file that is there: another run may be about to remove it. Raises PublishError.
        """
        sha256 = _digest(content, "sha256")
        num_bytes = len(content) if isinstance(content, bytes) else content.stat().st_size
        stored = Stored(stored_name(path_in_repo, sha256), num_bytes, sha256)
        try:
            self.store.put(f"{WRITTEN}{stored.file}", b"")
            if self.store.holds(stored.file, num_bytes, lambda algorithm: _digest(content, algorithm)):
                return stored
            if isinstance(content, bytes):
                self.store.put(stored.file, content)
            else:
                self.store.copy(content, stored.file)
        except OSError as error:
            raise PublishError(f"{path_in_repo} cannot be written to {self.folder}: {error}") from error
        return stored

    def whole(self, files: Iterable[Stored], sizes: Mapping[str, int]) -> set[str]:
        """Which of the files are there with their content, `sizes` being the folder's listing. Reads them on a disk."""
        there = [stored for stored in files if sizes.get(stored.file) == stored.num_bytes]
        with ThreadPoolExecutor(THREADS) as pool:
            intact = list(pool.map(lambda stored: self.store.is_intact(stored.file, stored.sha256), there))
        return {stored.file for stored, is_intact in zip(there, intact, strict=True) if is_intact}

    def draft(self, head: Head, run: Run) -> "FolderDraft":
        """The run's draft, with the shards that an earlier attempt finished."""
        try:
            return FolderDraft(self, head, run)
        except (OSError, FolderError) as error:
            raise PublishError(f"{self.folder} cannot be read: {error}") from error


class FolderDraft:
    """The draft of a run in a folder. Each finished shard has a sidecar of its own."""

    def __init__(self, folder: Folder, head: Head, run: Run):
        self._folder, self._head, self._run = folder, head, run
        # Part of the name, because it decides where packs stay (`jobs.shards.last_version`).
        on = (head.commit or "nothing")[:DIGITS]
        self._sidecars = f"{SIDECARS}/{run.shards[:DIGITS]}-on-{on}/"
        tree, sizes = folder.tree(), folder.store.list()
        self.published = head.commit if self._is_published(tree, sizes) else None
        self.kept = self._find_kept(sizes)
        self._files = _stored(self.kept)

    def _is_published(self, tree: Tree | None, sizes: Mapping[str, int]) -> bool:
        """Whether the folder shows this very run with all files whole."""
        if tree is None or (tree.run, tree.shards) != (self._run.run, self._run.shards):
            return False
        files = tree.files.values()
        return self._folder.whole(files, sizes) == {stored.file for stored in files}

    def _find_kept(self, sizes: Mapping[str, int]) -> list[ShardFile]:
        """The shards of the sidecars, as far as all files of a shard are whole."""
        names = sorted(name for name in sizes if name.startswith(self._sidecars))
        shards = [read_sidecar(name, self._folder.store.read(name)) for name in names]
        found = [file for shard in shards for file in shard]
        stored = _stored(found)
        whole = self._folder.whole(stored.values(), sizes)
        broken = {file.shard for file in found if file.num_bytes and stored[file.path].file not in whole}
        return [file for file in found if file.shard not in broken]

    def add(self, files: Sequence[ShardFile]) -> None:
        """Note a finished shard in its sidecar."""
        hashed = [replace(file, sha256=file.operation.sha256) if file.operation else file for file in files]
        self._files |= _stored(hashed)
        self._write(f"{self._sidecars}{files[0].shard:06d}.parquet", dump_files(hashed))

    def publish(self, files: Mapping[str, bytes], delete: Sequence[str]) -> str:
        """Replace published.json when all files that it will name are there, and return its commit.

        As `HubDraft.publish`. Raises PublishError, with the folder unchanged unless the message says otherwise.
        """
        small = {path: self._folder.upload(path, data) for path, data in sorted(files.items())}
        before = self._unmoved()
        old = before.files if before else {}
        new = {path: stored for path, stored in old.items() if path not in set(delete)} | self._files | small
        tree = self._tree(new, before)
        self._check_there(tree)
        self._unmoved()  # once more: the listing takes its time
        self._write(PUBLISHED, tree.dump())
        self._check_published(tree)
        self._tidy(tree, {path: data for path, data in files.items() if path.split("/")[0] not in _PARTS})
        return tree.commit

    def _unmoved(self) -> Tree | None:
        """The state that the run started from. Raises MovedError when the folder shows another one."""
        now = self._folder.tree()
        if (now.commit if now else None) != self._head.commit:
            raise MovedError(self._folder.folder, self._head.commit)
        return now

    def _check_published(self, tree: Tree) -> None:
        """Raises PublishError when another run published at the same moment; the next run mends what that left."""
        if self._folder.tree() != tree:
            raise PublishError(
                f"{self._folder.folder}: another run published at the same moment, and its state stands; one run at a "
                "time may write to a folder. Run the job again"
            )
        try:
            self._check_there(tree)
        except PublishError as error:
            raise PublishError(
                f"published, but another run has removed files meanwhile: run the job again: {error}"
            ) from None

    def _tree(self, new: Mapping[str, Stored], before: Tree | None) -> Tree:
        """The state to publish, with the other files that stay for a while and those that go."""
        named = {stored.file for stored in new.values()}
        there = self._folder.store.list()
        written, halves = _written(there)
        replaced = {stored.file for stored in before.files.values()} - named if before else set()
        stays = replaced or set(before.before if before else ())  # the same state again keeps those before it
        stays = (stays | written) - named if self._folder.keeps_before else set()  # a run may still need `written`
        gone = (halves | written | (before.ours if before else set())) & there.keys() - named - stays
        return Tree(new, self._run.run, self._run.shards, tuple(sorted(stays)), tuple(sorted(gone)))

    def close(self, reason: str) -> None:
        """Remove the sidecars."""
        logger.info("giving up what was packed into %s: %s", self._folder.folder, reason)
        store = self._folder.store
        store.remove([name for name in store.list() if name.startswith(self._sidecars)])

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._folder.store.put(name, data)
        except OSError as error:
            raise PublishError(f"{name} cannot be written to {self._folder.folder}: {error}") from error

    def _check_there(self, tree: Tree) -> None:
        sizes = self._folder.store.list()
        for stored in tree.files.values():
            if sizes.get(stored.file) != stored.num_bytes:
                raise PublishError(
                    f"{self._folder.folder}: {stored.file} has {sizes.get(stored.file)} bytes where the driver looks, "
                    f"{stored.num_bytes} were written: the folder has to be the same one on all machines, and one run "
                    "at a time may write to it"
                )

    def _tidy(self, tree: Tree, top: Mapping[str, bytes]) -> None:
        """Write plain copies of what people open; remove what goes, sidecars, and notes of what the tree names."""
        store = self._folder.store
        noted = {f"{WRITTEN}{name}" for name in tree.ours}
        try:
            for path, data in top.items():
                store.put(path, data)
            names = store.list()
            store.remove([name for name in tree.gone if name in names])
            sidecars = [name for name in names if name.startswith(f"{SIDECARS}/") and not name.startswith(WRITTEN)]
            store.remove([*sidecars, *(name for name in names if name in noted)])
        except OSError as error:
            logger.warning("%s is published, but not tidied: %s", self._folder.folder, error)


def _stored(files: Iterable[ShardFile]) -> dict[str, Stored]:
    """Path → where it is stored, of shards' files whose hash is known."""
    found = {}
    for file in files:
        if file.num_bytes:
            assert file.sha256 is not None
            found[file.path] = Stored(stored_name(file.path, file.sha256), file.num_bytes, file.sha256)
    return found


def _written(names: Iterable[str]) -> tuple[set[str], set[str]]:
    """The files that a run has noted as its own, and unfinished copies of such files."""
    noted = {name.removeprefix(WRITTEN) for name in names if name.startswith(WRITTEN)}
    halves = set()
    for name in map(PurePosixPath, names):
        half = _HALF.fullmatch(name.name)
        if half and str(name.with_name(half[1])) in noted:
            halves.add(str(name))
    return noted, halves


def _digest(content: Path | bytes, algorithm: str) -> str:
    """A content's digest (hex); MD5 only serves to compare with what object stores keep."""
    if isinstance(content, bytes):
        return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
