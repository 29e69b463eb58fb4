"""Discussions and pull requests of a repository.

Pull request N has the reference `refs/pr/N`. It starts at the head of its base branch and takes commits like a branch.
A merge is a three-way merge of whole files between the commit it started from (`start`), the base branch and
`refs/pr/N`. A path that both sides changed differently is a conflict, and a conflict refuses the merge.

As on the Hub, a pull request made by the API is a draft. It must be opened before it is merged
(`change_discussion_status(new_status="open")`). One made by a commit (`create_pr=True`) is open.
"""

from typing import Any

from jobs.local_hub.errors import HubError

from .commits import Changes, write_changes, write_on_head
from .repo_state import Discussion, FileEntry, now
from .repos import Repo

__all__ = [
    "AUTHOR",
    "add_events",
    "comment_event",
    "commit_as_pull_request",
    "commit_to_pull_request",
    "details",
    "event",
    "find",
    "merge",
    "open_discussion",
    "open_pull_request",
]

AUTHOR = {"name": "user", "type": "user"}


def event(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """A new event as it is stored: without an id, which `_shown_events` adds."""
    return {"type": kind, "createdAt": now(), "author": AUTHOR, "data": data}


def comment_event(text: str) -> dict[str, Any]:
    latest = {"raw": text, "html": text, "updatedAt": now(), "author": AUTHOR}
    return event("comment", {"edited": False, "hidden": False, "latest": latest, "history": [latest]})


def _commit_event(changes: Changes, oid: str) -> dict[str, Any]:
    return event("commit", {"subject": changes.title, "oid": oid})


def _shown_events(discussion: Discussion) -> list[dict[str, Any]]:
    """The events as huggingface_hub's `deserialize_event` reads them; an id is a place, as events are only added."""
    return [{"id": f"{discussion.num:012x}{i:012x}", **e} for i, e in enumerate(discussion.events)]


def find(repo: Repo, num: int) -> Discussion:
    """A discussion by its number.

    Raises:
        HubError: 404.
    """
    if not 1 <= num <= len(repo.state.discussions):
        raise HubError(404, f"{repo.id} has no discussion {num}")
    return repo.state.discussions[num - 1]


def _replaced(repo: Repo, discussion: Discussion, *events: dict, **changes: Any) -> list[Discussion]:
    """All discussions, with this one changed and its events added to."""
    new = discussion.model_copy(update={**changes, "events": [*discussion.events, *events]})
    return [new if d.num == new.num else d for d in repo.state.discussions]


def _with_new(repo: Repo, title: str, status: str, first: dict, **pull: Any) -> list[Discussion]:
    """All discussions and a new one, last."""
    num = len(repo.state.discussions) + 1
    new = Discussion(num=num, title=title, status=status, created_at=now(), events=[first], **pull)
    return [*repo.state.discussions, new]


def _open_pull(repo: Repo, title: str, status: str, first: dict, base: str, start: str, head: str) -> int:
    pull = {"is_pull_request": True, "base": base, "start": start, "merge_commit_id": None}
    discussions = _with_new(repo, title, status, first, **pull)
    repo.set_ref(f"refs/pr/{discussions[-1].num}", head, discussions=discussions)
    return discussions[-1].num


def open_discussion(repo: Repo, title: str, text: str) -> int:
    """Add a discussion and return its number."""
    with repo.lock:
        discussions = _with_new(repo, title, "open", comment_event(text))
        repo.save(discussions=discussions)
        return discussions[-1].num


def open_pull_request(repo: Repo, title: str, text: str, base: str) -> int:
    """Add a draft pull request at the head of its base (a full reference name) and return its number."""
    with repo.lock:
        start = repo.refs[base]
        return _open_pull(repo, title, "draft", comment_event(text), base, start, start)


def commit_as_pull_request(repo: Repo, base: str, changes: Changes) -> tuple[str, int]:
    """Open a pull request with this commit; the commit's id and the pull request's number.

    It starts from the header's `parentCommit` if there is one, else from the head of the base.
    """
    with repo.lock:
        start = repo.oid(changes.parent) if changes.parent else repo.refs[base]
        oid = write_changes(repo, start, changes)
        return oid, _open_pull(repo, changes.title, "open", _commit_event(changes, oid), base, start, oid)


def commit_to_pull_request(repo: Repo, num: int, changes: Changes) -> str:
    """Add a commit to `refs/pr/num` and return its id.

    Raises:
        HubError: 403, it is merged or closed; and as `commit_to_branch`.
    """
    with repo.lock:
        discussion, ref = find(repo, num), f"refs/pr/{num}"
        if discussion.status in ("merged", "closed"):
            raise HubError(403, f"pull request {num} is {discussion.status}: it takes no commits")
        oid = write_on_head(repo, ref, changes)
        repo.set_ref(ref, oid, discussions=_replaced(repo, discussion, _commit_event(changes, oid)))
        return oid


def _pull_changes(repo: Repo, discussion: Discussion) -> tuple[dict[str, FileEntry | None], list[str]]:
    """The paths that a pull request changed (None: deleted), and those that its base changed differently."""
    revisions = (discussion.start, f"refs/pr/{discussion.num}", discussion.base)
    start, head, base = (repo.commit(revision).files for revision in revisions)
    changed: dict[str, FileEntry | None] = {}
    conflicts = []
    for path in sorted(start.keys() | head.keys()):
        before, ours, theirs = (files[path].oid if path in files else None for files in (start, head, base))
        if ours != before:
            changed[path] = head.get(path)
            if theirs not in (before, ours):
                conflicts.append(path)
    return changed, conflicts


def merge(repo: Repo, num: int, comment: str | None) -> str:
    """Merge a pull request into its base and return the id of the merge commit.

    Raises:
        HubError: 409, conflicts; 400, not an open pull request.
    """
    with repo.lock:
        discussion = find(repo, num)
        if not discussion.is_pull_request or discussion.status != "open":
            raise HubError(400, f"discussion {num} is not an open pull request (status {discussion.status})")
        changed, conflicts = _pull_changes(repo, discussion)
        if conflicts:
            raise HubError(409, f"pull request {num} conflicts with {discussion.base} in {', '.join(conflicts)}")
        base, head = repo.refs[discussion.base], repo.refs[f"refs/pr/{num}"]
        files = {path: entry for path, entry in repo.commit(base).files.items() if path not in changed}
        files |= {path: entry for path, entry in changed.items() if entry is not None}
        title = f"{discussion.title} (#{num})"
        oid = repo.write_commit([base, head], title, comment or "", files, set(changed))
        events = [comment_event(comment)] if comment else []
        events.append(event("status-change", {"status": "merged"}))
        discussions = _replaced(repo, discussion, *events, status="merged", merge_commit_id=oid)
        repo.set_ref(discussion.base, oid, discussions=discussions)
        return oid


def add_events(repo: Repo, num: int, *events: dict, **changes: Any) -> dict[str, Any]:
    """Add events to a discussion and change its fields; the last event as the API shows it."""
    with repo.lock:
        repo.save(discussions=_replaced(repo, find(repo, num), *events, **changes))
        return _shown_events(find(repo, num))[-1]


def details(repo: Repo, discussion: Discussion, address: str) -> dict[str, Any]:
    """A discussion as the API gives it (huggingface_hub `get_discussion_details`)."""
    shown = {"num", "title", "status", "is_pull_request", "created_at"}
    out = discussion.model_dump(by_alias=True, include=shown)
    out |= {"events": _shown_events(discussion), "author": AUTHOR, "url": address}
    out["repo"] = {"name": repo.id, "type": repo.kind[:-1]}
    if discussion.is_pull_request:
        merged = discussion.status == "merged"
        out["filesWithConflicts"] = [] if merged else _pull_changes(repo, discussion)[1]
        out["changes"] = {"base": discussion.base, "mergeCommitId": discussion.merge_commit_id}
        out["diff"] = ""
    return out
