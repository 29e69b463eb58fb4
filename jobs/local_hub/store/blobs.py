"""File contents that are stored as they are: regular files and LFS files.

    ROOT/blobs/<40 hex digits>   regular, by git's blob id: sha1 of "blob <size>\\0" and the content
    ROOT/blobs/<64 hex digits>   LFS, by the sha256 of the content

A body is hashed while it is written to a draft. It gets its name only if the hash is the announced one.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from jobs.local_hub.errors import HubError

from .disk import Disk

__all__ = ["Blobs", "git_blob_id", "lfs_pointer"]

OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def git_blob_id(data: bytes) -> str:
    """The object id that git gives to a file's content (40 hex digits)."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    """The file that git holds in place of an LFS object (git-lfs specification, version 1)."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


class Blobs:
    """The contents in `ROOT/blobs`."""

    def __init__(self, disk: Disk):
        self.disk = disk
        self.folder = disk.folder("blobs")

    def path(self, oid: str) -> Path:
        """Where the content of this id is, or would be; HubError 400 if it is not an id."""
        if not OID.fullmatch(oid):
            raise HubError(400, f"{oid!r} is not 40 or 64 hexadecimal digits")
        return self.folder / oid

    def size(self, oid: str) -> int | None:
        """Bytes of a content, or None when it is not stored."""
        try:
            return os.path.getsize(self.path(oid))
        except FileNotFoundError:
            return None

    def put_regular(self, data: bytes) -> str:
        """Store the content of a regular file and return its git blob id."""
        oid = git_blob_id(data)
        if self.size(oid) is None:
            self.disk.write(self.path(oid), data)
        return oid

    def put_lfs(self, sha256: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Store an LFS body; HubError 400 if it has another sha256, and nothing is stored."""
        digest = hashlib.sha256()
        with self.disk.draft() as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
            if digest.hexdigest() != sha256:
                raise HubError(400, f"the body's sha256 is {digest.hexdigest()}, not {sha256}: upload it again")
            self.disk.publish(file, self.path(sha256))
