"""Discussions and pull requests of a repository.

A pull request N has the reference `refs/pr/N`, which starts at the head of its base branch and takes commits like
a branch. Merging is a three-way merge of whole files between the commit it started from (`start`), the base branch
and `refs/pr/N`: a path that both sides changed, differently, is a conflict, and conflicts refuse the merge. In the
repository's state a discussion is

    {"num", "title", "status": "draft|open|closed|merged", "isPullRequest", "createdAt",
     "base": "refs/heads/main", "start": "<oid>", "mergeCommitId": "<oid>" or null, "events": [...]}

with events in the API's form. A pull request made by the API is a draft, as on the Hub, and must be opened
(`change_discussion_status(new_status="open")`) before it is merged; one made by a commit (`create_pr=True`) is open.
"""

from typing import Any

from .commits import Changes, check_parent, write_changes
from .errors import HubError
from .repos import Repo, now

AUTHOR = {"name": "user", "type": "user"}


def event(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """A new event, as it is stored: what it is called follows from its place, see `shown_events`."""
    return {"type": kind, "createdAt": now(), "author": AUTHOR, "data": data}


def comment_event(text: str) -> dict[str, Any]:
    latest = {"raw": text, "html": text, "updatedAt": now(), "author": AUTHOR}
    return event("comment", {"edited": False, "hidden": False, "latest": latest, "history": [latest]})


def shown_events(discussion: dict) -> list[dict[str, Any]]:
    """The events in the form that huggingface_hub's `deserialize_event` reads; they are only ever added to."""
    num = discussion["num"]
    return [{"id": f"{num:012x}{i:012x}", **e} for i, e in enumerate(discussion["events"])]


def find(repo: Repo, num: int) -> dict[str, Any]:
    """A discussion by its number.

    Raises:
        HubError: 404.
    """
    if not 1 <= num <= len(repo.state["discussions"]):
        raise HubError(404, f"{repo.id} has no discussion {num}")
    return repo.state["discussions"][num - 1]


def replaced(repo: Repo, discussion: dict, *events: dict, **changes: Any) -> list[dict]:
    """The discussions with one of them changed and events added to it."""
    new = {**discussion, **changes, "events": [*discussion["events"], *events]}
    return [new if d["num"] == new["num"] else d for d in repo.state["discussions"]]


def _new(repo: Repo, title: str, status: str, *events: dict) -> dict[str, Any]:
    num = len(repo.state["discussions"]) + 1
    out = {"num": num, "title": title, "status": status, "isPullRequest": False, "createdAt": now()}
    return {**out, "events": list(events)}


def _pull_request(discussion: dict, base: str, start: str) -> dict[str, Any]:
    return {**discussion, "isPullRequest": True, "base": base, "start": start, "mergeCommitId": None}


def open_discussion(repo: Repo, title: str, text: str) -> int:
    """Add a discussion and return its number."""
    with repo.lock:
        discussion = _new(repo, title, "open", comment_event(text))
        repo.save(discussions=[*repo.state["discussions"], discussion])
        return discussion["num"]


def open_pull_request(repo: Repo, title: str, text: str, base: str) -> int:
    """Add a draft pull request at the head of its base, a full reference name, and return its number."""
    with repo.lock:
        start = repo.refs[base]
        discussion = _pull_request(_new(repo, title, "draft", comment_event(text)), base, start)
        discussions = [*repo.state["discussions"], discussion]
        repo.set_ref(f"refs/pr/{discussion['num']}", start, discussions=discussions)
        return discussion["num"]


def commit_as_pull_request(repo: Repo, base: str, changes: Changes) -> tuple[str, int]:
    """Open a pull request that starts with this commit; the commit's id and the pull request's number.

    It starts from the header's `parentCommit` if there is one, else from the base's head.
    """
    with repo.lock:
        parent = changes.header.get("parentCommit")
        start = repo.oid(parent) if parent else repo.refs[base]
        oid = write_changes(repo, start, changes)
        commit = event("commit", {"subject": changes.title, "oid": oid})
        discussion = _pull_request(_new(repo, changes.title, "open", commit), base, start)
        discussions = [*repo.state["discussions"], discussion]
        repo.set_ref(f"refs/pr/{discussion['num']}", oid, discussions=discussions)
        return oid, discussion["num"]


def commit_to_pull_request(repo: Repo, num: int, changes: Changes) -> str:
    """Add a commit to `refs/pr/num` and return its id.

    Raises:
        HubError: 403, it is merged or closed; and as `commit_to_branch` does.
    """
    with repo.lock:
        discussion, ref = find(repo, num), f"refs/pr/{num}"
        if discussion["status"] in ("merged", "closed"):
            raise HubError(403, f"pull request {num} is {discussion['status']}: it takes no commits")
        check_parent(changes, ref, repo.refs[ref])
        oid = write_changes(repo, repo.refs[ref], changes)
        commit = event("commit", {"subject": changes.title, "oid": oid})
        repo.set_ref(ref, oid, discussions=replaced(repo, discussion, commit))
        return oid


def pull_changes(repo: Repo, discussion: dict) -> tuple[dict[str, dict | None], list[str]]:
    """The paths that a pull request changed (None for deleted), and those that its base changed otherwise."""

    def content(entry: dict | None) -> Any:
        return entry and (entry["oid"], entry["size"])

    start = repo.commit(discussion["start"])["files"]
    head = repo.commit(f"refs/pr/{discussion['num']}")["files"]
    base = repo.commit(discussion["base"])["files"]
    changed = {
        path: head.get(path)
        for path in sorted(start.keys() | head.keys())
        if content(start.get(path)) != content(head.get(path))
    }
    conflicts = [
        path
        for path, entry in changed.items()
        if content(base.get(path)) not in (content(start.get(path)), content(entry))
    ]
    return changed, conflicts


def merge(repo: Repo, num: int, comment: str | None) -> str:
    """Merge a pull request into its base and return the merge commit's id.

    Raises:
        HubError: 409, conflicts; 400, not an open pull request.
    """
    with repo.lock:
        discussion = find(repo, num)
        if not discussion["isPullRequest"] or discussion["status"] != "open":
            raise HubError(400, f"discussion {num} is not an open pull request (status {discussion['status']})")
        changed, conflicts = pull_changes(repo, discussion)
        if conflicts:
            raise HubError(409, f"pull request {num} conflicts with {discussion['base']} in {', '.join(conflicts)}")
        base, head = repo.refs[discussion["base"]], repo.refs[f"refs/pr/{num}"]
        files = {p: f for p, f in repo.commit(base)["files"].items() if p not in changed}
        files |= {path: entry for path, entry in changed.items() if entry is not None}
        title = f"{discussion['title']} (#{num})"
        oid = repo.write_commit([base, head], title, comment or "", files, set(changed))
        events = [comment_event(comment)] if comment else []
        events.append(event("status-change", {"status": "merged"}))
        discussions = replaced(repo, discussion, *events, status="merged", mergeCommitId=oid)
        repo.set_ref(discussion["base"], oid, discussions=discussions)
        return oid


def add_events(repo: Repo, num: int, *events: dict, **changes: Any) -> dict[str, Any]:
    """Add events to a discussion and change its entries; the last event as it is shown."""
    with repo.lock:
        repo.save(discussions=replaced(repo, find(repo, num), *events, **changes))
        return shown_events(find(repo, num))[-1]


def details(repo: Repo, discussion: dict, address: str) -> dict[str, Any]:
    """A discussion as the API gives it (huggingface_hub `get_discussion_details`)."""
    out = {k: discussion[k] for k in ("num", "title", "status", "isPullRequest", "createdAt")}
    out["events"] = shown_events(discussion)
    out |= {"author": AUTHOR, "repo": {"name": repo.id, "type": repo.kind[:-1]}, "url": address}
    if discussion["isPullRequest"]:
        merged = discussion["status"] == "merged"
        out["filesWithConflicts"] = [] if merged else pull_changes(repo, discussion)[1]
        out["changes"] = {"base": discussion["base"], "mergeCommitId": discussion["mergeCommitId"]}
        out["diff"] = ""
    return out
