"""Discussions and pull requests."""

from jobs.local_hub.errors import HubError
from jobs.local_hub.store import discussions
from jobs.local_hub.store.repos import Repo

from .routing import Answer, Call, Routes, json_answer

__all__ = ["routes"]

routes = Routes()

PAGE_SIZE = 50


def _address(call: Call, repo: Repo, num: int) -> str:
    return f"{call.base}/{repo.web_path}/discussions/{num}"


def _number(text: str) -> int:
    if not text.isdecimal():
        raise HubError(404, f"{text} is not the number of a discussion")
    return int(text)


@routes.add("GET", "/api/{kind}/{repo}/discussions")
def list_discussions(call: Call, repo: Repo) -> Answer:
    """Newest first; `type` is all, discussion or pull_request, `status` all, open (drafts too) or closed."""
    query = call.query
    is_pull = {"pull_request": (True,), "discussion": (False,)}.get(query.get("type", "all"), (True, False))
    statuses = {"open": ("open", "draft"), "closed": ("closed", "merged")}.get(query.get("status", "all"))
    found = [
        discussion
        for discussion in reversed(repo.state.discussions)
        if discussion.is_pull_request in is_pull and (statuses is None or discussion.status in statuses)
    ]
    if query.get("author") not in (None, "", discussions.AUTHOR["name"]):
        found = []  # all discussions here have one author
    start = PAGE_SIZE * int(query.get("p", 0))
    page = [discussions.details(repo, d, _address(call, repo, d.num)) for d in found[start : start + PAGE_SIZE]]
    for item in page:
        del item["events"]
    return json_answer({"discussions": page, "count": len(found), "start": start})


@routes.add("POST", "/api/{kind}/{repo}/discussions", access="write")
def create_discussion(call: Call, repo: Repo) -> Answer:
    value = call.json()
    title, text = str(value.get("title", "")).strip(), str(value.get("description", ""))
    if not 3 <= len(title) <= 200:
        raise HubError(400, f"title: {title!r} must have 3 to 200 characters")
    is_pull = bool(value.get("pullRequest"))
    if is_pull:
        num = discussions.open_pull_request(repo, title, text, "refs/heads/main")
    else:
        num = discussions.open_discussion(repo, title, text)
    return json_answer({"num": num, "url": _address(call, repo, num), "pullRequest": is_pull})


@routes.add("GET", "/api/{kind}/{repo}/discussions/{num}")
def get_discussion(call: Call, repo: Repo, num: str) -> Answer:
    discussion = discussions.find(repo, _number(num))
    return json_answer(discussions.details(repo, discussion, _address(call, repo, discussion.num)))


@routes.add("POST", "/api/{kind}/{repo}/discussions/{num}/comment", access="write")
def comment_discussion(call: Call, repo: Repo, num: str) -> Answer:
    new = discussions.comment_event(str(call.json().get("comment", "")))
    return json_answer({"newMessage": discussions.add_events(repo, _number(num), new)})


@routes.add("POST", "/api/{kind}/{repo}/discussions/{num}/title", access="write")
def rename_discussion(call: Call, repo: Repo, num: str) -> Answer:
    title = str(call.json().get("title", ""))
    with repo.lock:
        old = discussions.find(repo, _number(num)).title
        new = discussions.event("title-change", {"from": old, "to": title})
        return json_answer({"newTitle": discussions.add_events(repo, _number(num), new, title=title)})


@routes.add("POST", "/api/{kind}/{repo}/discussions/{num}/status", access="write")
def change_status(call: Call, repo: Repo, num: str) -> Answer:
    value = call.json()
    status = value.get("status")
    if status not in ("open", "closed"):
        raise HubError(400, f"status: {status!r} is not open or closed")
    comments = [discussions.comment_event(value["comment"])] if value.get("comment") else []
    with repo.lock:
        if discussions.find(repo, _number(num)).status == "merged":
            raise HubError(400, f"pull request {num} is merged")
        new = discussions.event("status-change", {"status": status})
        return json_answer({"newStatus": discussions.add_events(repo, _number(num), *comments, new, status=status)})


@routes.add("POST", "/api/{kind}/{repo}/discussions/{num}/merge", access="write")
def merge_pull_request(call: Call, repo: Repo, num: str) -> Answer:
    oid = discussions.merge(repo, _number(num), call.json().get("comment"))
    return json_answer({"success": True, "mergeCommitId": oid})
