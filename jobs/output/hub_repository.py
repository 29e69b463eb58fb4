"""The Hub as an output: workers upload files, and a commit by the driver makes them a dataset.

Until the last step `main` is unchanged, afterwards everything is there: data, manifest, card, report and quarantine
come together (`jobs.output.hub_draft`).
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import disable_progress_bars

from jobs.output.hub_draft import HubDraft
from jobs.output.hub_requests import HubRequests, may_pass
from jobs.output.interface import Head, OutputError, Published, PublishError, Run
from jobs.output.retries import HUB_ERRORS, one_line
from jobs.output.sidecars import left_in, names_in
from packing_udfs.storage.byte_source import Source
from packing_udfs.storage.hub import HubSource

__all__ = ["Repository"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Repository(HubRequests, Published):
    """A dataset repository to write to; usable in a worker, which takes the token from its own environment."""

    def check_token(self) -> None:
        """Refuse early what a write would refuse late. Raises OutputError when there is no valid token."""
        hub = constants.ENDPOINT
        if not get_token():
            raise OutputError(f"output.repo: writing to {hub} needs a token; set HF_TOKEN")
        try:
            self.retry_briefly(HfApi().whoami)
        except (HfHubHTTPError, httpx2.HTTPError) as error:
            if not isinstance(error, HfHubHTTPError):
                what = f"the Hub at {hub} cannot be reached"
            else:
                what = f"the Hub at {hub} stays busy" if may_pass(error) else f"{hub} refuses the token in HF_TOKEN"
            raise OutputError(f"output.repo: {what}: {one_line(error)}") from None

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
        commit = info.sha
        assert commit is not None, "the Hub names the commit of every revision"
        paths = [sibling.rfilename for sibling in info.siblings or ()]
        left = left_in(self.tree(commit), lambda path: self._read(path, commit)) if names_in(paths) else ()
        readme = self._read("README.md", commit) if "README.md" in paths else b""
        try:
            return Head.of(commit, paths, readme, lambda path: self._read(path, commit), left)
        except UnicodeDecodeError as error:
            raise OutputError(f"output.repo: the README.md of {self.repo} is not UTF-8, repair it: {error}") from None

    def create(self, private: bool) -> Head:
        """Make the repository unless it exists, and return what it holds. Raises OutputError.

        The right to write is checked too: a token that may only read finds the repository as well.
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

    def source(self, commit: str) -> Source:
        """Where workers read what is published at a commit."""
        return HubSource(self.repo, commit, self.retry_seconds)

    def upload(self, path_in_repo: str, file: Path) -> CommitOperationAdd:
        """Upload a local file and return the operation that puts it in a commit. The file may be removed afterwards.

        Raises PublishError when the Hub keeps refusing for `retry_seconds`.
        """
        if not get_token():
            raise PublishError(f"upload of {path_in_repo} to {self.repo} needs a token; set HF_TOKEN on the workers")
        disable_progress_bars()  # one for each file; the job has one bar over shards
        operation = CommitOperationAdd(path_in_repo=path_in_repo, path_or_fileobj=str(file))
        try:
            self.retry(HfApi().preupload_lfs_files, self.repo, [operation], repo_type="dataset")
        except HUB_ERRORS as error:
            raise PublishError(f"upload of {path_in_repo} to {self.repo} failed: {one_line(error)}") from error
        return operation

    def remind(self, path_in_repo: str, data: bytes) -> None:
        """Ask Xet what it stores together with `data`, the beginning of a file, by uploading that once more.

        No commit refers to it. A busy Hub is only logged: the upload of the shard waits for it.
        """
        if constants.HF_HUB_DISABLE_XET:
            return
        try:
            operation = CommitOperationAdd(path_in_repo=path_in_repo, path_or_fileobj=data)
            HfApi().preupload_lfs_files(self.repo, [operation], repo_type="dataset")
        except HUB_ERRORS as error:
            logger.warning("%s: %s: Xet could not be asked what it stores of it: %s", self.repo, path_in_repo, error)

    def draft(self, head: Head, run: Run) -> HubDraft:
        """The run's draft on top of `head`: a pull request if an earlier attempt left one."""
        return HubDraft.find(self, head, run)
