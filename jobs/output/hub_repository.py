"""The Hub as an output: files go up from the workers, a commit by the driver makes them a dataset.

Until the last step `main` is unchanged, after it everything is there: data, manifest, card, report and quarantine
come together (`jobs.output.pull_request`). Each commit names the one that it was made for, so somebody else's commit
in between is an error and never overwritten, and no part of a pull request can get lost. A commit whose answer got
lost is recognised as the one behind its parent.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import httpx2
from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.hf_api import GitCommitInfo, RepoFile
from huggingface_hub.utils import disable_progress_bars

from jobs.output.interface import Head, MovedError, OutputError, PublishError, Run, our_info
from jobs.output.pull_request import PullRequestDraft
from jobs.output.retries import HUB_ERRORS, is_transient, one_line, retrying
from jobs.output.sidecars import left_in, names_in
from packing_udfs import contract, manifest
from packing_udfs.storage.byte_source import Source
from packing_udfs.storage.hub import HubSource

T = TypeVar("T")
_STALE = (409, 412)
BRIEFLY = 20
logger = logging.getLogger(__name__)


def _is_transient(error: BaseException) -> bool:
    return is_transient(error) or (isinstance(error, RuntimeError) and not isinstance(error, HfHubHTTPError))


def _is_stale(error: BaseException) -> bool:
    return isinstance(error, HfHubHTTPError) and getattr(error.response, "status_code", None) in _STALE


@dataclass(frozen=True)
class Repository:
    """A dataset repository to write to; usable in a worker, where the token comes from the environment again."""

    repo: str
    retry_seconds: float
    max_operations: int = 100
    """Operations in a commit at most."""
    checkpoint_seconds: float = 600
    """After so long, finished shards are kept in a pull request (`jobs.output.pull_request`)."""

    def retry(self, call: Callable[..., T], *args, **kwargs) -> T:
        """Call what asks the Hub, again for `retry_seconds` while the Hub is busy or away."""
        return retrying(self.retry_seconds, _is_transient)(call, *args, **kwargs)

    def retry_briefly(self, call: Callable[..., T], *args, **kwargs) -> T:
        """As `retry`, for at most BRIEFLY seconds: at the start, and when the time for retries is used up."""
        return retrying(min(BRIEFLY, self.retry_seconds), _is_transient)(call, *args, **kwargs)

    def upload(self, path_in_repo: str, file: Path) -> CommitOperationAdd:
        """Upload a local file and return the operation that puts it in a commit. The file may go afterwards.

        Raises PublishError when the Hub keeps refusing for `retry_seconds`.
        """
        if not get_token():
            raise PublishError(f"upload of {path_in_repo} to {self.repo} needs a token; set HF_TOKEN on the workers")
        disable_progress_bars()  # of every single file; the job has one bar over shards
        operation = CommitOperationAdd(path_in_repo=path_in_repo, path_or_fileobj=str(file))
        try:
            self.retry(HfApi().preupload_lfs_files, self.repo, [operation], repo_type="dataset")
        except HUB_ERRORS as error:
            raise PublishError(f"upload of {path_in_repo} to {self.repo} failed: {one_line(error)}") from error
        operation.path_or_fileobj = b""
        return operation

    def remind(self, path_in_repo: str, data: bytes) -> None:
        """Ask Xet for what it stored together with `data`, the beginning of a file, by uploading that once more.

        No commit refers to it. A Hub that is busy is none of a shard's faults: the upload of the shard will wait.
        """
        if constants.HF_HUB_DISABLE_XET:
            return
        try:
            operation = CommitOperationAdd(path_in_repo=path_in_repo, path_or_fileobj=data)
            HfApi().preupload_lfs_files(self.repo, [operation], repo_type="dataset")
        except HUB_ERRORS as error:
            logger.warning("%s: %s: what Xet has of it could not be asked: %s", self.repo, path_in_repo, error)

    def check_token(self) -> None:
        """Refuse early what a write would refuse late. Raises OutputError when there is no valid token."""
        if not get_token():
            raise OutputError(f"output.repo: writing to {constants.ENDPOINT} needs a token; set HF_TOKEN")
        try:
            self.retry_briefly(HfApi().whoami)
        except HfHubHTTPError as error:
            if _is_transient(error):
                raise OutputError(
                    f"output.repo: the Hub at {constants.ENDPOINT} stays busy: {one_line(error)}"
                ) from None
            raise OutputError(
                f"output.repo: {constants.ENDPOINT} refuses the token in HF_TOKEN: {one_line(error)}"
            ) from None
        except httpx2.HTTPError as error:
            raise OutputError(
                f"output.repo: the Hub at {constants.ENDPOINT} cannot be reached: {one_line(error)}"
            ) from None

    def read_head(self) -> Head:
        """What the main branch holds now; an empty Head when the repository does not exist. Raises OutputError."""
        try:
            return self.retry(self._read_head)
        except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
            raise OutputError(
                f"output.repo: {self.repo} cannot be read at {constants.ENDPOINT}: {one_line(error)}"
            ) from None

    def _read_head(self) -> Head:
        try:
            info = HfApi().dataset_info(self.repo)
        except RepositoryNotFoundError:
            return Head(None)
        paths = tuple(sorted(sibling.rfilename for sibling in info.siblings or ()))
        found = [
            (Path(path).stem, our_info(self._read(path, info.sha)))
            for path in paths
            if path.startswith("manifest/") and path.endswith(".json")
        ]
        try:
            readme = self._read("README.md", info.sha).decode() if "README.md" in paths else ""
        except UnicodeDecodeError as error:
            raise OutputError(f"output.repo: the README.md of {self.repo} is not UTF-8, repair it: {error}") from None
        left = left_in(self.tree(info.sha), lambda path: self._read(path, info.sha)) if names_in(paths) else ()
        ours = tuple((split, info) for split, info in found if info)
        return Head(info.sha, tuple(path for path in paths if path not in left), readme, ours, left)

    def _read(self, path: str, commit: str) -> bytes:
        return Path(HfApi().hf_hub_download(self.repo, path, repo_type="dataset", revision=commit)).read_bytes()

    def create(self, private: bool) -> Head:
        """Make the repository when there is none, and return what it holds. Raises OutputError.

        What a commit would be refused for is asked here too: a repository is found without the right to write to it.
        """
        try:
            self.retry(HfApi().create_repo, self.repo, repo_type="dataset", private=private, exist_ok=True)
            self.retry(HfApi().auth_check, self.repo, repo_type="dataset", write=True)
        except (HfHubHTTPError, httpx2.HTTPError) as error:
            raise OutputError(
                f"output.repo: {self.repo} cannot be made or written to at {constants.ENDPOINT} with the token in "
                f"HF_TOKEN: {one_line(error)}"
            ) from None
        return self.read_head()

    def read_manifest(self, commit: str, split: str) -> manifest.Manifest:
        """The manifest of a split at a commit."""
        names = (contract.MANIFEST_JSON, contract.MANIFEST_PARQUET)
        return manifest.load(*(self.read(name.format(split=split), commit) for name in names))

    def source(self, commit: str) -> Source:
        """Where workers read what is published at a commit."""
        return HubSource(self.repo, commit, self.retry_seconds)

    def read_report(self, commit: str) -> dict:
        """The published report at a commit."""
        return json.loads(self.read("report.json", commit))

    def draft(self, head: Head, run: Run) -> PullRequestDraft:
        """The run's draft on top of `head`: a pull request where an earlier attempt left one."""
        return PullRequestDraft.find(self, head, run)

    def read(self, path: str, commit: str) -> bytes:
        """A file at a commit."""
        return self.retry(self._read, path, commit)

    def tree(self, commit: str) -> dict[str, str]:
        """Path → id of the content of each file at a commit: its SHA-256 for large files, else git's blob id."""
        entries = self.retry(lambda: list(HfApi().list_repo_tree(
            self.repo, recursive=True, revision=commit, repo_type="dataset")))  # fmt: skip
        return {e.path: e.lfs.sha256 if e.lfs else e.blob_id for e in entries if isinstance(e, RepoFile)}

    def head_of(self, revision: str) -> str:
        """The commit that a branch or pull request is at."""
        return self.retry(HfApi().dataset_info, self.repo, revision=revision).sha

    def history(self, revision: str) -> list[GitCommitInfo]:
        """Commits of a branch or pull request, newest first."""
        return self.retry(HfApi().list_repo_commits, self.repo, repo_type="dataset", revision=revision)

    def commit(self, operations: list, title: str, parent: str, revision: str = "main") -> str:
        """A commit on top of `parent`, the head of `revision`; its id, also when the answer with it got lost.

        Raises MovedError when `revision` is elsewhere, PublishError when the Hub keeps refusing.
        """
        call = HfApi().create_commit
        where = {"repo_type": "dataset", "revision": revision, "parent_commit": parent}
        try:
            return self.retry(call, self.repo, operations, commit_message=title, **where).oid
        except HUB_ERRORS as error:
            made = self._made_on(parent, title, revision)
            if made:
                return made
            if _is_stale(error):
                raise MovedError(self.repo, parent, revision) from error
            raise PublishError(f"commit to {self.repo} failed: {one_line(error)}") from error

    def _made_on(self, parent: str, title: str, revision: str) -> str | None:
        """The commit of this title right behind `parent`; None when there is none or the Hub gives no answer."""
        try:
            commits = self.retry_briefly(HfApi().list_repo_commits, self.repo, repo_type="dataset", revision=revision)
        except HUB_ERRORS as error:
            logger.warning("%s: what became of the commit is not known: %s", self.repo, one_line(error))
            return None
        return next((c.commit_id for c, b in pairwise(commits) if b.commit_id == parent and c.title == title), None)
