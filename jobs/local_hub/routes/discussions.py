"""Discussions and pull requests."""

from typing import Any

from jobs.local_hub.errors import HubError
from jobs.local_hub.store.discussions import AUTHOR, Discussions, comment_event, event
from jobs.local_hub.store.repos import Repo

from .routing import Answer, Call, Routes, json_answer

__all__ = ["routes"]

routes = Routes()

PAGE_SIZE = 50


def _address(call: Call, repo: Repo, num: int) -> str:
    return f"{call.base}/{repo.web_path}/discussions/{num}"


def _details(call: Call, repo: Repo, num: int) -> dict[str, Any]:
    return Discussions(repo).details(num, _address(call, repo, num))


@routes.add("GET", "/api/{kind}/{repo}/discussions")
def list_discussions(call: Call, repo: Repo) -> Answer:
    """Newest first; `type` is all, discussion or pull_request, `status` all, open (drafts too) or closed."""
    query = call.query
    is_pull = {"pull_request": (True,), "discussion": (False,)}.get(query.get("type", "all"), (True, False))
    statuses = {"open": ("open", "draft"), "closed": ("closed", "merged")}.get(query.get("status", "all"))
    nums = [
        discussion.num
        for discussion in reversed(repo.state.discussions)
        if discussion.is_pull_request in is_pull and (statuses is None or discussion.status in statuses)
    ]
    if query.get("author") not in (None, "", AUTHOR["name"]):
        nums = []  # all discussions here have one author
    start = PAGE_SIZE * int(query.get("p", 0))
    page = [_details(call, repo, num) for num in nums[start : start + PAGE_SIZE]]
    for item in page:
        del item["events"]
    return json_answer({"discussions": page, "count": len(nums), "start": start})


@routes.add("POST", "/api/{kind}/{repo}/discussions", access="write")
def create_discussion(call: Call, repo: Repo) -> Answer:
    value = call.json()
    title, text = str(value.get("title", "")).strip(), str(value.get("description", ""))
    if not 3 <= len(title) <= 200:
        raise HubError(400, f"title: {title!r} must have 3 to 200 characters")
    is_pull = bool(value.get("pullRequest"))
    if is_pull:
        num = Discussions(repo).open_pull_request(title, text, "refs/heads/main")
    else:
        num = Discussions(repo).open(title, text)
    return json_answer({"num": num, "url": _address(call, repo, num), "pullRequest": is_pull})


@routes.add("GET", "/api/{kind}/{repo}/discussions/{num}")
def get_discussion(call: Call, repo: Repo, num: str) -> Answer:
    return json_answer(_details(call, repo, int(num)))


@routes.add("POST", "/api/{kind}/{repo}/discussions/{num}/comment", access="write")
def comment_discussion(call: Call, repo: Repo, num: str) -> Answer:
    new = comment_event(str(call.json().get("comment", "")))
    return json_answer({"newMessage": Discussions(repo).add_events(int(num), new)})


@routes.add("POST", "/api/{kind}/{repo}/discussions/{num}/title", access="write")
def rename_discussion(call: Call, repo: Repo, num: str) -> Answer:
    discussions, title = Discussions(repo), str(call.json().get("title", ""))
    with repo.lock:
        new = event("title-change", **{"from": discussions.find(int(num)).title, "to": title})
        return json_answer({"newTitle": discussions.add_events(int(num), new, title=title)})


@routes.add("POST", "/api/{kind}/{repo}/discussions/{num}/status", access="write")
def change_status(call: Call, repo: Repo, num: str) -> Answer:
    discussions, value = Discussions(repo), call.json()
    status = value.get("status")
    if status not in ("open", "closed"):
        raise HubError(400, f"status: {status!r} is not open or closed")
    events = [comment_event(value["comment"])] if value.get("comment") else []
    events.append(event("status-change", status=status))
    with repo.lock:
        if discussions.find(int(num)).status == "merged":
            raise HubError(400, f"pull request {num} is merged")
        return json_answer({"newStatus": discussions.add_events(int(num), *events, status=status)})


@routes.add("POST", "/api/{kind}/{repo}/discussions/{num}/merge", access="write")
def merge_pull_request(call: Call, repo: Repo, num: str) -> Answer:
    oid = Discussions(repo).merge(int(num), call.json().get("comment"))
    return json_answer({"success": True, "mergeCommitId": oid})
