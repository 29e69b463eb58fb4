"""What is in a repository: its info, history and listings; and committing to it."""

import base64
import json
from bisect import bisect_left
from typing import Any
from urllib.parse import parse_qs, quote

from . import discussions
from .account_routes import card_data
from .blobs import git_blob_id
from .commits import Changes, commit_to_branch, wants_lfs
from .errors import HubError
from .repos import Repo
from .routing import Answer, Call, json_answer, route

EXPANDED_PAGE_SIZE = 50  # of a tree with expand=True, as on the Hub


def file_info(call: Call, repo: Repo, path: str, entry: dict[str, Any], expand: bool) -> dict[str, Any]:
    """A file as tree and paths-info give it; expanded, with the commit that last changed it."""
    out = {"type": "file", "path": path, "size": entry["size"], "oid": entry["oid"]}
    if "lfs" in entry:
        out["lfs"] = {"oid": entry["lfs"], "size": entry["size"], "pointerSize": entry["pointer"]}
    if call.hub.xet and (xet_hash := call.hub.cas.by_sha256.get(entry.get("lfs", ""))):
        out["xetHash"] = xet_hash
    if expand:
        out["lastCommit"] = last_commit(repo, {entry["commit"]})
    return out


def folder_info(repo: Repo, path: str, inside: list[dict[str, Any]], expand: bool) -> dict[str, Any]:
    """A folder as tree and paths-info give it; its oid changes with what is in it."""
    oid = git_blob_id("\n".join([path, *(e["oid"] for e in inside)]).encode())
    out = {"type": "directory", "path": path, "size": 0, "oid": oid}
    if expand:
        out["lastCommit"] = last_commit(repo, {e["commit"] for e in inside})
    return out


def last_commit(repo: Repo, oids: set[str]) -> dict[str, Any]:
    """The newest of some commits, in short."""
    commit = max((repo.summary(oid) for oid in oids), key=lambda c: (c["date"], c["oid"]))
    return {"id": commit["oid"], "title": commit["title"], "date": commit["date"]}


def inside(files: dict[str, dict], folder: str) -> list[str]:
    """The sorted paths in a folder ("" is all): a commit's files are sorted by path."""
    paths = list(files)
    if not folder:
        return paths
    # "0" is the character after "/"
    return paths[bisect_left(paths, f"{folder}/") : bisect_left(paths, f"{folder}0")]


@route("GET", "/api/{kind}/{repo}", "/api/{kind}/{repo}/revision/{revision}")
def repo_info(call: Call, kind: str, repo: str, revision: str = "main") -> Answer:
    found = call.repo(kind, repo)
    commit = found.commit(revision)
    siblings = []
    for path, entry in commit["files"].items():
        sibling = {"rfilename": path}
        if call.query.get("blobs"):
            sibling |= {"size": entry["size"], "blobId": entry["oid"]}
            if "lfs" in entry:
                lfs = {"sha256": entry["lfs"], "size": entry["size"], "pointerSize": entry["pointer"]}
                sibling["lfs"] = lfs
        siblings.append(sibling)
    out = {"_id": git_blob_id(found.id.encode())[:24], "id": found.id, "author": found.id.split("/")[0]}
    out |= {"sha": commit["oid"], "lastModified": commit["date"], "createdAt": found.state["created"]}
    out |= {"private": found.state["private"], "gated": False, "disabled": False, "tags": []}
    out |= {"downloads": 0, "likes": 0, "siblings": siblings}
    out["usedStorage"] = sum(entry["size"] for entry in commit["files"].values())
    if card := card_data(call, found, commit["files"]):
        out["cardData"] = card
    return json_answer(json.loads(json.dumps(out, default=str)))  # YAML has dates


@route("GET", "/api/{kind}/{repo}/commits/{revision}")
def list_commits(call: Call, kind: str, repo: str, revision: str) -> Answer:
    history = call.repo(kind, repo).history(revision)
    page, link = _page(call, len(history), call.hub.page_size, "")
    out = [
        {
            "id": c["oid"],
            "title": c["title"],
            "message": c["message"],
            "date": c["date"],
            "authors": [{"user": discussions.AUTHOR["name"]}],
        }
        for c in history[page]
    ]
    return json_answer(out, headers=link)


def _page(call: Call, num_items: int, size: int, prefix: str) -> tuple[slice, list[tuple[str, str]]]:
    """The slice of a listing that the cursor asks for, and the Link header to the next page."""
    start = int(call.query.get("cursor", "0").removeprefix(prefix) or 0)
    end = start + min(size, int(call.query.get("limit", size)))
    if end >= num_items:
        return slice(start, end), []
    query = {**call.query, "cursor": f"{prefix}{end}"}
    text = "&".join(f"{quote(k)}={quote(v)}" for k, v in query.items())
    return slice(start, end), [("Link", f'<{call.base}{call.path}?{text}>; rel="next"')]


def _flag(call: Call, name: str) -> bool:
    return call.query.get(name, "").lower() in ("1", "true")


@route("GET", "/api/{kind}/{repo}/tree/{revision}", "/api/{kind}/{repo}/tree/{revision}/{path*}")
def list_tree(call: Call, kind: str, repo: str, revision: str, path: str = "") -> Answer:
    found = call.repo(kind, repo)
    # The cursor keeps the commit of the first page: pages of a listing agree although the branch moves on.
    at, _, _ = call.query.get("cursor", "").rpartition("-")
    commit = found.commit(at or revision)
    files, path = commit["files"], path.strip("/")
    paths = inside(files, path)
    if path and not paths:
        raise HubError(404, f"{path} does not exist on {revision}", "EntryNotFound")
    recursive, expand = _flag(call, "recursive"), _flag(call, "expand")
    names: list[tuple[str, bool]] = []  # (path, is a folder), a folder before what is in it
    seen = {path}
    for name in paths:
        parts = name[len(path) + 1 if path else 0 :].split("/")
        for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
            folder = "/".join([path, *parts[:depth]] if path else parts[:depth])
            if folder not in seen:
                seen.add(folder)
                names.append((folder, True))
        if recursive or len(parts) == 1:
            names.append((name, False))
    size = min(EXPANDED_PAGE_SIZE, call.hub.page_size) if expand else call.hub.page_size
    page, link = _page(call, len(names), size, f"{commit['oid']}-")
    out = [
        folder_info(found, name, [files[p] for p in inside(files, name)], expand)
        if is_folder
        else file_info(call, found, name, files[name], expand)
        for name, is_folder in names[page]
    ]
    return json_answer(out, headers=link)


@route("POST", "/api/{kind}/{repo}/paths-info/{revision}")
def paths_info(call: Call, kind: str, repo: str, revision: str) -> Answer:
    """Paths that do not exist are left out."""
    found = call.repo(kind, repo)
    files = found.commit(revision)["files"]
    if "json" in call.headers.get("Content-Type", ""):
        value = call.json()
        paths, expand = value.get("paths", []), bool(value.get("expand"))
    else:
        value = parse_qs(call.body().decode())
        paths, expand = value.get("paths", []), value.get("expand", [""])[0].lower() in ("1", "true")
    out = []
    for path in paths:
        if path in files:
            out.append(file_info(call, found, path, files[path], expand))
        elif under := inside(files, path.rstrip("/")):
            out.append(folder_info(found, path.rstrip("/"), [files[p] for p in under], expand))
    return json_answer(out)


@route("POST", "/api/{kind}/{repo}/preupload/{revision}", access="write")
def preupload(call: Call, kind: str, repo: str, revision: str) -> Answer:
    """How each file is to be uploaded, and what is at its path now (sha256 for LFS, else git's blob id)."""
    files = call.repo(kind, repo).commit(revision)["files"]
    out = []
    for item in call.json().get("files", []):
        now = files.get(item["path"], {})
        lfs = wants_lfs(item["path"], item["size"], base64.b64decode(item.get("sample", "")))
        mode = "lfs" if lfs else "regular"
        oid = now.get("lfs", now.get("oid"))
        out.append({"path": item["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return json_answer({"files": out})


@route("POST", "/api/{kind}/{repo}/commit/{revision}", access="write")
def commit(call: Call, kind: str, repo: str, revision: str) -> Answer:
    found = call.repo(kind, repo)
    ref = found.find_ref(revision)
    if ref is None or ref.startswith("refs/tags/"):
        raise HubError(404, f"Invalid rev id: {revision} is not a branch or a pull request", "RevisionNotFound")
    lines = [json.loads(line) for line in call.body().splitlines() if line.strip()]
    changes = Changes(call.hub.blobs, call.hub.lfs_size).read(lines)
    out: dict[str, Any] = {"success": True, "hookOutput": ""}
    if _flag(call, "create_pr"):
        oid, num = discussions.commit_as_pull_request(found, ref, changes)
        out["pullRequestUrl"] = f"{call.base}/{found.web_path}/discussions/{num}"
    elif ref.startswith("refs/pr/"):
        oid = discussions.commit_to_pull_request(found, int(ref.removeprefix("refs/pr/")), changes)
    else:
        oid = commit_to_branch(found, ref, changes)
    return json_answer({**out, "commitOid": oid, "commitUrl": f"{call.base}/{found.web_path}/commit/{oid}"})
