"""Discussions and pull requests of a repository.

Pull request N has the reference `refs/pr/N`. It starts at the head of its base branch and takes commits like a branch.
A merge is a three-way merge of whole files between the commit it started from (`start`), the base branch and
`refs/pr/N`. A path that both sides changed differently is a conflict, and a conflict refuses the merge.

As on the Hub, a pull request made by the API is a draft. It must be opened before it is merged
(`change_discussion_status(new_status="open")`). One made by a commit (`create_pr=True`) is open.
"""

from typing import Any

from jobs.local_hub.errors import HubError

from .commits import Changes
from .repo_state import Discussion, FileEntry, now
from .repos import Repo

__all__ = ["AUTHOR", "Discussions", "comment_event", "event"]

AUTHOR = {"name": "user", "type": "user"}


def event(kind: str, **data: Any) -> dict[str, Any]:
    """A new event as it is stored: without an id, which `_shown_events` adds."""
    return {"type": kind, "createdAt": now(), "author": AUTHOR, "data": data}


def comment_event(text: str) -> dict[str, Any]:
    latest = {"raw": text, "html": text, "updatedAt": now(), "author": AUTHOR}
    return event("comment", edited=False, hidden=False, latest=latest, history=[latest])


def _commit_event(changes: Changes, oid: str) -> dict[str, Any]:
    return event("commit", subject=changes.title, oid=oid)


def _shown_events(discussion: Discussion) -> list[dict[str, Any]]:
    """The events as huggingface_hub's `deserialize_event` reads them; an id is a place, as events are only added."""
    return [{"id": f"{discussion.num:012x}{i:012x}", **e} for i, e in enumerate(discussion.events)]


class Discussions:
    """The discussions of a repository. `base` is always a full reference name."""

    def __init__(self, repo: Repo):
        self.repo = repo

    def find(self, num: int) -> Discussion:
        """A discussion by its number; HubError 404 if there is none."""
        discussions = self.repo.state.discussions
        if not 1 <= num <= len(discussions):
            raise HubError(404, f"{self.repo.id} has no discussion {num}")
        return discussions[num - 1]

    def _replaced(self, discussion: Discussion, *events: dict, **changes: Any) -> list[Discussion]:
        """All discussions, with this one changed and events added to it."""
        new = discussion.model_copy(update={**changes, "events": [*discussion.events, *events]})
        return [new if d.num == new.num else d for d in self.repo.state.discussions]

    def _with_new(self, title: str, status: str, first: dict, **pull: Any) -> list[Discussion]:
        """All discussions and a new one, last."""
        num = len(self.repo.state.discussions) + 1
        new = Discussion(num=num, title=title, status=status, created_at=now(), events=[first], **pull)
        return [*self.repo.state.discussions, new]

    def open(self, title: str, text: str) -> int:
        """Add a discussion and return its number."""
        with self.repo.lock:
            discussions = self._with_new(title, "open", comment_event(text))
            self.repo.save(discussions=discussions)
            return discussions[-1].num

    def open_pull_request(self, title: str, text: str, base: str) -> int:
        """Add a draft pull request at the head of its base and return its number."""
        with self.repo.lock:
            start = self.repo.refs[base]
            return self._open_pull_request(title, "draft", comment_event(text), base, start, start)

    def open_with_commit(self, base: str, changes: Changes) -> tuple[str, int]:
        """Open a pull request with this commit; the commit's id and the pull request's number.

        It starts from the header's `parentCommit` if there is one, else from the head of the base.
        """
        with self.repo.lock:
            start = self.repo.oid(changes.parent) if changes.parent else self.repo.refs[base]
            oid = changes.write(self.repo, start)
            first = _commit_event(changes, oid)
            return oid, self._open_pull_request(changes.title, "open", first, base, start, oid)

    def _open_pull_request(self, title: str, status: str, first: dict, base: str, start: str, head: str) -> int:
        pull = {"is_pull_request": True, "base": base, "start": start, "merge_commit_id": None}
        discussions = self._with_new(title, status, first, **pull)
        self.repo.set_ref(f"refs/pr/{discussions[-1].num}", head, discussions=discussions)
        return discussions[-1].num

    def commit(self, num: int, changes: Changes) -> str:
        """Add a commit to `refs/pr/num` and return its id; HubError 403 if it is merged or closed."""
        with self.repo.lock:
            discussion, ref = self.find(num), f"refs/pr/{num}"
            if discussion.status in ("merged", "closed"):
                raise HubError(403, f"pull request {num} is {discussion.status}: it takes no commits")
            oid = changes.write_on_head(self.repo, ref)
            self.repo.set_ref(ref, oid, discussions=self._replaced(discussion, _commit_event(changes, oid)))
            return oid

    def _changes(self, pull: Discussion) -> tuple[dict[str, FileEntry | None], list[str]]:
        """The paths that a pull request changed (None: deleted), and those that its base changed differently."""
        revisions = (pull.start, f"refs/pr/{pull.num}", pull.base)
        start, head, base = (self.repo.commit(revision).files for revision in revisions)
        changed: dict[str, FileEntry | None] = {}
        conflicts = []
        for path in sorted(start.keys() | head.keys()):
            before, ours, theirs = (files[path].oid if path in files else None for files in (start, head, base))
            if ours != before:
                changed[path] = head.get(path)
                if theirs not in (before, ours):
                    conflicts.append(path)
        return changed, conflicts

    def merge(self, num: int, comment: str | None) -> str:
        """Merge a pull request into its base and return the id of the merge commit.

        Raises:
            HubError: 409, conflicts; 400, not an open pull request.
        """
        with self.repo.lock:
            pull = self.find(num)
            if not pull.is_pull_request or pull.status != "open":
                raise HubError(400, f"discussion {num} is not an open pull request (status {pull.status})")
            changed, conflicts = self._changes(pull)
            if conflicts:
                raise HubError(409, f"pull request {num} conflicts with {pull.base} in {', '.join(conflicts)}")
            base, head = self.repo.refs[pull.base], self.repo.refs[f"refs/pr/{num}"]
            files = {path: entry for path, entry in self.repo.commit(base).files.items() if path not in changed}
            files |= {path: entry for path, entry in changed.items() if entry is not None}
            title = f"{pull.title} (#{num})"
            oid = self.repo.write_commit([base, head], title, comment or "", files, set(changed))
            events = [comment_event(comment)] if comment else []
            events.append(event("status-change", status="merged"))
            discussions = self._replaced(pull, *events, status="merged", merge_commit_id=oid)
            self.repo.set_ref(pull.base, oid, discussions=discussions)
            return oid

    def add_events(self, num: int, *events: dict, **changes: Any) -> dict[str, Any]:
        """Add events to a discussion and change its fields; the last event as the API shows it."""
        with self.repo.lock:
            self.repo.save(discussions=self._replaced(self.find(num), *events, **changes))
            return _shown_events(self.find(num))[-1]

    def details(self, num: int, address: str) -> dict[str, Any]:
        """A discussion as the API gives it (huggingface_hub `get_discussion_details`)."""
        found = self.find(num)
        out = found.model_dump(by_alias=True, include={"num", "title", "status", "is_pull_request", "created_at"})
        out |= {"events": _shown_events(found), "author": AUTHOR, "url": address}
        out["repo"] = {"name": self.repo.id, "type": self.repo.kind[:-1]}
        if found.is_pull_request:
            out["filesWithConflicts"] = [] if found.status == "merged" else self._changes(found)[1]
            out["changes"] = {"base": found.base, "mergeCommitId": found.merge_commit_id}
            out["diff"] = ""
        return out
