"""Discussions and pull requests."""

from . import discussions
from .errors import HubError
from .repos import Repo
from .routing import Answer, Call, json_answer, route

PAGE_SIZE = 50


def _address(call: Call, repo: Repo, num: int) -> str:
    return f"{call.base}/{repo.web_path}/discussions/{num}"


def _number(text: str) -> int:
    if not text.isdecimal():
        raise HubError(404, f"{text} is not the number of a discussion")
    return int(text)


@route("GET", "/api/{kind}/{repo}/discussions")
def list_discussions(call: Call, kind: str, repo: str) -> Answer:
    """Newest first; `type` is all, discussion or pull_request, `status` all, open (drafts too) or closed."""
    found, query = call.repo(kind, repo), call.query
    items = [discussions.details(found, d, _address(call, found, d["num"])) for d in found.state["discussions"]]
    wanted = {"pull_request": True, "discussion": False}.get(query.get("type", "all"))
    statuses = {"open": ("open", "draft"), "closed": ("closed", "merged")}.get(query.get("status", "all"))
    items = [
        {k: v for k, v in item.items() if k != "events"}
        for item in reversed(items)
        if wanted in (None, item["isPullRequest"]) and (statuses is None or item["status"] in statuses)
    ]
    if author := query.get("author"):
        items = [item for item in items if item["author"]["name"] == author]
    start = PAGE_SIZE * int(query.get("p", 0))
    page = items[start : start + PAGE_SIZE]
    return json_answer({"discussions": page, "count": len(items), "start": start})


@route("POST", "/api/{kind}/{repo}/discussions", access="write")
def create_discussion(call: Call, kind: str, repo: str) -> Answer:
    found, value = call.repo(kind, repo), call.json()
    title, text = str(value.get("title", "")).strip(), str(value.get("description", ""))
    if not 3 <= len(title) <= 200:
        raise HubError(400, f"title: {title!r} must have 3 to 200 characters")
    if value.get("pullRequest"):
        num = discussions.open_pull_request(found, title, text, "refs/heads/main")
    else:
        num = discussions.open_discussion(found, title, text)
    return json_answer({"num": num, "url": _address(call, found, num), "pullRequest": bool(value.get("pullRequest"))})


@route("GET", "/api/{kind}/{repo}/discussions/{num}")
def get_discussion(call: Call, kind: str, repo: str, num: str) -> Answer:
    found = call.repo(kind, repo)
    discussion = discussions.find(found, _number(num))
    return json_answer(discussions.details(found, discussion, _address(call, found, discussion["num"])))


@route("POST", "/api/{kind}/{repo}/discussions/{num}/comment", access="write")
def comment_discussion(call: Call, kind: str, repo: str, num: str) -> Answer:
    new = discussions.comment_event(str(call.json().get("comment", "")))
    return json_answer({"newMessage": discussions.add_events(call.repo(kind, repo), _number(num), new)})


@route("POST", "/api/{kind}/{repo}/discussions/{num}/title", access="write")
def rename_discussion(call: Call, kind: str, repo: str, num: str) -> Answer:
    found, title = call.repo(kind, repo), str(call.json().get("title", ""))
    with found.lock:
        old = discussions.find(found, _number(num))["title"]
        new = discussions.event("title-change", {"from": old, "to": title})
        shown = discussions.add_events(found, _number(num), new, title=title)
    return json_answer({"newTitle": shown})


@route("POST", "/api/{kind}/{repo}/discussions/{num}/status", access="write")
def change_status(call: Call, kind: str, repo: str, num: str) -> Answer:
    found, value = call.repo(kind, repo), call.json()
    status = value.get("status")
    if status not in ("open", "closed"):
        raise HubError(400, f"status: {status!r} is not open or closed")
    with found.lock:
        if discussions.find(found, _number(num))["status"] == "merged":
            raise HubError(400, f"pull request {num} is merged")
        new = discussions.event("status-change", {"status": status})
        comments = [discussions.comment_event(value["comment"])] if value.get("comment") else []
        shown = discussions.add_events(found, _number(num), *comments, new, status=status)
    return json_answer({"newStatus": shown})


@route("POST", "/api/{kind}/{repo}/discussions/{num}/merge", access="write")
def merge_pull_request(call: Call, kind: str, repo: str, num: str) -> Answer:
    found = call.repo(kind, repo)
    oid = discussions.merge(found, _number(num), call.json().get("comment"))
    return json_answer({"success": True, "mergeCommitId": oid})
