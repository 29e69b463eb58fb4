"""Packs to a folder: a Unity Catalog Volume, a mounted disk, or an object store that fsspec opens.

The files of a dataset are the Hub's, byte for byte; how the folder shows all of a run at once is in
`packing_udfs.storage.folder_state`. In the order of a run:

    upload    a worker copies its finished shard: written locally, then copied from front to end, as Volumes want it
    add       the driver notes the shard's result rows in .packing/, so that a run that dies goes on from there
    publish   small files, then a look whether every file is there, then published.json: the one step that counts
    after it  plain copies of what people open (README.md, report.html), and the files of the state before last go

A path on a disk gets its content by renaming; a PUT to an object store is whole or not at all. So a run that is killed
anywhere leaves the dataset as it was, and files that the next run uses or removes.

What is there is taken for what it should be only if its content is (`Store.holds`): one read of what would otherwise be
written. So the same job again mends a damaged folder, and finding it whole costs one read of the dataset.

Only what a run wrote is ever removed: files that published.json names, now or before, and those with an empty note
in .packing/written/, which is put there before the file and goes when published.json has the name. So a folder may hold
other files of any name, and one that lost its published.json loses nothing more.
Rejected: going by names (those of a dataset whose published.json is lost look the same).

One run at a time may write to a folder: a second one notices the first's published.json and fails, but there is no
lock. It looks right before it writes its own, and again behind it, at published.json and at all files. What remains are
the milliseconds between look and write: if two runs meet in them, the later state stands and is whole, and the earlier
run fails if it has not looked again yet; beside a takedown, which removes at once, the later run may fail with files
missing, and says so. Rejected: writing in place (readers would see it), a lock file (nobody removes it after a crash;
locks of the system do not reach over all mounts), fsspec's transactions (they rename file by file).
"""

import hashlib
import json
import logging
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from jobs.output.finished_shard import dump_rows
from jobs.output.folder_files import Store
from jobs.output.interface import Head, MovedError, OutputError, PublishError, Run, our_info
from jobs.output.sidecars import FOLDER as SIDECARS
from jobs.output.sidecars import read_rows
from packing_udfs import contract, manifest
from packing_udfs.storage.byte_source import Source
from packing_udfs.storage.folder_state import DIGITS, PUBLISHED, FolderError, Stored, Tree, is_stored, load, stored_name
from packing_udfs.storage.folders import open_folder
from packing_udfs.storage.hub import open_source

WRITTEN = f"{SIDECARS}/written/"  # notes of files that published.json does not name yet
THREADS = 8  # of files read at a time
RETRY_SECONDS = 60  # a read is tried again for so long
_PARTS = ("data", "manifest", "quarantine")  # folders of a dataset; all else is for people
_HALF = re.compile(r"\.(.+)\.[0-9a-f]{32}")  # a copy that was not finished, and of what
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Folder:
    """`outputs.Output` of a folder, an absolute path or a URL."""

    folder: str
    keeps_before: bool = True
    """Whether files of the state before stay until the next one."""

    @cached_property
    def store(self) -> Store:
        return Store(*open_folder(self.folder))

    def __getstate__(self):
        return {
            "folder": self.folder,
            "keeps_before": self.keeps_before,
        }  # a file system's connections belong to a process

    def check_token(self) -> None:
        """A folder needs none. Raises OutputError when nothing opens such an address, or it is a file's."""
        try:
            is_file = self.store.is_file()
        except (ValueError, OSError) as error:
            raise OutputError(f"output.repo: {error}") from None
        if is_file:
            raise OutputError(f"output.repo: {self.folder} is a file; name a folder, which may be a new one")

    def read_head(self) -> Head:
        """What the folder shows; an empty Head when there is none."""
        try:
            tree, files = self.tree(), self.store.list()
            readme = self.store.read("README.md").decode() if "README.md" in files else ""  # the copy that people edit
            if tree is None:
                paths = sorted(path for path in files if not is_stored(path) and path[0] != ".")
                return Head(None, tuple(paths), readme)
            names = [path for path in sorted(tree.files) if path.startswith("manifest/") and path.endswith(".json")]
            infos = [(Path(path).stem, our_info(self._read(tree, path))) for path in names]
        except UnicodeDecodeError as error:
            raise OutputError(f"output.repo: the README.md in {self.folder} is not UTF-8, repair it: {error}") from None
        except (OSError, FolderError) as error:
            raise OutputError(f"output.repo: {self.folder} cannot be read: {error}") from None
        return Head(tree.commit, tuple(sorted(tree.files)), readme, tuple((s, info) for s, info in infos if info))

    def create(self, private: bool) -> Head:
        """Make the folder when there is none, try a write, and return what it shows. Raises OutputError."""
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

    def _read(self, tree: Tree, path: str) -> bytes:
        return self.store.read(tree.files[path].file)

    def read(self, path: str, commit: str) -> bytes:
        """A file at a commit, which is the folder's or is no more. Raises MovedError."""
        tree = self.tree()
        if tree is None or tree.commit != commit:
            raise MovedError(self.folder, commit)
        return self._read(tree, path)

    def read_manifest(self, commit: str, split: str) -> manifest.Manifest:
        """The manifest of a split at a commit."""
        names = (contract.MANIFEST_JSON, contract.MANIFEST_PARQUET)
        return manifest.load(*(self.read(name.format(split=split), commit) for name in names))

    def read_report(self, commit: str) -> dict:
        """The published report at a commit."""
        return json.loads(self.read("report.json", commit))

    def source(self, commit: str) -> Source:
        """Where workers read what is published at a commit. Raises MovedError."""
        self.read("report.json", commit)
        source = open_source(self.folder, retry_seconds=RETRY_SECONDS)
        source.read_file("report.json")  # and with it the folder's state, which goes along when it is pickled
        return source

    def remind(self, path_in_repo: str, data: bytes) -> None:
        """A folder has no cache."""

    def upload(self, path_in_repo: str, file: Path) -> Stored:
        """Copy a local file to where it is stored, unless it is there, and say where. Raises PublishError."""
        return self.store_content(path_in_repo, file)

    def store_content(self, path: str, content: Path | bytes) -> Stored:
        """Note a path's file as written by a run, and write it unless it is there with this content (`Store.holds`).

        The note comes first, also of a file that is there: another run may be about to remove it.
        """
        sha256 = _digest(content, "sha256")
        num_bytes = len(content) if isinstance(content, bytes) else content.stat().st_size
        stored = Stored(stored_name(path, sha256), num_bytes, sha256)
        write = self.store.put if isinstance(content, bytes) else lambda name, file: self.store.copy(file, name)
        try:
            self.store.put(f"{WRITTEN}{stored.file}", b"")
            if not self.store.holds(stored.file, num_bytes, lambda algorithm: _digest(content, algorithm)):
                write(stored.file, content)
        except OSError as error:
            raise PublishError(f"{path} cannot be written to {self.folder}: {error}") from error
        return stored

    def whole(self, files: Sequence[Stored], sizes: Mapping[str, int]) -> set[str]:
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
    """`outputs.Draft` of a folder."""

    def __init__(self, folder: Folder, head: Head, run: Run):
        self._folder, self._head, self._run = folder, head, run
        on = (head.commit or "nothing")[:DIGITS]  # what is there decides where packs stay (`jobs.shards.last_version`)
        self._sidecars = f"{SIDECARS}/{run.shards[:DIGITS]}-on-{on}"
        tree, sizes = folder.tree(), folder.store.list()
        is_ours = tree is not None and (tree.run, tree.shards) == (run.run, run.shards)
        named = {stored.file for stored in tree.files.values()} if is_ours else set()
        is_whole = is_ours and folder.whole(list(tree.files.values()), sizes) == named
        self.published = head.commit if is_whole else None
        names = [name for name in sorted(sizes) if name.startswith(f"{self._sidecars}/")]
        shards = [read_rows(name, folder.store.read(name)) for name in names]
        whole = folder.whole([stored for rows in shards for _, stored in _files(rows)], sizes)
        there = [rows for rows in shards if all(stored.file in whole for _, stored in _files(rows))]
        self.kept = [row | {"operation": None} for rows in there for row in rows]
        self._files = {path: stored for rows in there for path, stored in _files(rows)}

    def add(self, rows: Sequence[dict]) -> None:
        """Note a finished shard in a sidecar of its own."""
        hashed = [row | {"sha256": row["operation"].sha256 if row["operation"] else None} for row in rows]
        self._files |= dict(_files(hashed))
        self._write(f"{self._sidecars}/{rows[0]['shard']:06d}.parquet", dump_rows(hashed))

    def publish(self, files: Mapping[str, bytes], delete: Sequence[str]) -> str:
        """Replace published.json when all that it will name is there. Raises PublishError with the folder unchanged."""
        small = {path: self._folder.store_content(path, data) for path, data in sorted(files.items())}
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
        """Raises PublishError when another run published at the same moment; what is there is left for the next run."""
        now = self._folder.tree()
        if now != tree:
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
        """The state to publish, with what stays behind it for a while and what goes."""
        named = {stored.file for stored in new.values()}
        there = self._folder.store.list()
        written, halves = _written(there)
        replaced = {stored.file for stored in before.files.values()} - named if before else set()
        stays = replaced or set(before.before if before else ())  # the same state again keeps those before it
        stays = (stays | written) - named if self._folder.keeps_before else set()  # written: a run may be at it still
        gone = (halves | written | (before.ours if before else set())) & there.keys() - named - stays
        return Tree(new, self._run.run, self._run.shards, tuple(sorted(stays)), tuple(sorted(gone)))

    def close(self, reason: str) -> None:
        """Remove the sidecars."""
        logger.info("giving up what was packed into %s: %s", self._folder.folder, reason)
        store = self._folder.store
        store.remove([name for name in store.list() if name.startswith(f"{self._sidecars}/")])

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
        """Plain copies of what people open; away with what goes, sidecars, and notes of what the tree has."""
        store = self._folder.store
        try:
            for path, data in top.items():
                store.put(path, data)
            names = store.list()
            store.remove([name for name in tree.gone if name in names])
            noted = {f"{WRITTEN}{name}" for name in tree.ours}
            store.remove([name for name in names if name in noted or _is_sidecar(name)])
        except OSError as error:
            logger.warning("%s is published, but not tidied: %s", self._folder.folder, error)


def _files(rows: Sequence[dict]) -> list[tuple[str, Stored]]:
    """(path, where it is stored) of the files in rows of a sidecar."""
    return [
        (row["path"], Stored(stored_name(row["path"], row["sha256"]), row["num_bytes"], row["sha256"]))
        for row in rows
        if row["num_bytes"]
    ]


def _written(names: Iterable[str]) -> tuple[set[str], set[str]]:
    """The files that have a note of being a run's, and unfinished copies of such."""
    noted = {name.removeprefix(WRITTEN) for name in names if name.startswith(WRITTEN)}
    halves = {name for name in names if (half := _HALF.fullmatch(PurePosixPath(name).name))
              and str(PurePosixPath(name).with_name(half[1])) in noted}  # fmt: skip
    return noted, halves


def _is_sidecar(name: str) -> bool:
    return name.startswith(f"{SIDECARS}/") and not name.startswith(WRITTEN)


def _digest(content: Path | bytes, algorithm: str) -> str:
    """A content's digest (hex); MD5 is for comparing with what object stores keep."""
    if isinstance(content, bytes):
        return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
