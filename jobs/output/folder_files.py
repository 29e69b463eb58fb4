"""Files of a folder, wherever fsspec finds it: read, listed, and written whole or not at all.

On a disk (and so in a Unity Catalog Volume) a file is written beside its place and gets its name when it is whole; a
PUT to an object store is atomic. Files are written from front to end, since Volumes can neither append nor write in the
middle. Rejected: fsspec's `put_file` for local files, which would show half a file.
"""

import base64
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

__all__ = ["Store"]


class Store:
    """Small and large files of one folder, by their paths in it."""

    def __init__(self, fs: fsspec.AbstractFileSystem, root: str):
        self._fs, self._root = fs, root.rstrip("/")
        self._is_local = isinstance(fs, LocalFileSystem)

    def is_file(self) -> bool:
        """Whether the folder's address is that of a file."""
        return self._fs.isfile(self._root)

    def list(self) -> dict[str, int]:
        """Path → bytes of all files, hidden ones too; none when there is no folder."""
        self._fs.invalidate_cache()
        found = dict(self._fs.find(self._root, detail=True))
        return {path[len(self._root) + 1 :]: info["size"] for path, info in found.items()}

    def read(self, name: str) -> bytes:
        """A file's content. Raises FileNotFoundError."""
        return bytes(self._fs.cat_file(f"{self._root}/{name}"))  # pyright: ignore[reportArgumentType] – never str

    def holds(self, name: str, num_bytes: int, digest: Callable[[str], str]) -> bool:
        """Whether a file has a content, of which `digest` gives the digest (hex) by an algorithm's name.

        On a disk a file of this size is read, which finds a flipped bit. In an object store nothing is read: the MD5
        that it keeps (S3's ETag of a plain PUT, Google's md5Hash) is compared; without one the answer is no, and the
        content is written once more.
        """
        try:
            info = self._fs.info(f"{self._root}/{name}")
        except FileNotFoundError:
            return False
        if info["size"] != num_bytes or info["type"] != "file":
            return False
        if self._is_local:
            return self.is_intact(name, digest("sha256"))
        return _md5_of(info) == digest("md5")

    def is_intact(self, name: str, sha256: str) -> bool:
        """Whether a file that is there has this SHA-256 (hex): read on a disk, assumed of an object store."""
        if not self._is_local:
            return True
        with open(f"{self._root}/{name}", "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256

    def put(self, name: str, data: bytes) -> None:
        """Write a small file."""
        if not self._is_local:
            self._fs.pipe_file(f"{self._root}/{name}", data)
            return
        with self._half(name) as half:
            half.write_bytes(data)

    def copy(self, file: Path, name: str) -> None:
        """Copy a local file."""
        if not self._is_local:
            self._fs.put_file(str(file), f"{self._root}/{name}")
            return
        with self._half(name) as half:
            shutil.copyfile(file, half)

    @contextmanager
    def _half(self, name: str) -> Iterator[Path]:
        """A file beside the one to write, which gets its name when it is whole and on the disk."""
        target = Path(self._root, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        half = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            yield half
            with half.open("rb") as written:
                os.fsync(written.fileno())
            half.replace(target)
        finally:
            half.unlink(missing_ok=True)

    def remove(self, names: Sequence[str]) -> None:
        """Remove files; missing ones are ignored."""
        for name in names:
            with suppress(FileNotFoundError):
                self._fs.rm_file(f"{self._root}/{name}")


def _md5_of(info: dict) -> str | None:
    """The MD5 (hex) that a store keeps of a file, if it does; any other ETag equals no MD5."""
    if "md5Hash" in info:
        return base64.b64decode(info["md5Hash"]).hex()
    return str(info["ETag"]).strip('"') if "ETag" in info else None
