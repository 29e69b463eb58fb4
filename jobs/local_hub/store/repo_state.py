"""The records that a repository stores as JSON: its state (`repo.json`) and its commits.

All records are frozen, so threads share them without a lock. A commit lists every file: 10,000 files are about 2 MB.
Rejected: git's trees, which save disk over many commits but cost code that a Hub of one machine does not need.
"""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

__all__ = ["Commit", "Discussion", "FileEntry", "RepoState", "now"]


def now() -> str:
    """The time in the Hub's format: UTC, in milliseconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    def to_json(self) -> bytes:
        """The record as it is stored."""
        return self.model_dump_json(by_alias=True, exclude_unset=True).encode()


class FileEntry(_Record):
    """A file in a commit."""

    size: int
    oid: str  # git's blob id of the content, or of the LFS pointer
    lfs: str | None = None  # sha256 of an LFS file
    pointer: int | None = None  # bytes of its LFS pointer
    commit: str = ""  # the commit that last changed the file

    @property
    def content(self) -> str:
        """The name of the stored content: sha256 of an LFS file, else git's blob id."""
        return self.lfs or self.oid


class Commit(_Record):
    """A commit; the first parent is the branch that it was added to."""

    oid: str
    parents: list[str]
    title: str
    message: str
    date: str
    files: dict[str, FileEntry]  # by path, sorted


class Discussion(_Record):
    """A discussion or a pull request; see discussions.py."""

    num: int
    title: str
    status: str  # draft, open, closed or merged
    is_pull_request: bool = False
    created_at: str
    events: list[dict[str, Any]]  # in the API's form
    base: str = ""  # of a pull request: the full name of the reference that it is merged into
    start: str = ""  # … and the commit that it started from
    merge_commit_id: str | None = None


class RepoState(_Record):
    """Everything about a repository that changes; `refs` maps full names (`refs/heads/main`) to commit ids."""

    id: str
    kind: str
    private: bool
    created: str
    refs: dict[str, str]
    discussions: list[Discussion]
