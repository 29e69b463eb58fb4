"""Atomic, durable files, so that a Hub survives a kill at any moment.

Each file is drafted in `ROOT/tmp`, flushed, and renamed to its place; then its folder is flushed. Rename is atomic
within a file system, so readers see the old file or the new one. A kill leaves at most drafts, which `Disk` deletes
when it opens the root. Cost: two fsyncs per file. Rejected: a database (it suits no bodies of gigabytes) and a
write-ahead log (rename already is the one atomic step that a commit needs).
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ["Disk", "sync_folder"]


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder, which makes a rename into it durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Disk:
    """A Hub's root folder, locked by one process at a time.

    Raises:
        ValueError: another Hub serves this root.
    """

    def __init__(self, root: Path):
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._lock = open(root / "lock", "a")  # noqa: SIM115 - `close` closes it
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise ValueError(f"root: {root} is served by another Hub; stop that one first") from error
        self.tmp = self.folder("tmp")
        for leftover in self.tmp.iterdir():
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()

    def close(self) -> None:
        """Let another Hub open the root."""
        self._lock.close()

    def folder(self, name: str) -> Path:
        """`ROOT/name`, made durably if it is missing."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent)
        return path

    @contextlib.contextmanager
    def draft(self) -> Iterator[IO[bytes]]:
        """A new file in `tmp`, deleted at the end of the block unless it was published."""
        with tempfile.NamedTemporaryFile(dir=self.tmp, delete=False) as file:
            try:
                yield file
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file.name)

    def publish(self, file: IO[bytes], path: Path) -> None:
        """Give a complete draft its name, durably. It replaces an earlier file of that name."""
        file.flush()
        os.fsync(file.fileno())
        os.replace(file.name, path)
        sync_folder(path.parent)

    def write(self, path: Path, data: bytes) -> None:
        """Write a small file in one atomic, durable step."""
        with self.draft() as file:
            file.write(data)
            self.publish(file, path)

    def discard(self, folder: Path) -> None:
        """Remove a folder in one atomic step: move it to `tmp`, which a restart cleans, then delete it."""
        grave = Path(tempfile.mkdtemp(dir=self.tmp))
        os.rename(folder, grave / folder.name)
        sync_folder(folder.parent)
        shutil.rmtree(grave)
