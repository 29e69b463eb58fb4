"""What is in a repository: info, history, listings; and commits to it."""

import base64
import json
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, quote

from jobs.local_hub.errors import HubError
from jobs.local_hub.store.blobs import git_blob_id
from jobs.local_hub.store.commits import Changes, wants_lfs
from jobs.local_hub.store.discussions import AUTHOR, Discussions
from jobs.local_hub.store.repo_state import Commit, FileEntry
from jobs.local_hub.store.repos import Repo

from .cards import card_data, card_text
from .routing import Answer, Call, Routes, json_answer

__all__ = ["routes"]

routes = Routes()

EXPANDED_PAGE_SIZE = 50  # of a tree with expand=True, as on the Hub


def _lfs_info(entry: FileEntry, name: str) -> dict[str, Any]:
    return {"lfs": {name: entry.lfs, "size": entry.size, "pointerSize": entry.pointer}} if entry.lfs else {}


def _file_info(call: Call, repo: Repo, path: str, entry: FileEntry, expand: bool) -> dict[str, Any]:
    """A file as tree and paths-info give it; `expand` adds the commit that last changed it."""
    out = {"type": "file", "path": path, "size": entry.size, "oid": entry.oid, **_lfs_info(entry, "oid")}
    if call.hub.xet and (xet_hash := call.hub.cas.by_sha256.get(entry.lfs or "")):
        out["xetHash"] = xet_hash
    return out | _last_commit(repo, [entry], expand)


def _folder_info(repo: Repo, path: str, inside: list[FileEntry], expand: bool) -> dict[str, Any]:
    """A folder as tree and paths-info give it; its oid changes with its contents."""
    oid = git_blob_id("\n".join([path, *(entry.oid for entry in inside)]).encode())
    return {"type": "directory", "path": path, "size": 0, "oid": oid} | _last_commit(repo, inside, expand)


def _last_commit(repo: Repo, entries: list[FileEntry], expand: bool) -> dict[str, Any]:
    if not expand:
        return {}
    oids = {entry.commit for entry in entries}
    last = max(map(repo.summary, oids), key=lambda commit: (commit.date, commit.oid))
    return {"lastCommit": {"id": last.oid, "title": last.title, "date": last.date}}


def _inside(files: Mapping[str, FileEntry], folder: str) -> list[str]:
    """The sorted paths in a folder ("" is all): a commit's files are sorted by path."""
    paths = list(files)
    if not folder:
        return paths
    # "0" is the character after "/"
    return paths[bisect_left(paths, f"{folder}/") : bisect_left(paths, f"{folder}0")]


def _path_info(call: Call, repo: Repo, commit: Commit, path: str, expand: bool) -> dict[str, Any] | None:
    """A file or a folder, None where there is nothing at a path."""
    if path in commit.files:
        return _file_info(call, repo, path, commit.files[path], expand)
    folder = path.rstrip("/")
    entries = [commit.files[inner] for inner in _inside(commit.files, folder)]
    return _folder_info(repo, folder, entries, expand) if entries else None


@routes.add("GET", "/api/{kind}/{repo}", "/api/{kind}/{repo}/revision/{revision}")
def repo_info(call: Call, repo: Repo, revision: str = "main") -> Answer:
    commit, state = repo.commit(revision), repo.state
    siblings = []
    for path, entry in commit.files.items():
        sizes = {"size": entry.size, "blobId": entry.oid, **_lfs_info(entry, "sha256")}
        siblings.append({"rfilename": path, **(sizes if call.query.get("blobs") else {})})
    out = {"_id": git_blob_id(repo.id.encode())[:24], "id": repo.id, "author": repo.id.split("/")[0]}
    out |= {"sha": commit.oid, "lastModified": commit.date, "createdAt": state.created}
    out |= {"private": state.private, "gated": False, "disabled": False, "tags": []}
    out |= {"downloads": 0, "likes": 0, "siblings": siblings}
    out["usedStorage"] = sum(entry.size for entry in commit.files.values())
    try:
        card = card_data(card_text(call.hub.blobs, commit.files))
    except HubError:  # a card that cannot be read is not shown
        card = {}
    if card:
        out["cardData"] = json.loads(json.dumps(card, default=str))  # YAML has dates
    return json_answer(out)


@routes.add("GET", "/api/{kind}/{repo}/commits/{revision}")
def list_commits(call: Call, repo: Repo, revision: str) -> Answer:
    history = repo.history(revision)
    page, link = _page(call, len(history), call.hub.page_size, "")
    out = []
    for commit in history[page]:
        shown = {"id": commit.oid, **commit.model_dump(include={"title", "message", "date"})}
        out.append({**shown, "authors": [{"user": AUTHOR["name"]}]})
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


def _flag(text: str) -> bool:
    return text.lower() in ("1", "true")


@routes.add("GET", "/api/{kind}/{repo}/tree/{revision}", "/api/{kind}/{repo}/tree/{revision}/{path*}")
def list_tree(call: Call, repo: Repo, revision: str, path: str = "") -> Answer:
    # The cursor keeps the commit of the first page, so all pages agree even if the branch moves.
    at, _, _ = call.query.get("cursor", "").rpartition("-")
    commit, path = repo.commit(at or revision), path.strip("/")
    paths = _inside(commit.files, path)
    if path and not paths:
        raise HubError(404, f"{path} does not exist on {revision}", "EntryNotFound")
    names = _tree_names(paths, path, _flag(call.query.get("recursive", "")))
    expand = _flag(call.query.get("expand", ""))
    size = min(EXPANDED_PAGE_SIZE, call.hub.page_size) if expand else call.hub.page_size
    page, link = _page(call, len(names), size, f"{commit.oid}-")
    return json_answer([_path_info(call, repo, commit, name, expand) for name in names[page]], headers=link)


def _tree_names(paths: list[str], folder: str, recursive: bool) -> list[str]:
    """The files and folders in a folder, each folder before what is in it."""
    names: dict[str, None] = {}  # a set in order
    for path in paths:
        end = path.find("/", len(folder) + 1 if folder else 0)
        while recursive and end >= 0:
            names[path[:end]] = None
            end = path.find("/", end + 1)
        names[path if end < 0 else path[:end]] = None
    return list(names)


@routes.add("POST", "/api/{kind}/{repo}/paths-info/{revision}")
def paths_info(call: Call, repo: Repo, revision: str) -> Answer:
    """Files and folders at these paths; paths that do not exist are left out."""
    commit = repo.commit(revision)
    if "json" in call.headers.get("Content-Type", ""):
        value = call.json()
        paths, expand = value.get("paths", []), bool(value.get("expand"))
    else:
        form = parse_qs(call.body().decode())
        paths, expand = form.get("paths", []), _flag(form.get("expand", [""])[0])
    found = [_path_info(call, repo, commit, path, expand) for path in paths]
    return json_answer([info for info in found if info])


@routes.add("POST", "/api/{kind}/{repo}/preupload/{revision}", access="write")
def preupload(call: Call, repo: Repo, revision: str) -> Answer:
    """How to upload each file, and what its path holds now (sha256 for LFS, else git's blob id)."""
    files = repo.commit(revision).files
    out = []
    for item in call.json().get("files", []):
        path = item["path"]
        lfs = wants_lfs(path, item["size"], base64.b64decode(item.get("sample", "")))
        oid = files[path].content if path in files else None
        out.append({"path": path, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False, "oid": oid})
    return json_answer({"files": out})


@routes.add("POST", "/api/{kind}/{repo}/commit/{revision}", access="write")
def commit(call: Call, repo: Repo, revision: str) -> Answer:
    ref = repo.find_ref(revision)
    if ref is None or ref.startswith("refs/tags/"):
        raise HubError(404, f"Invalid rev id: {revision} is not a branch or a pull request", "RevisionNotFound")
    lines = [json.loads(line) for line in call.body().splitlines() if line.strip()]
    changes = Changes(lines, call.hub.blobs, call.hub.lfs_size)
    out: dict[str, Any] = {"success": True, "hookOutput": ""}
    if _flag(call.query.get("create_pr", "")):
        oid, num = Discussions(repo).open_with_commit(ref, changes)
        out["pullRequestUrl"] = f"{call.base}/{repo.web_path}/discussions/{num}"
    elif ref.startswith("refs/pr/"):
        oid = Discussions(repo).commit(int(ref.removeprefix("refs/pr/")), changes)
    else:
        oid = changes.commit_to_branch(repo, ref)
    return json_answer({**out, "commitOid": oid, "commitUrl": f"{call.base}/{repo.web_path}/commit/{oid}"})
