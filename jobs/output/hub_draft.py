"""Finished shards on their way to the main branch, kept in a pull request so that a run that died can go on from them.

A run that ends soon and fits one commit opens no pull request. Any other opens one and commits finished shards to it
as they come, each commit with a *sidecar*, a Parquet file of the results of those shards. The last commit adds
manifest, card, report and quarantine and removes the sidecars. The merge makes everything visible at once.

    main      h ────────────────────────────────────── h+1    files of the parts, of `done`, and no sidecar
    refs/pr/N └─ part 1 ─ part 2 ─ … ─ part n ─ done ──┘
                 shards   shards                manifest, card, …
                 sidecar  sidecar               − sidecars

The next attempt finds the pull request by its title, which names the run, all that determines the shards' bytes, and
`h`. A sidecar is believed when the pull request is the user's own, all its commits have this run's titles, and the
file there has the SHA-256 that the sidecar names. It does not matter where the run died:

    before or after a part        the shards of the sidecars are kept, the others are packed
    after `done`                  the sidecars are read from the commit before it; only the merge is left
    after the merge               the head is the merge of this run: nothing is left

Somebody may merge it by hand before `done`. Then the head has sidecars, or a manifest of another run. The files that
the sidecars name are left over (`Head.left`); the run starts anew and replaces or removes them. Its parts count on from
there, so that no sidecar of the head is taken for its own. A pull request for another head than today's can never be
merged and is closed. One of another run for the same head is left alone: that run may still be at work.

Cost: one request for the list of pull requests; for a run that goes on, the repository's listing and its sidecars.
Rejected: uploads without a commit (the Hub promises nothing for them), a branch (it cannot be merged), and pickled
operations in the sidecar (whoever reads them would run them).
"""

import logging
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, Discussion

from jobs.output.commit_pace import Pace
from jobs.output.finished_shard import ShardFile, dump_files
from jobs.output.hub_requests import HubRequests, Operation
from jobs.output.interface import Head, MovedError, PublishError, Run
from jobs.output.pull_request import PullRequest, own_pull_requests
from jobs.output.retries import HUB_ERRORS, is_transient, one_line, status_of
from jobs.output.sidecars import FOLDER, is_there, last_part, name_of, names_in, read_sidecar

__all__ = ["HubDraft", "num_commits"]

REFUSED = (401, 403, 404, 410)  # to this token; 410 where pull requests are switched off
DIGITS = 12  # of a fingerprint or commit in a title
_TITLE = re.compile(rf"Pack \d+ shards \(run (\w{{{DIGITS}}}), shards (\w{{{DIGITS}}}) on (\w{{{DIGITS}}})\)")
logger = logging.getLogger(__name__)


class HubDraft:
    """The draft of a run in a Hub repository, which exists."""

    def __init__(self, repository: HubRequests, head: Head, run: Run, pace: Pace | None = None):
        assert head.commit is not None, f"{repository.repo} has no commit"
        self.repository, self.head, self.run = repository, head, run
        self.published: str | None = None
        self.kept: list[ShardFile] = []
        self._base = self._tip = head.commit  # where the main branch and the pull request are
        self._names = (run.run[:DIGITS], run.shards[:DIGITS], self._base[:DIGITS])
        self._title = "Pack {} shards (run {}, shards {} on {})".format(run.num_shards, *self._names)
        self._room = repository.max_operations - 1  # files in a part at most, beside its sidecar
        self._pace = pace or Pace()
        self._stored_at = self._pace.clock()  # when shards were last stored, at first the start
        self._may_keep = True  # in a pull request; some tokens may write and not open one
        self._request: PullRequest | None = None
        self._num_parts = last_part(head.paths)
        self._pending: deque[Sequence[ShardFile]] = deque()  # finished shards that are in no commit
        self._num_pending = 0  # their files
        self._written: set[str] = set()  # paths of all of the run's shards

    @classmethod
    def find(cls, repository: HubRequests, head: Head, run: Run) -> "HubDraft":
        """The draft that an earlier attempt left, or a new one; pull requests that nobody can use are closed."""
        draft = cls(repository, head, run)
        try:
            for request in own_pull_requests(repository):
                if found := _TITLE.fullmatch(request.title):
                    draft._look_at(request, *found.groups())
        except HUB_ERRORS as error:
            draft._do_without(error)
        return draft

    def _do_without(self, error: Exception) -> None:
        """Go on without a pull request, when the Hub refuses one and the run fits one commit. Raises PublishError."""
        is_refused = status_of(error) in REFUSED
        what = "has no pull requests for this token" if is_refused else "cannot be asked for pull requests"
        why = f"{self.repository.repo} {what}: {one_line(error)}"
        if self.run.num_shards > self._room or is_transient(error):
            raise PublishError(why) from error
        logger.warning("%s; a run that dies starts anew", why)
        self._may_keep = False

    def _look_at(self, request: Discussion, run: str, shards: str, base: str) -> None:
        """Use, close or leave a pull request whose title names this run, these shards and this commit of `main`."""
        found = PullRequest(self.repository, request.num)
        own_run, own_shards, own_base = self._names
        if request.status == "merged":
            if run == own_run and self._is_whole and found.merge_commit() == self._base:
                self.published = self._base
        elif request.status in ("open", "draft"):
            if base != own_base:
                found.close(f"Made for {base}, where the main branch no longer is: this cannot be merged.")
            elif shards == own_shards:
                if self._request is not None:
                    found.close(f"Pull request {self._request.num} has the same shards.")
                elif not self._go_on_from(found, request.title):
                    found.close("It has commits that the run did not make.")

    @property
    def _is_whole(self) -> bool:
        """Whether the head is all that this run publishes: `done` came with the manifests and without sidecars."""
        runs = {info["run"] for _, info in self.head.manifests}
        return self.run.run in runs and not names_in(self.head.paths)

    def _go_on_from(self, request: PullRequest, title: str) -> bool:
        """Continue a pull request with the shards that are in it; False when somebody else committed to it."""
        commits = self.repository.history(request.revision)
        at = next((i for i, commit in enumerate(commits) if commit.commit_id == self._base), None)
        if at is None or not all(self._made(commit.title) for commit in commits[:at]):
            return False
        if title != self._title:  # of another run with the same shards
            request.rename(self._title)
        source = self._tip = commits[0].commit_id
        contents = self.repository.tree(self._tip)
        sidecars = self._own_sidecars(contents)
        if not sidecars and at:  # `done` removed them
            source = commits[1].commit_id
            sidecars = self._own_sidecars(self.repository.tree(source))
        found = [file for path in sidecars for file in read_sidecar(path, self.repository.read(path, source))]
        broken = {file.shard for file in found if not is_there(file, contents)}
        self.kept = [file for file in found if file.shard not in broken]
        self._written = {file.path for file in self.kept if file.num_bytes}
        self._request = request
        self._num_parts = max(self._num_parts, last_part(sidecars))
        logger.info("going on from pull request %d: %d files of shards are there", request.num, len(self.kept))
        return True

    def _own_sidecars(self, contents: Mapping[str, str]) -> list[str]:
        return names_in(contents.keys() - set(self.head.paths))

    def _made(self, title: str) -> bool:
        """Whether a commit's title is one that the run gives."""
        found = _TITLE.match(title)
        return found is not None and found.groups()[1:] == self._names[1:]

    def add(self, files: Sequence[ShardFile]) -> None:
        """Take a finished shard; commit when a commit is full, or after `checkpoint_seconds`."""
        self._pending.append(files)
        operations = _operations(files)
        self._num_pending += len(operations)
        self._written |= {operation.path_in_repo for operation in operations}
        is_late = self._pace.clock() - self._stored_at >= self.repository.checkpoint_seconds
        if self._may_keep and (is_late or self._num_pending >= self._room):
            try:
                self._open()
            except MovedError:
                raise
            except HUB_ERRORS as error:
                self._do_without(error)
        while self._request and self._pending and (is_late or self._num_pending >= self._room):
            if self._pace.seconds_to_wait():
                break
            self._store_part()

    def _store_part(self) -> None:
        """Commit as many whole shards as a commit takes: a sidecar tells of shards that are all there."""
        files: list[ShardFile] = []
        operations: list[Operation] = []
        while self._pending and (not files or len(operations) + len(_operations(self._pending[0])) <= self._room):
            shard = self._pending.popleft()
            files += shard
            operations += _operations(shard)
        self._num_pending -= len(operations)
        while len(operations) > self._room:  # a shard of more files than a commit takes
            self._commit(operations[: self._room], f"more of part {self._num_parts + 1}")
            operations = operations[self._room :]
        self._num_parts += 1
        sidecar = CommitOperationAdd(name_of(self._num_parts), dump_files(map(_with_hash, files)))
        self._commit([*operations, sidecar], f"part {self._num_parts}")
        self._stored_at = self._pace.clock()

    def _commit(self, operations: list[Operation], title: str) -> None:
        request = self._open()
        self._pace.begin()
        try:
            self._tip = self.repository.commit(operations, f"{self._title}, {title}", self._tip, request.revision)
        except MovedError:
            raise
        except PublishError as error:
            request.raise_if_ended(error, "closed", "merged")
            raise

    def _open(self) -> PullRequest:
        """The pull request, opened unless it is. Raises MovedError when it would be on another head."""
        if self._request is None:
            self._request = PullRequest.open(self.repository, self._title)
            self._tip = self.repository.head_of(self._request.revision)
            logger.info("finished shards are kept in pull request %d of %s", self._request.num, self.repository.repo)
            if self._tip != self._base:
                self._fail_moved()
        return self._request

    def publish(self, files: Mapping[str, bytes], delete: Sequence[str]) -> str:
        """Show everything at once and return the commit: that of the merge, or the only one when everything fits it.

        `files`: path → bytes of the small files; `delete`: paths to remove, unless they were written too. Raises
        PublishError, with the main branch unchanged, when it has moved or the Hub keeps refusing.
        """
        added = [CommitOperationAdd(path, data) for path, data in sorted(files.items())]
        gone = set(delete) - {*files, *self._written}
        if self._request is None:
            data = [operation for shard in self._pending for operation in _operations(shard)]
            operations = [*_deletions(gone), *_without_sidecars(self.head.paths), *data, *added]
            if len(operations) <= self.repository.max_operations:
                title = f"Pack {len(data)} shards (run {self.run.run[:DIGITS]})"
                return self.repository.commit(operations, title, self._base)
        try:
            request = self._open()
            while self._pending:
                self._store_part()
            self._finish(gone, added)
            if self.repository.head_of("main") != self._base:
                self._fail_moved()
            return request.merge()
        except PublishError:
            raise
        except HUB_ERRORS as error:
            if self._request is not None:
                self._request.raise_if_ended(error, "closed")
            raise PublishError(f"publishing to {self.repository.repo} failed: {one_line(error)}") from error

    def _finish(self, gone: set[str], added: Sequence[Operation]) -> None:
        """Bring the pull request to what is to be published. The Hub's client makes no commit that changes nothing."""
        contents = self.repository.tree(self._tip)
        operations = [*_deletions(gone & contents.keys()), *added]
        operations += _without_sidecars(contents)  # last: until then a later attempt can go on from the shards
        most = self.repository.max_operations
        for start in range(0, len(operations), most):
            title = "done" if start + most >= len(operations) else f"rest {start // most + 1}"
            self._commit(operations[start : start + most], title)

    def close(self, reason: str) -> None:
        """Close the pull request, if there is one."""
        if self._request is not None:
            self._request.close(reason)

    def _fail_moved(self) -> None:
        self.close("Somebody else committed to the main branch since the run started: this cannot be merged.")
        raise MovedError(self.repository.repo, self._base)


def num_commits(num_shards: int, num_small_files: int, num_deleted: int, max_operations: int) -> int:
    """The least commits of a run of one file a shard: one, or the parts, the rest, and the merge."""
    rest = num_small_files + num_deleted
    if num_shards + rest <= max_operations:
        return 1
    return -(-num_shards // (max_operations - 1)) + -(-(rest + 1) // max_operations) + 1


def _operations(files: Sequence[ShardFile]) -> list[CommitOperationAdd]:
    return [file.operation for file in files if file.operation]


def _with_hash(file: ShardFile) -> ShardFile:
    return replace(file, sha256=file.operation.upload_info.sha256.hex()) if file.operation else file


def _deletions(paths: set[str]) -> list[Operation]:
    return [CommitOperationDelete(path, is_folder=False) for path in sorted(paths)]


def _without_sidecars(paths: Iterable[str]) -> list[Operation]:
    return [CommitOperationDelete(f"{FOLDER}/", is_folder=True)] if names_in(paths) else []
