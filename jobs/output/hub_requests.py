"""Requests to a dataset repository on the Hub: reading commits and making them, repeated while the Hub is busy.

Each commit names its parent. So somebody else's commit in between is an error and is never overwritten, and a commit
whose answer got lost is recognised as the one that follows its parent.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import GitCommitInfo, RepoFile

from jobs.output.interface import MovedError, PublishError
from jobs.output.retries import HUB_ERRORS, is_transient, one_line, retrying, status_of

__all__ = ["HubRequests", "Operation", "may_pass"]

T = TypeVar("T")
Operation = CommitOperationAdd | CommitOperationDelete
BRIEFLY = 20  # seconds
_STALE = (409, 412)
logger = logging.getLogger(__name__)


def may_pass(error: BaseException) -> bool:
    """Whether an error is worth another try: transient, or a RuntimeError, which hf_xet raises for its server."""
    return is_transient(error) or (isinstance(error, RuntimeError) and not isinstance(error, HfHubHTTPError))


@dataclass(frozen=True)
class HubRequests:
    """A dataset repository and how it is asked."""

    repo: str
    retry_seconds: float
    max_operations: int = 100  # in a commit at most
    checkpoint_seconds: float = 600  # after so long, finished shards are stored (`jobs.output.hub_draft`)

    def retry(self, call: Callable[..., T], *args, **kwargs) -> T:
        """Make a request, again for `retry_seconds` while the Hub is busy or away."""
        return retrying(self.retry_seconds, may_pass)(call, *args, **kwargs)

    def retry_briefly(self, call: Callable[..., T], *args, **kwargs) -> T:
        """As `retry`, for at most BRIEFLY seconds: at the start, and when the time for retries is used up."""
        return retrying(min(BRIEFLY, self.retry_seconds), may_pass)(call, *args, **kwargs)

    def read(self, path: str, commit: str) -> bytes:
        """A file at a commit."""
        return self.retry(self._read, path, commit)

    def _read(self, path: str, commit: str) -> bytes:
        return Path(HfApi().hf_hub_download(self.repo, path, repo_type="dataset", revision=commit)).read_bytes()

    def tree(self, commit: str) -> dict[str, str]:
        """Path → id of the content of each file at a commit: its SHA-256 for large files, else git's blob id."""
        entries = self.retry(lambda: list(HfApi().list_repo_tree(
            self.repo, recursive=True, revision=commit, repo_type="dataset")))  # fmt: skip
        return {e.path: e.lfs.sha256 if e.lfs else e.blob_id for e in entries if isinstance(e, RepoFile)}

    def head_of(self, revision: str) -> str:
        """The commit that a branch or pull request is at."""
        commit = self.retry(HfApi().dataset_info, self.repo, revision=revision).sha
        assert commit is not None, "the Hub names the commit of every revision"
        return commit

    def history(self, revision: str) -> list[GitCommitInfo]:
        """Commits of a branch or pull request, newest first."""
        return self.retry(HfApi().list_repo_commits, self.repo, repo_type="dataset", revision=revision)

    def commit(self, operations: list[Operation], title: str, parent: str, revision: str = "main") -> str:
        """Commit on top of `parent`, the head of `revision`; the new commit's id, also when the answer got lost.

        Raises MovedError when `revision` is elsewhere, PublishError when the Hub keeps refusing.
        """
        where = {"repo_type": "dataset", "revision": revision, "parent_commit": parent}
        try:
            return self.retry(HfApi().create_commit, self.repo, operations, commit_message=title, **where).oid
        except HUB_ERRORS as error:
            if made := self._made_on(parent, title, revision):
                return made
            if status_of(error) in _STALE:
                raise MovedError(self.repo, parent, revision) from error
            raise PublishError(f"commit to {self.repo} failed: {one_line(error)}") from error

    def _made_on(self, parent: str, title: str, revision: str) -> str | None:
        """The commit of this title that follows `parent`; None when there is none or the Hub gives no answer."""
        try:
            commits = self.retry_briefly(HfApi().list_repo_commits, self.repo, repo_type="dataset", revision=revision)
        except HUB_ERRORS as error:
            logger.warning("%s: it is not known whether the commit was made: %s", self.repo, one_line(error))
            return None
        return next((c.commit_id for c, b in pairwise(commits) if b.commit_id == parent and c.title == title), None)
