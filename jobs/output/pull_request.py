"""A pull request of a dataset repository: found by its title, opened once, merged once, or closed."""

import logging
from dataclasses import dataclass

from huggingface_hub import Discussion, DiscussionWithDetails, HfApi

from jobs.output.hub_requests import HubRequests
from jobs.output.interface import PublishError
from jobs.output.retries import HUB_ERRORS, one_line

__all__ = ["PullRequest", "own_pull_requests"]

logger = logging.getLogger(__name__)


def own_pull_requests(repository: HubRequests) -> list[Discussion]:
    """The user's own pull requests, newest first: anybody may open one, with any title."""
    author = repository.retry(HfApi().whoami)["name"]
    found = repository.retry(lambda: list(HfApi().get_repo_discussions(
        repository.repo, author=author, discussion_type="pull_request", repo_type="dataset")))  # fmt: skip
    return [one for one in found if one.author == author]


@dataclass(frozen=True)
class PullRequest:
    """One pull request by its number."""

    repository: HubRequests
    num: int

    @classmethod
    def open(cls, repository: HubRequests, title: str) -> "PullRequest":
        """The user's draft of this title, made unless it exists: an earlier request's answer may have got lost."""

        def find_or_make() -> int:
            same = [one.num for one in own_pull_requests(repository) if (one.title, one.status) == (title, "draft")]
            return same[0] if same else HfApi().create_pull_request(repository.repo, title, repo_type="dataset").num

        return cls(repository, repository.retry(find_or_make))

    @property
    def revision(self) -> str:
        return f"refs/pr/{self.num}"

    def rename(self, title: str) -> None:
        self.repository.retry(HfApi().rename_discussion, self.repository.repo, self.num, title, repo_type="dataset")

    def merge(self) -> str:
        """Merge it unless it is merged, as after a lost answer; the merge's commit. Raises HUB_ERRORS."""
        return self.repository.retry(self._merge)

    def _merge(self) -> str:
        api, where = HfApi(), (self.repository.repo, self.num)
        status = self._details().status
        if status == "draft":  # as it starts
            api.change_discussion_status(*where, "open", repo_type="dataset")
        if status != "merged":
            api.merge_pull_request(*where, repo_type="dataset")
        commit = self._details().merge_commit_oid
        if commit is None:
            raise PublishError(f"{self.repository.repo}: pull request {self.num} was merged, but into no commit")
        return commit

    def merge_commit(self) -> str | None:
        """The commit that merged it, None before."""
        return self.repository.retry(self._details).merge_commit_oid

    def raise_if_ended(self, cause: Exception, *ends: str) -> None:
        """Raises PublishError, for an error of the Hub, when the pull request was `closed` or `merged` meanwhile."""
        try:
            status = self.repository.retry_briefly(self._details).status
        except HUB_ERRORS as error:
            name = self.repository.repo
            logger.warning("pull request %d of %s cannot be asked for: %s", self.num, name, one_line(error))
            return
        if status in ends:
            raise PublishError(
                f"{self.repository.repo}: pull request {self.num}, where the run kept its finished shards, was "
                f"{status} before the run was done; run the job again: it starts anew"
            ) from cause

    def close(self, reason: str) -> None:
        """Close it with a comment; a Hub that does not answer leaves it open."""
        logger.info("closing pull request %d of %s: %s", self.num, self.repository.repo, reason)
        where, options = (self.repository.repo, self.num, "closed"), {"comment": reason, "repo_type": "dataset"}
        try:
            self.repository.retry_briefly(HfApi().change_discussion_status, *where, **options)
        except HUB_ERRORS as error:
            logger.warning("pull request %d of %s stays open: %s", self.num, self.repository.repo, one_line(error))

    def _details(self) -> DiscussionWithDetails:
        return HfApi().get_discussion_details(self.repository.repo, self.num, repo_type="dataset")
