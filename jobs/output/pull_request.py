"""Finished shards on their way to the main branch: kept in a pull request, so that a run that died goes on from them.

A run that is over soon and fits one commit never sees a pull request. A longer or larger one opens one and commits
finished shards to it as they come, each commit with a *sidecar*, a Parquet file of those shards' result rows. The last
commit adds manifest, card, report and quarantine and removes the sidecars; the merge is the one step that counts.

    main      h ────────────────────────────────────── h+1    files of the parts, of `done`, and no sidecar
    refs/pr/N └─ part 1 ─ part 2 ─ … ─ part n ─ done ──┘
                 shards   shards                manifest, card, …
                 sidecar  sidecar               − sidecars

The next attempt finds the pull request by its title, which names the run, all that determines the shards' bytes, and
`h`. A row of a sidecar is believed when the pull request is the user's own, all its commits have this run's titles,
and the file there has the SHA-256 that the row names. Where it was left does not matter:

    before a part, after it       the shards of the sidecars are kept, the others packed
    after `done`                  the sidecars are read from the commit before it; only the merge is left
    after the merge               the head is the merge of this run: nothing is left

Somebody may merge it by hand before `done`. Then the head has sidecars, or a manifest of another run: what they name
is left over (`outputs.Head.left`), the run starts anew and replaces or removes it. Its parts count on from there, so
that no sidecar of the head is taken for its own.

A pull request that was made for another head than today's can never be merged and is closed with this reason. One of
another run for the same head is left alone: that run may be on its way.

Cost: one request for the list of pull requests; for a run that goes on, the repository's listing and its sidecars.
Rejected: uploads without a commit (the Hub promises nothing for them), a branch (it cannot be merged), and pickled
operations in the sidecar (they would be run by whoever reads them).
"""

import logging
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError

from jobs.output.commit_pace import Pace
from jobs.output.finished_shard import dump_rows
from jobs.output.interface import Head, MovedError, PublishError, Run
from jobs.output.retries import HUB_ERRORS, is_transient, one_line
from jobs.output.sidecars import FOLDER, is_there, last_part, name_of, names_in, read_rows

if TYPE_CHECKING:
    from jobs.output.hub_repository import Repository

REFUSED = (401, 403, 404, 410)  # to this token; 410 where pull requests are switched off
DIGITS = 12  # of a fingerprint or commit in a title
_TITLE = re.compile(rf"Pack \d+ shards \(run (\w{{{DIGITS}}}), shards (\w{{{DIGITS}}}) on (\w{{{DIGITS}}})\)")
logger = logging.getLogger(__name__)


class PullRequestDraft:
    """`outputs.Draft` of a Hub repository."""

    def __init__(self, repository: "Repository", head: Head, run: Run, pace: Pace | None = None):
        self.repository = repository
        self.head = head
        self.run = run
        self.published: str | None = None
        self.kept: list[dict] = []
        self._pace = pace or Pace()
        self._started = self._pace.clock()  # … or when finished shards were last stored
        self._may_keep = True  # in a pull request; a token may write and still not open one
        self._request: int | None = None  # the pull request's number
        self._tip = head.commit
        self._num_parts = last_part(head.paths)
        self._pending: deque[list[dict]] = deque()  # finished shards that are in no commit: the rows of each
        self._num_pending = 0  # their files
        self._written: set[str] = set()  # paths of all of the run's shards

    @classmethod
    def find(cls, repository: "Repository", head: Head, run: Run) -> "PullRequestDraft":
        """The draft that an earlier attempt left, or a new one; pull requests that nobody can use are closed."""
        draft = cls(repository, head, run)
        try:
            for request in draft._requests():
                draft._look_at(request)
        except HUB_ERRORS as error:
            draft._do_without(error)
        return draft

    def _do_without(self, error: Exception) -> None:
        """Go on without a pull request, where the Hub refuses one and the run fits one commit. Raises PublishError."""
        is_refused = isinstance(error, HfHubHTTPError) and getattr(error.response, "status_code", None) in REFUSED
        what = "has no pull requests for this token" if is_refused else "cannot be asked for pull requests"
        why = f"{self.repository.repo} {what}: {one_line(error)}"
        if self.run.num_shards > self._room or is_transient(error):
            raise PublishError(why) from error
        logger.warning("%s; a run that dies starts anew", why)
        self._may_keep = False

    # What an earlier attempt left.

    @property
    def title(self) -> str:
        run, head = self.run, self.head.commit or ""
        named = f"run {run.run[:DIGITS]}, shards {run.shards[:DIGITS]} on {head[:DIGITS]}"
        return f"Pack {run.num_shards} shards ({named})"

    @property
    def _revision(self) -> str:
        return f"refs/pr/{self._request}"

    def _requests(self) -> list:
        """The user's own pull requests made by runs, newest first: anybody may open one, with any title."""
        author = self.repository.retry(HfApi().whoami)["name"]
        found = self.repository.retry(lambda: list(HfApi().get_repo_discussions(
            self.repository.repo, author=author, discussion_type="pull_request", repo_type="dataset")))  # fmt: skip
        return [one for one in found if one.author == author and _TITLE.fullmatch(one.title)]

    def _look_at(self, request) -> None:
        run, shards, head = _TITLE.fullmatch(request.title).groups()
        if request.status == "merged":
            if run == self.run.run[:DIGITS] and self._is_whole and self._merge_commit(request.num) == self.head.commit:
                self.published = self.head.commit
        elif request.status in ("open", "draft"):
            if head != self.head.commit[:DIGITS]:
                self._close(request.num, f"Made for {head}, where the main branch no longer is: this cannot be merged.")
            elif shards == self.run.shards[:DIGITS]:
                if self._request is not None:
                    self._close(request.num, f"Pull request {self._request} has the same shards.")
                elif not self._go_on_from(request):
                    self._close(request.num, "It has commits that the run did not make.")

    @property
    def _is_whole(self) -> bool:
        """Whether the head is all of what this run publishes: `done` came with the manifests and without sidecars."""
        runs = {info["run"] for _, info in self.head.manifests}
        return self.run.run in runs and not names_in(self.head.paths)

    def _go_on_from(self, request) -> bool:
        """Take a pull request up with the shards that are in it; False when somebody else committed to it."""
        commits = self.repository.history(f"refs/pr/{request.num}")
        at = next((i for i, commit in enumerate(commits) if commit.commit_id == self.head.commit), None)
        if at is None or not all(self._made(commit.title) for commit in commits[:at]):
            return False
        tip = commits[0].commit_id
        if request.title != self.title:  # another run's, of the same shards
            self.repository.retry(
                HfApi().rename_discussion, self.repository.repo, request.num, self.title, repo_type="dataset"
            )
        files = self.repository.tree(tip)
        source, sidecars = tip, self._own_sidecars(files)
        if not sidecars and at:
            source = commits[1].commit_id
            sidecars = self._own_sidecars(self.repository.tree(source))
        rows = [row for path in sidecars for row in read_rows(path, self.repository.read(path, source))]
        broken = {row["shard"] for row in rows if not is_there(row, files)}
        self.kept = [row | {"operation": None} for row in rows if row["shard"] not in broken]
        self._written = {row["path"] for row in self.kept if row["num_bytes"]}
        self._request, self._tip = request.num, tip
        self._num_parts = max(self._num_parts, last_part(sidecars))
        logger.info("going on from pull request %d: %d rows of shards are there", request.num, len(self.kept))
        return True

    def _own_sidecars(self, files: Mapping[str, str]) -> list[str]:
        return names_in(files.keys() - set(self.head.paths))

    def _made(self, title: str) -> bool:
        """Whether a commit's title is one that the run gives."""
        found = _TITLE.match(title)
        return bool(found) and found.groups()[1:] == (self.run.shards[:DIGITS], self.head.commit[:DIGITS])

    # Finished shards.

    def add(self, rows: Sequence[dict]) -> None:
        """Take a finished shard's rows; commit when a commit is full, or after `checkpoint_seconds`."""
        self._pending.append(list(rows))
        self._num_pending += len(_operations(rows))
        self._written |= {operation.path_in_repo for operation in _operations(rows)}
        is_due = self._pace.clock() - self._started >= self.repository.checkpoint_seconds
        if self._may_keep and (is_due or self._num_pending >= self._room):
            try:
                self._open()
            except MovedError:
                raise
            except HUB_ERRORS as error:
                self._do_without(error)
        while self._may_store and (is_due or self._num_pending >= self._room):
            self._store_part()

    @property
    def _may_store(self) -> bool:
        return bool(self._request and self._pending) and not self._pace.seconds_to_wait()

    @property
    def _room(self) -> int:
        """Files in a part at most, beside its sidecar."""
        return self.repository.max_operations - 1

    def _store_part(self) -> None:
        """Commit as many shards as a commit takes, whole ones: a sidecar tells of shards that are all there."""
        rows, operations = [], []
        while self._pending and (not rows or len(operations) + len(_operations(self._pending[0])) <= self._room):
            shard = self._pending.popleft()
            rows += shard
            operations += _operations(shard)
        self._num_pending -= len(operations)
        while len(operations) > self._room:  # a shard of more files than a commit takes
            self._commit(operations[: self._room], f"{self.title}, more of part {self._num_parts + 1}")
            operations = operations[self._room :]
        self._num_parts += 1
        sidecar = CommitOperationAdd(name_of(self._num_parts), dump_rows(map(_with_hash, rows)))
        self._commit([*operations, sidecar], f"{self.title}, part {self._num_parts}")
        self._started = self._pace.clock()

    def _commit(self, operations: list, title: str) -> None:
        self._pace.begin()
        try:
            self._tip = self.repository.commit(operations, title, self._tip, self._revision)
        except MovedError:
            raise
        except PublishError as error:
            self._check_status(error, "closed", "merged")
            raise

    def _check_status(self, cause: Exception, *ends: str) -> None:
        """Raises PublishError, for an error of the Hub's, when the pull request came to one of these ends meanwhile."""
        api, where = HfApi(), (self.repository.repo, self._request)
        try:
            found = self.repository.retry_briefly(api.get_discussion_details, *where, repo_type="dataset")
        except HUB_ERRORS as error:
            logger.warning("pull request %d of %s cannot be asked for: %s", *reversed(where), one_line(error))
            return
        if found.status in ends:
            raise PublishError(
                f"{self.repository.repo}: pull request {self._request}, where the run kept its finished shards, was "
                f"{found.status} before the run was done; run the job again: it starts anew"
            ) from cause

    def _open(self) -> None:
        """The pull request, made unless it is there: by an earlier attempt, or a request whose answer got lost."""
        if self._request is not None:
            return

        def find_or_make() -> int:
            same = [one.num for one in self._requests() if one.title == self.title and one.status == "draft"]
            made = HfApi().create_pull_request
            return same[0] if same else made(self.repository.repo, self.title, repo_type="dataset").num

        self._request = self.repository.retry(find_or_make)
        self._tip = self.repository.head_of(self._revision)
        logger.info("finished shards are kept in pull request %d of %s", self._request, self.repository.repo)
        if self._tip != self.head.commit:
            self._fail_moved()

    # Publishing.

    def publish(self, files: Mapping[str, bytes], delete: Sequence[str]) -> str:
        """One commit where everything fits it and nothing is in a pull request yet; else the last part and the merge.

        Raises PublishError with the main branch unchanged when it has moved or the Hub keeps refusing.
        """
        added = [CommitOperationAdd(path, data) for path, data in sorted(files.items())]
        if self._request is None:
            data = [operation for shard in self._pending for operation in _operations(shard)]
            gone = _deletions(set(delete) - {*files, *self._written})
            operations = [*gone, *_without_sidecars(self.head.paths), *data, *added]
            if len(operations) <= self.repository.max_operations:
                title = f"Pack {len(data)} shards (run {self.run.run[:DIGITS]})"
                return self.repository.commit(operations, title, self.head.commit)
        try:
            self._open()
            while self._pending:
                self._store_part()
            self._finish(files, delete)
            if self.repository.head_of("main") != self.head.commit:
                self._fail_moved()
            return self.repository.retry(self._merge)
        except PublishError:
            raise
        except HUB_ERRORS as error:
            self._check_status(error, "closed")
            raise PublishError(f"publishing to {self.repository.repo} failed: {one_line(error)}") from error

    def _finish(self, files: Mapping[str, bytes], delete: Sequence[str]) -> None:
        """Bring the pull request to what is to be published. The Hub's client makes no commit that changes nothing."""
        there = self.repository.tree(self._tip)
        added = [CommitOperationAdd(path, data) for path, data in sorted(files.items())]
        operations = [*_deletions((set(delete) & there.keys()) - {*files, *self._written}), *added]
        operations += _without_sidecars(there)  # last: until then the shards can be taken up again
        most = self.repository.max_operations
        for start in range(0, len(operations), most):
            end = "done" if start + most >= len(operations) else f"rest {start // most + 1}"
            self._commit(operations[start : start + most], f"{self.title}, {end}")

    def _merge(self) -> str:
        """Merge unless it is merged, as it is when an answer got lost; the merge's commit."""
        api, where = HfApi(), (self.repository.repo, self._request)
        status = api.get_discussion_details(*where, repo_type="dataset").status
        if status == "draft":  # as it starts
            api.change_discussion_status(*where, "open", repo_type="dataset")
        if status != "merged":
            api.merge_pull_request(*where, repo_type="dataset")
        return api.get_discussion_details(*where, repo_type="dataset").merge_commit_oid

    def _merge_commit(self, num: int) -> str | None:
        details = self.repository.retry(HfApi().get_discussion_details, self.repository.repo, num, repo_type="dataset")
        return details.merge_commit_oid

    # Giving up.

    def close(self, reason: str) -> None:
        """Close the pull request, if there is one."""
        if self._request is not None:
            self._close(self._request, reason)

    def _fail_moved(self) -> None:
        self.close("Somebody else committed to the main branch since the run started: this cannot be merged.")
        raise MovedError(self.repository.repo, self.head.commit)

    def _close(self, num: int, reason: str) -> None:
        logger.info("closing pull request %d of %s: %s", num, self.repository.repo, reason)
        try:
            self.repository.retry_briefly(
                HfApi().change_discussion_status,
                self.repository.repo, num, "closed", comment=reason, repo_type="dataset",
            )  # fmt: skip
        except HUB_ERRORS as error:
            logger.warning("pull request %d of %s stays open: %s", num, self.repository.repo, one_line(error))


def num_commits(num_shards: int, num_small_files: int, num_deleted: int, max_operations: int) -> int:
    """Commits that a run of one file a shard takes at least: one, or the parts, what is left, and the merge."""
    rest = num_small_files + num_deleted
    if num_shards + rest <= max_operations:
        return 1
    return -(-num_shards // (max_operations - 1)) + -(-(rest + 1) // max_operations) + 1


def _operations(rows: Sequence[dict]) -> list[CommitOperationAdd]:
    return [row["operation"] for row in rows if row["operation"]]


def _with_hash(row: dict) -> dict:
    return row | {"sha256": row["operation"].upload_info.sha256.hex() if row["operation"] else None}


def _deletions(paths: set[str]) -> list[CommitOperationDelete]:
    return [CommitOperationDelete(path, is_folder=False) for path in sorted(paths)]


def _without_sidecars(paths: Iterable[str]) -> list[CommitOperationDelete]:
    return [CommitOperationDelete(f"{FOLDER}/", is_folder=True)] if names_in(paths) else []
