"""Applying a commit's operations to the files of its parent, all or nothing.

The client sends one JSON object a line (huggingface_hub `_prepare_commit_payload`): a `header` with `summary`,
`description` and perhaps `parentCommit`, then `file` (base64 content), `lfsFile` (sha256; no size when it is a
copy), `deletedFile` and `deletedFolder`. Deletions refer to the parent's files, so that replacing a folder in one
commit works in any order.
"""

import base64
from collections.abc import Callable
from typing import Any

from .blobs import Blobs, git_blob_id, lfs_pointer
from .errors import HubError
from .repos import Repo

MAX_REGULAR_BYTES = 10 << 20  # above, the Hub asks for LFS
LFS_NAMES = """
    7z arrow bin bz2 ftz gz h5 lz4 mds npy npz onnx parquet pkl pt rar safetensors tar tgz zip zst
    pcm sam raw aac flac mp3 ogg wav bmp gif png tiff jpg jpeg webp mp4 webm
"""
LFS_SUFFIXES = tuple(f".{name}" for name in LFS_NAMES.split())
GITATTRIBUTES = "".join(f"*{s} filter=lfs diff=lfs merge=lfs -text\n" for s in LFS_SUFFIXES).encode()


def wants_lfs(path: str, size: int, sample: bytes) -> bool:
    """Whether the Hub stores a file by LFS: by its suffix, over 10 MiB, or when its first bytes are binary."""
    return path.lower().endswith(LFS_SUFFIXES) or size > MAX_REGULAR_BYTES or b"\0" in sample


def regular_entry(blobs: Blobs, data: bytes) -> dict[str, Any]:
    """Store a regular file's content; its entry in a commit."""
    return {"size": len(data), "oid": blobs.put_regular(data)}


def lfs_entry(sha256: str, size: int) -> dict[str, Any]:
    """The entry of an LFS file in a commit."""
    pointer = lfs_pointer(sha256, size)
    return {"size": size, "oid": git_blob_id(pointer), "lfs": sha256, "pointer": len(pointer)}


def check_path(path: Any) -> str:
    """A path in a repository.

    Raises:
        HubError: 400, not a relative path of ordinary parts.
    """
    if not isinstance(path, str) or not path or any(p in ("", ".", "..", ".git") for p in path.split("/")):
        raise HubError(400, f"{path!r} is not a valid path in a repository")
    return path


class Changes:
    """What one commit does: new entries, deleted paths, and the header."""

    def __init__(self, blobs: Blobs, lfs_size: Callable[[str], int | None]):
        self.blobs = blobs
        self.lfs_size = lfs_size  # bytes of an LFS object, None if it was never uploaded
        self.header: dict[str, Any] = {}
        self.added: dict[str, dict] = {}
        self.deleted_files: list[str] = []
        self.deleted_folders: list[str] = []

    @property
    def title(self) -> str:
        return self.header.get("summary", "")

    @property
    def message(self) -> str:
        return self.header.get("description", "")

    def read(self, lines: list[dict]) -> "Changes":
        """Take in the operations; contents of regular files are stored.

        Raises:
            HubError: 400, an operation that is malformed or names content that isn't here.
        """
        for line in lines:
            key, value = line.get("key"), line.get("value")
            if not isinstance(value, dict):
                raise HubError(400, f"operation {key!r} has no value")
            if key == "header":
                self.header = value
            elif key == "file":
                self.added[check_path(value.get("path"))] = self._regular(value)
            elif key == "lfsFile":
                self.added[check_path(value.get("path"))] = self._lfs(value)
            elif key == "deletedFile":
                self.deleted_files.append(check_path(value.get("path")))
            elif key == "deletedFolder":
                self.deleted_folders.append(check_path(str(value.get("path")).rstrip("/")))
            else:
                raise HubError(400, f"operation {key!r} is not known")
        return self

    def _regular(self, value: dict) -> dict[str, Any]:
        data = base64.b64decode(value.get("content", ""), validate=True)
        if len(data) > MAX_REGULAR_BYTES:
            raise HubError(400, f"{value['path']}: {len(data)} bytes are too many for a regular file; use LFS")
        return regular_entry(self.blobs, data)

    def _lfs(self, value: dict) -> dict[str, Any]:
        sha256 = str(value.get("oid"))
        size = self.lfs_size(sha256)
        if size is None:
            raise HubError(400, f"{value['path']}: LFS object {sha256} was never uploaded")
        if value.get("size", size) != size:
            raise HubError(400, f"{value['path']}: LFS object {sha256} has {size} bytes, not {value['size']}")
        return lfs_entry(sha256, size)

    def apply(self, before: dict[str, dict]) -> tuple[dict[str, dict], set[str]]:
        """The files after the commit, and the paths that it touched.

        Raises:
            HubError: 404 EntryNotFound, a deletion of what isn't there; 400, a file where a folder is.
        """
        files = dict(before)
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
        for path in gone:
            del files[path]
        files.update(self.added)
        folders = {path[:i] for path in files for i, c in enumerate(path) if c == "/"} if self.added else set()
        both = sorted(folders & files.keys())
        if both:
            raise HubError(400, f"{both[0]} is a file and a folder at once")
        return files, gone | self.added.keys()


def check_parent(changes: Changes, ref: str, head: str) -> None:
    """Check the header's `parentCommit` (at least 7 digits) against the head of a reference.

    Raises:
        HubError: 412, somebody committed since.
    """
    parent = changes.header.get("parentCommit")
    if parent is not None and not (len(parent) >= 7 and head.startswith(parent)):
        raise HubError(412, f"A commit has happened since {parent}: {ref} is at {head}. Refresh and try again.")


def write_changes(repo: Repo, parent: str, changes: Changes) -> str:
    """Store the commit that these changes make of a parent; the caller points a reference at it."""
    files, touched = changes.apply(repo.commit(parent)["files"])
    return repo.write_commit([parent], changes.title, changes.message, files, touched)


def commit_to_branch(repo: Repo, ref: str, changes: Changes) -> str:
    """Commit to the head of a branch and return the commit's id.

    Raises:
        HubError: as `check_parent` and `Changes.apply` do; the branch is unchanged.
    """
    with repo.lock:
        check_parent(changes, ref, repo.refs[ref])
        oid = write_changes(repo, repo.refs[ref], changes)
        repo.set_ref(ref, oid)
        return oid
