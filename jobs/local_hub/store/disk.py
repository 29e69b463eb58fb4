"""Files that are either wholly there or not there: the ground for surviving a kill at any moment.

A file is drafted in `ROOT/tmp`, flushed to the device, renamed to its place, and the folder it moved to is
flushed too. Rename is atomic in one file system, so a reader or a restarted Hub sees the old file or the new
one. A kill leaves at most drafts behind, which `Disk` sweeps when it opens the root. The cost is two fsyncs a
file. Rejected: a database (one more format, and bodies of gigabytes do not belong in one) and a write-ahead
log (rename already gives the one atomic step that a commit needs).
"""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the device, which makes a rename into it durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Disk:
    """A Hub's root folder, held by one process at a time.

    Raises:
        ValueError: another Hub is serving this root.
    """

    def __init__(self, root: Path):
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._lock = open(root / "lock", "a")  # noqa: SIM115 - held as long as the Hub lives
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
        """Give a complete draft its name, durably. An earlier file of that name is replaced."""
        file.flush()
        os.fsync(file.fileno())
        os.replace(file.name, path)
        sync_folder(path.parent)

    def write(self, path: Path, data: bytes) -> None:
        """Write a small file in one atomic, durable step."""
        with self.draft() as file:
            file.write(data)
            self.publish(file, path)

    def write_json(self, path: Path, value: Any) -> None:
        """`write` a value as JSON."""
        self.write(path, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())

    def discard(self, folder: Path) -> None:
        """Remove a folder in one atomic step: it is moved to `tmp` first, where a restart would sweep it."""
        grave = Path(tempfile.mkdtemp(dir=self.tmp))
        os.rename(folder, grave / folder.name)
        sync_folder(folder.parent)
        shutil.rmtree(grave)
