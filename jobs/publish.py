"""Packs to the Hub: files go up from the workers, one commit by the driver makes them a dataset.

Until the last step `main` is unchanged, after it everything is there: data, manifest, card, report and quarantine
come together, in one commit where that fits the Hub's limit on operations, else through a pull request whose merge
is the one step that counts. The commit names the head it was made for, so somebody else's commit in between is an
error and never overwritten. An answer that got lost is recognised by the run's fingerprint in the manifest.
"""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from packing_udfs import contract, manifest

_TRANSIENT = (408, 429, 500, 502, 503, 504)
_STALE = (409, 412)
logger = logging.getLogger(__name__)


class PublishError(RuntimeError):
    """The Hub did not take the packs; the repository is as it was."""


class OutputError(ValueError):
    """An output that cannot be written to; the message names the field, the value and what to do."""


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, HfHubHTTPError):
        return error.response is None or error.response.status_code in _TRANSIENT
    # hf_xet raises RuntimeError for what its server or the network did after its own retries.
    return isinstance(error, httpx2.TransportError | ConnectionError | TimeoutError | RuntimeError)


def _retrying(seconds: float) -> Retrying:
    return Retrying(
        retry=retry_if_exception(_is_transient),
        wait=wait_exponential(multiplier=0.5, max=30),
        stop=stop_after_delay(seconds),
        before_sleep=lambda state: logger.warning("the Hub: %s; trying again", state.outcome.exception()),
        reraise=True,
    )


@dataclass(frozen=True)
class Repository:
    """A dataset repository to write to; usable in a worker, where the token comes from the environment again."""

    repo: str
    retry_seconds: float

    def upload(self, path_in_repo: str, file: Path) -> CommitOperationAdd:
        """Upload a local file and return the operation that puts it in a commit. The file may go afterwards.

        Raises PublishError when the Hub keeps refusing for `retry_seconds`.
        """
        disable_progress_bars()  # of every single file; the job has one bar over shards
        operation = CommitOperationAdd(path_in_repo=path_in_repo, path_or_fileobj=str(file))
        try:
            for attempt in _retrying(self.retry_seconds):
                with attempt:
                    HfApi().preupload_lfs_files(self.repo, [operation], repo_type="dataset")
        except (HfHubHTTPError, httpx2.TransportError, OSError, RuntimeError) as error:
            raise PublishError(f"upload of {path_in_repo} to {self.repo} failed: {error}") from error
        operation.path_or_fileobj = b""
        return operation


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


def check_token() -> None:
    """Refuse early what a write would refuse late. Raises OutputError when there is no valid token."""
    if not get_token():
        raise OutputError(f"output.repo: writing to {constants.ENDPOINT} needs a token; set HF_TOKEN")
    try:
        HfApi().whoami()
    except HfHubHTTPError as error:
        raise OutputError(f"output.repo: {constants.ENDPOINT} refuses the token in HF_TOKEN: {error}") from None
    except httpx2.HTTPError as error:
        raise OutputError(f"output.repo: the Hub at {constants.ENDPOINT} cannot be reached: {error}") from None


def read_head(repo: str) -> Head:
    """What the repository's main branch holds now; an empty Head when the repository does not exist."""
    api = HfApi()
    try:
        info = api.dataset_info(repo)
    except RepositoryNotFoundError:
        return Head(None)
    paths = tuple(sorted(sibling.rfilename for sibling in info.siblings or ()))

    def read(path: str) -> str:
        return Path(api.hf_hub_download(repo, path, repo_type="dataset", revision=info.sha)).read_text("utf-8")

    manifests = tuple(
        (Path(path).stem, json.loads(read(path)))
        for path in paths
        if path.startswith("manifest/") and path.endswith(".json")
    )
    return Head(info.sha, paths, read("README.md") if "README.md" in paths else "", manifests)


def create(repo: str, private: bool) -> Head:
    """Make the repository when there is none, and return what it holds."""
    try:
        HfApi().create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
    except HfHubHTTPError as error:
        raise OutputError(f"output.repo: {repo} cannot be made at {constants.ENDPOINT}: {error}") from None
    return read_head(repo)


def publish(
    repository: Repository,
    head: Head,
    uploaded: Sequence[CommitOperationAdd],
    small_files: dict[str, bytes],
    delete: Sequence[str],
    *,
    run: str,
    manifest_path: str,
    max_operations: int,
) -> str:
    """Make everything visible at once and return the new head commit.

    `uploaded`: operations of `Repository.upload`; `small_files`: path → bytes; `delete`: paths to remove;
    `run`: the run's fingerprint, which the file at `manifest_path` carries. Raises PublishError with the repository
    unchanged when the head has moved or the Hub keeps refusing.
    """
    added = [*uploaded, *(CommitOperationAdd(path, data) for path, data in sorted(small_files.items()))]
    kept = {operation.path_in_repo for operation in added}
    deleted = [CommitOperationDelete(path, is_folder=False) for path in sorted(set(delete) - kept)]
    operations = [*deleted, *added]
    title = f"Pack {len(uploaded)} shards (run {run[:12]})"
    api = HfApi()

    def commit(part: list, message: str, **where) -> str | None:
        return _create_commit(api, repository, part, message, **where)

    if len(operations) <= max_operations:
        oid = commit(operations, title, parent_commit=head.commit)
        return oid or _recognise(api, repository.repo, head, run, manifest_path)
    request = api.create_pull_request(repository.repo, title, repo_type="dataset")
    logger.info("%d operations: through pull request %d", len(operations), request.num)
    for start in range(0, len(operations), max_operations):
        part = operations[start : start + max_operations]
        commit(part, f"{title}, operations from {start}", revision=f"refs/pr/{request.num}")
    if api.dataset_info(repository.repo).sha != head.commit:
        raise PublishError(_moved(repository.repo, head))
    try:
        api.change_discussion_status(repository.repo, request.num, "open", repo_type="dataset")  # it starts as a draft
        api.merge_pull_request(repository.repo, request.num, repo_type="dataset")
    except (HfHubHTTPError, httpx2.TransportError) as error:
        return _recognise(api, repository.repo, head, run, manifest_path, error)
    return api.dataset_info(repository.repo).sha


def _create_commit(api: HfApi, repository: Repository, operations: list, message: str, **where) -> str | None:
    """One commit, tried again while the Hub is busy; None when a later try found the head moved (a lost answer?)."""
    tries = 0
    try:
        for attempt in _retrying(repository.retry_seconds):
            with attempt:
                tries += 1
                info = api.create_commit(
                    repository.repo, operations, commit_message=message, repo_type="dataset", **where
                )
                return info.oid
    except (HfHubHTTPError, httpx2.TransportError, OSError, RuntimeError, ValueError) as error:
        response = getattr(error, "response", None)
        if response is not None and response.status_code in _STALE and tries > 1:
            return None
        if response is not None and response.status_code in _STALE:
            raise PublishError(f"{repository.repo}: somebody else committed during the run: {error}") from error
        raise PublishError(f"commit to {repository.repo} failed: {error}") from error
    raise AssertionError("retrying ends in a return or a raise")


def _recognise(api: HfApi, repo: str, head: Head, run: str, manifest_path: str, error: Exception | None = None) -> str:
    """The new head when it is this run's own commit, whose answer got lost. Raises PublishError otherwise."""
    for _ in range(3):
        try:
            commit = api.dataset_info(repo).sha
            path = api.hf_hub_download(repo, manifest_path, repo_type="dataset", revision=commit)
        except (EntryNotFoundError, RevisionNotFoundError):
            break
        except (HfHubHTTPError, httpx2.TransportError):
            time.sleep(1)
            continue
        if commit != head.commit and json.loads(Path(path).read_text("utf-8")).get("run") == run:
            return commit
        break
    raise PublishError(_moved(repo, head) if error is None else f"publishing to {repo} failed: {error}") from error


def _moved(repo: str, head: Head) -> str:
    return (
        f"{repo}: its main branch is no longer at {head.commit}, where it was when the run started: somebody else "
        "committed. Nothing was published; run the job again"
    )


def read_manifest(repo: str, commit: str, split: str) -> manifest.Manifest:
    """The manifest of a split at a commit."""
    paths = [
        HfApi().hf_hub_download(repo, name.format(split=split), repo_type="dataset", revision=commit)
        for name in (contract.MANIFEST_JSON, contract.MANIFEST_PARQUET)
    ]
    return manifest.load(*(Path(path).read_bytes() for path in paths))
