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

__all__ = [
    "GITATTRIBUTES",
    "Changes",
    "commit_to_branch",
    "lfs_entry",
    "regular_entry",
    "wants_lfs",
    "write_changes",
    "write_on_head",
]

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


def _checked_path(path: Any) -> str:
    if not isinstance(path, str) or not path or any(p in ("", ".", "..", ".git") for p in path.split("/")):
        raise HubError(400, f"{path!r} is not a valid path in a repository")
    return path


class Changes:
    """What one commit does: its header, new entries and deleted paths.

    Args:
        lines: the operations; contents of regular files are stored.
        lfs_size: bytes of an LFS object, None if it was never uploaded.

    Raises:
        HubError: 400, a malformed operation, or content that was not uploaded.
    """

    def __init__(self, lines: list[dict], blobs: Blobs, lfs_size: Callable[[str], int | None]):
        self.header: dict[str, Any] = {}
        self.added: dict[str, FileEntry] = {}
        self.deleted_files: list[str] = []
        self.deleted_folders: list[str] = []
        for line in lines:
            key, value = line.get("key"), line.get("value")
            if not isinstance(value, dict):
                raise HubError(400, f"operation {key!r} has no value")
            if key == "header":
                self.header = value
            elif key == "file":
                self.added[_checked_path(value.get("path"))] = _regular(value, blobs)
            elif key == "lfsFile":
                self.added[_checked_path(value.get("path"))] = _lfs(value, lfs_size)
            elif key == "deletedFile":
                self.deleted_files.append(_checked_path(value.get("path")))
            elif key == "deletedFolder":
                self.deleted_folders.append(_checked_path(str(value.get("path")).rstrip("/")))
            else:
                raise HubError(400, f"operation {key!r} is not known")

    @property
    def title(self) -> str:
        return self.header.get("summary", "")

    @property
    def parent(self) -> str | None:
        """The start of the commit id that the client expects at the head."""
        return self.header.get("parentCommit")

    def apply(self, before: Mapping[str, FileEntry]) -> tuple[dict[str, FileEntry], set[str]]:
        """The files after the commit, and the paths that it touched.

        Raises:
            HubError: 404 EntryNotFound, a deleted path does not exist; 400, a file where a folder is.
        """
        gone = set()
        for path in self.deleted_files:
            if path not in before:
                raise HubError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
            gone.add(path)
        for folder in self.deleted_folders:
            inside = {path for path in before if path.startswith(f"{folder}/")}
            if not inside:
                raise HubError(404, f"A folder with this name doesn't exist: {folder}", "EntryNotFound")
            gone |= inside
        files = {path: entry for path, entry in before.items() if path not in gone} | self.added
        folders = {path[:i] for path in files for i, c in enumerate(path) if c == "/"} if self.added else set()
        both = sorted(folders & files.keys())
        if both:
            raise HubError(400, f"{both[0]} is a file and a folder at once")
        return files, gone | self.added.keys()


def _regular(value: dict, blobs: Blobs) -> FileEntry:
    data = base64.b64decode(value.get("content", ""), validate=True)
    if len(data) > MAX_REGULAR_BYTES:
        raise HubError(400, f"{value['path']}: {len(data)} bytes are too many for a regular file; use LFS")
    return regular_entry(blobs, data)


def _lfs(value: dict, lfs_size: Callable[[str], int | None]) -> FileEntry:
    sha256 = str(value.get("oid"))
    size = lfs_size(sha256)
    if size is None:
        raise HubError(400, f"{value['path']}: LFS object {sha256} was never uploaded")
    if value.get("size", size) != size:
        raise HubError(400, f"{value['path']}: LFS object {sha256} has {size} bytes, not {value['size']}")
    return lfs_entry(sha256, size)


def write_changes(repo: Repo, parent: str, changes: Changes) -> str:
    """Store these changes as a commit on a parent; the caller points a reference at it."""
    files, touched = changes.apply(repo.commit(parent).files)
    return repo.write_commit([parent], changes.title, changes.header.get("description", ""), files, touched)


def write_on_head(repo: Repo, ref: str, changes: Changes) -> str:
    """`write_changes` on the head of a reference, which must start with the header's `parentCommit` (7 digits or more).

    Raises:
        HubError: 412, the head has moved.
    """
    head, parent = repo.refs[ref], changes.parent
    if parent is not None and not (len(parent) >= 7 and head.startswith(parent)):
        raise HubError(412, f"A commit has happened since {parent}: {ref} is at {head}. Refresh and try again.")
    return write_changes(repo, head, changes)


def commit_to_branch(repo: Repo, ref: str, changes: Changes) -> str:
    """Commit to the head of a branch and return the commit's id; an error leaves the branch unchanged."""
    with repo.lock:
        oid = write_on_head(repo, ref, changes)
        repo.set_ref(ref, oid)
        return oid
