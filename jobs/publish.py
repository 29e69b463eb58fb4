"""Packs to the Hub: files go up from the workers, one commit by the driver makes them a dataset.

Until the last step `main` is unchanged, after it everything is there: data, manifest, card, report and quarantine
come together, in one commit where that fits the Hub's limit on operations, else through a pull request whose merge
is the one step that counts. Each commit names the one that it was made for, so somebody else's commit in between is
an error and never overwritten, and no part of a pull request can get lost. A commit whose answer got lost is
recognised as the one behind its parent.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import httpx2
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
from huggingface_hub.utils import disable_progress_bars
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from packing_udfs import contract, manifest

T = TypeVar("T")
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_STALE = (409, 412)
# What a request to the Hub may raise. hf_xet raises RuntimeError for what its server or the network did.
_HUB_ERRORS = (HfHubHTTPError, httpx2.HTTPError, OSError, RuntimeError, ValueError)
BRIEFLY = 20
logger = logging.getLogger(__name__)


class PublishError(RuntimeError):
    """The Hub did not take the packs; the repository is as it was."""


class OutputError(ValueError):
    """An output that cannot be written to; the message names the field, the value and what to do."""


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, HfHubHTTPError):
        return error.response is None or error.response.status_code in _TRANSIENT
    # A file that is not in the cache is one that the Hub could not be asked for.
    return isinstance(
        error, httpx2.TransportError | ConnectionError | TimeoutError | RuntimeError | LocalEntryNotFoundError
    )


def _is_stale(error: BaseException) -> bool:
    return isinstance(error, HfHubHTTPError) and getattr(error.response, "status_code", None) in _STALE


def _retrying(seconds: float) -> Retrying:
    return Retrying(
        retry=retry_if_exception(_is_transient),
        wait=wait_exponential(multiplier=0.5, max=30),
        stop=stop_after_delay(seconds),
        before_sleep=lambda state: logger.warning("the Hub: %s; trying again", one_line(state.outcome.exception())),
        reraise=True,
    )


def one_line(error: BaseException) -> str:
    """An error's message without the line breaks that huggingface_hub puts into it."""
    return " ".join(str(error).split()) or type(error).__name__


@dataclass(frozen=True)
class Repository:
    """A dataset repository to write to; usable in a worker, where the token comes from the environment again."""

    repo: str
    retry_seconds: float

    def retry(self, call: Callable[..., T], *args, **kwargs) -> T:
        """Call what asks the Hub, again for `retry_seconds` while the Hub is busy or away."""
        return _retrying(self.retry_seconds)(call, *args, **kwargs)

    def retry_briefly(self, call: Callable[..., T], *args, **kwargs) -> T:
        """As `retry`, for at most BRIEFLY seconds: at the start, and when the time for retries is used up."""
        return _retrying(min(BRIEFLY, self.retry_seconds))(call, *args, **kwargs)

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
        except _HUB_ERRORS as error:
            raise PublishError(f"upload of {path_in_repo} to {self.repo} failed: {one_line(error)}") from error
        operation.path_or_fileobj = b""
        return operation

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

    def read_head(self) -> "Head":
        """What the main branch holds now; an empty Head when the repository does not exist. Raises OutputError."""
        try:
            return self.retry(self._read_head)
        except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
            raise OutputError(
                f"output.repo: {self.repo} cannot be read at {constants.ENDPOINT}: {one_line(error)}"
            ) from None

    def _read_head(self) -> "Head":
        try:
            info = HfApi().dataset_info(self.repo)
        except RepositoryNotFoundError:
            return Head(None)
        paths = tuple(sorted(sibling.rfilename for sibling in info.siblings or ()))
        found = [
            (Path(path).stem, _our_info(self._read(path, info.sha)))
            for path in paths
            if path.startswith("manifest/") and path.endswith(".json")
        ]
        try:
            readme = self._read("README.md", info.sha).decode() if "README.md" in paths else ""
        except UnicodeDecodeError as error:
            raise OutputError(f"output.repo: the README.md of {self.repo} is not UTF-8, repair it: {error}") from None
        return Head(info.sha, paths, readme, tuple((split, info) for split, info in found if info))

    def _read(self, path: str, commit: str) -> bytes:
        return Path(HfApi().hf_hub_download(self.repo, path, repo_type="dataset", revision=commit)).read_bytes()

    def create(self, private: bool) -> "Head":
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
        return manifest.load(*(self.retry(self._read, name.format(split=split), commit) for name in names))


def _our_info(data: bytes) -> dict | None:
    """A manifest's info, None when the file is somebody else's."""
    try:
        info = json.loads(data)
    except ValueError:
        return None
    return info if isinstance(info, dict) and {"contract", "run", "runs", "totals"} <= info.keys() else None


@dataclass(frozen=True)
class Head:
    """What a repository holds before the run: its commit and files, or nothing."""

    commit: str | None
    paths: tuple[str, ...] = ()
    readme: str = ""
    manifests: tuple[tuple[str, dict], ...] = ()  # (split, info) of each manifest/{split}.json

    def files_of(self, split: str) -> list[str]:
        """Paths that belong to a split: its data, manifest and quarantine, and no other split's."""
        folders = tuple(f"{d.format(split=split)}/" for d in (contract.DATA_DIR, contract.QUARANTINE_DIR))
        single = [name.format(split=split) for name in (contract.MANIFEST_JSON, contract.MANIFEST_PARQUET)]
        return [path for path in self.paths if path.startswith(folders) or path in single]


def publish(
    repository: Repository,
    head: Head,
    uploaded: Sequence[CommitOperationAdd],
    small_files: dict[str, bytes],
    delete: Sequence[str],
    *,
    run: str,
    max_operations: int,
) -> str:
    """Make everything visible at once and return the new head commit.

    `uploaded`: operations of `Repository.upload`; `small_files`: path → bytes; `delete`: paths to remove;
    `run`: the run's fingerprint, for the commit's title. Raises PublishError with the repository unchanged when the
    head has moved or the Hub keeps refusing.
    """
    added = [*uploaded, *(CommitOperationAdd(path, data) for path, data in sorted(small_files.items()))]
    kept = {operation.path_in_repo for operation in added}
    deleted = [CommitOperationDelete(path, is_folder=False) for path in sorted(set(delete) - kept)]
    operations = [*deleted, *added]
    title = f"Pack {len(uploaded)} shards (run {run[:12]})"
    if len(operations) <= max_operations:
        return _commit(repository, operations, title, head.commit)
    parts = [operations[start : start + max_operations] for start in range(0, len(operations), max_operations)]
    return _publish_in_parts(repository, head, parts, title)


def _commit(repository: Repository, operations: list, title: str, parent: str, revision: str = "main") -> str:
    """A commit on top of `parent`, the head of `revision`; its id, also when the answer with it got lost."""
    call = HfApi().create_commit
    where = {"repo_type": "dataset", "revision": revision, "parent_commit": parent}
    try:
        return repository.retry(call, repository.repo, operations, commit_message=title, **where).oid
    except _HUB_ERRORS as error:
        made = _made_on(repository, parent, title, revision)
        if made:
            return made
        if _is_stale(error):
            raise PublishError(_moved(repository.repo, parent)) from error
        raise PublishError(f"commit to {repository.repo} failed: {one_line(error)}") from error


def _made_on(repository: Repository, parent: str, title: str, revision: str) -> str | None:
    """The commit of this title right behind `parent`; None when there is none or the Hub gives no answer."""
    try:
        commits = repository.retry_briefly(
            HfApi().list_repo_commits, repository.repo, repo_type="dataset", revision=revision
        )
    except _HUB_ERRORS as error:
        logger.warning("%s: what became of the commit is not known: %s", repository.repo, one_line(error))
        return None
    return next((c.commit_id for c, b in pairwise(commits) if b.commit_id == parent and c.title == title), None)


def _publish_in_parts(repository: Repository, head: Head, parts: list[list], title: str) -> str:
    """Commit the parts to a pull request, one on top of the other, and merge it; the merge's commit."""
    api, repo = HfApi(), repository.repo
    try:
        request = repository.retry(api.create_pull_request, repo, title, repo_type="dataset")
        logger.info("%d commits: through pull request %d", len(parts), request.num)
        revision = f"refs/pr/{request.num}"
        tip = repository.retry(api.dataset_info, repo, revision=revision).sha
        if tip != head.commit:
            raise PublishError(_moved(repo, head.commit))
        for i, part in enumerate(parts, 1):
            tip = _commit(repository, part, f"{title}, part {i} of {len(parts)}", tip, revision)
        if repository.retry(api.dataset_info, repo).sha != head.commit:
            raise PublishError(_moved(repo, head.commit))
        return repository.retry(_merge, api, repo, request.num)
    except PublishError:
        raise
    except _HUB_ERRORS as error:
        raise PublishError(f"publishing to {repo} failed: {one_line(error)}") from error


def _merge(api: HfApi, repo: str, num: int) -> str:
    """Merge a pull request unless it is merged, as it is when an answer got lost; the merge's commit."""
    status = api.get_discussion_details(repo, num, repo_type="dataset").status
    if status == "draft":  # as it starts
        api.change_discussion_status(repo, num, "open", repo_type="dataset")
    if status != "merged":
        api.merge_pull_request(repo, num, repo_type="dataset")
    return api.get_discussion_details(repo, num, repo_type="dataset").merge_commit_oid


def _moved(repo: str, commit: str | None) -> str:
    return (
        f"{repo}: its main branch is no longer at {commit}, where it was when the run started: somebody else "
        "committed. Nothing was published; run the job again"
    )
