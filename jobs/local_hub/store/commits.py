"""Applying the operations of a commit to the files of its parent, all or nothing.

The client sends one JSON object per line (huggingface_hub `_prepare_commit_payload`): a `header` with `summary`,
`description` and perhaps `parentCommit`, then `file` (base64 content), `lfsFile` (sha256; a copy has no size),
`deletedFile` and `deletedFolder`. Deletions refer to the parent's files, so one commit can replace a folder, in any
order of operations.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from jobs.local_hub.errors import HubError

from .blobs import Blobs, git_blob_id, lfs_pointer
from .repo_state import FileEntry
from .repos import Repo

__all__ = ["GITATTRIBUTES", "Changes", "lfs_entry", "regular_entry", "wants_lfs"]

MAX_REGULAR_BYTES = 10 << 20  # above, the Hub asks for LFS
LFS_NAMES = """
    7z arrow bin bz2 ftz gz h5 lz4 mds npy npz onnx parquet pkl pt rar safetensors tar tgz zip zst
    pcm sam raw aac flac mp3 ogg wav bmp gif png tiff jpg jpeg webp mp4 webm
"""
LFS_SUFFIXES = tuple(f".{name}" for name in LFS_NAMES.split())
GITATTRIBUTES = "".join(f"*{s} filter=lfs diff=lfs merge=lfs -text\n" for s in LFS_SUFFIXES).encode()


def wants_lfs(path: str, size: int, sample: bytes) -> bool:
    """Whether the Hub stores a file by LFS: by its suffix, its size, or a zero among its first bytes."""
    return path.lower().endswith(LFS_SUFFIXES) or size > MAX_REGULAR_BYTES or b"\0" in sample


def regular_entry(blobs: Blobs, data: bytes) -> FileEntry:
    """Store the content of a regular file; its entry in a commit."""
    return FileEntry(size=len(data), oid=blobs.put_regular(data))


def lfs_entry(sha256: str, size: int) -> FileEntry:
    """The entry of an LFS file in a commit."""
    pointer = lfs_pointer(sha256, size)
    return FileEntry(size=size, oid=git_blob_id(pointer), lfs=sha256, pointer=len(pointer))


class Changes:
    """What one commit does. Contents of regular files are stored at once.

    Args:
        lines: the header and the operations.
        lfs_size: bytes of an LFS object, None if it was never uploaded.

    Raises:
        HubError: 400, a malformed operation, or content that was not uploaded.
    """

    def __init__(self, lines: list[dict], blobs: Blobs, lfs_size: Callable[[str], int | None]):
        self.title = self.message = ""
        self.parent: str | None = None  # the start of the commit id that the client expects at the head
        self._added: dict[str, FileEntry] = {}
        self._deleted_files: list[str] = []
        self._deleted_folders: list[str] = []
        for line in lines:
            key, value = line.get("key"), line.get("value")
            if not isinstance(value, dict):
                raise HubError(400, f"operation {key!r} has no value")
            if key == "header":
                self.title, self.message = value.get("summary", ""), value.get("description", "")
                self.parent = value.get("parentCommit")
            elif key == "file":
                self._added[_path(value)] = _regular(value, blobs)
            elif key == "lfsFile":
                self._added[_path(value)] = _lfs(value, lfs_size)
            elif key == "deletedFile":
                self._deleted_files.append(_path(value))
            elif key == "deletedFolder":
                self._deleted_folders.append(_path({"path": str(value.get("path")).rstrip("/")}))
            else:
                raise HubError(400, f"operation {key!r} is not known")

    def write(self, repo: Repo, parent: str) -> str:
        """Store these changes as a commit on a parent, which the caller points a reference at; its id.

        Raises:
            HubError: 404 EntryNotFound, a deleted path does not exist; 400, a file where a folder is.
        """
        before = repo.commit(parent).files
        gone = set(self._deleted_files)
        for path in self._deleted_files:
            if path not in before:
                raise HubError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        for folder in self._deleted_folders:
            inside = {path for path in before if path.startswith(f"{folder}/")}
            if not inside:
                raise HubError(404, f"A folder with this name doesn't exist: {folder}", "EntryNotFound")
            gone |= inside
        files = {path: entry for path, entry in before.items() if path not in gone} | self._added
        _check_folders(files if self._added else {})
        return repo.write_commit([parent], self.title, self.message, files, gone | self._added.keys())

    def write_on_head(self, repo: Repo, ref: str) -> str:
        """`write` on the head of a reference; HubError 412 if it does not start with `parent` (7 digits or more)."""
        head, parent = repo.refs[ref], self.parent
        if parent is not None and not (len(parent) >= 7 and head.startswith(parent)):
            raise HubError(412, f"A commit has happened since {parent}: {ref} is at {head}. Refresh and try again.")
        return self.write(repo, head)

    def commit_to_branch(self, repo: Repo, ref: str) -> str:
        """Commit to the head of a branch and return the commit's id; an error leaves the branch unchanged."""
        with repo.lock:
            oid = self.write_on_head(repo, ref)
            repo.set_ref(ref, oid)
            return oid


def _path(value: Mapping[str, Any]) -> str:
    path = value.get("path")
    if not isinstance(path, str) or not path or any(p in ("", ".", "..", ".git") for p in path.split("/")):
        raise HubError(400, f"{path!r} is not a valid path in a repository")
    return path


def _regular(value: Mapping[str, Any], blobs: Blobs) -> FileEntry:
    data = base64.b64decode(value.get("content", ""), validate=True)
    if len(data) > MAX_REGULAR_BYTES:
        raise HubError(400, f"{value['path']}: {len(data)} bytes are too many for a regular file; use LFS")
    return regular_entry(blobs, data)


def _lfs(value: Mapping[str, Any], lfs_size: Callable[[str], int | None]) -> FileEntry:
    sha256 = str(value.get("oid"))
    size = lfs_size(sha256)
    if size is None:
        raise HubError(400, f"{value['path']}: LFS object {sha256} was never uploaded")
    if value.get("size", size) != size:
        raise HubError(400, f"{value['path']}: LFS object {sha256} has {size} bytes, not {value['size']}")
    return lfs_entry(sha256, size)


def _check_folders(files: Mapping[str, FileEntry]) -> None:
    folders = {path[:i] for path in files for i, character in enumerate(path) if character == "/"}
    both = sorted(folders & files.keys())
    if both:
        raise HubError(400, f"{both[0]} is a file and a folder at once")
