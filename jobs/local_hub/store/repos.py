"""Repositories: references that name commits, and commits that list every file they hold.

    ROOT/repos/<kind>--<namespace>--<name>/repo.json             all that changes (`Repo.state`)
    ROOT/repos/<kind>--<namespace>--<name>/commits/<oid>.json    one commit, never changed

A commit is written before the reference that names it, each in one atomic step, so a kill in between leaves the
repository at its last commit and a file that nobody names. `repo.json` holds

    {"id": "user/name", "kind": "datasets", "private": false, "created": "<date>",
     "refs": {"refs/heads/main": "<oid>", "refs/tags/v1": "<oid>", "refs/pr/1": "<oid>"},
     "discussions": [see discussions.py]}

and a commit `{"oid", "parents", "title", "message", "date", "files"}`, where files maps a path to
`{"size", "oid", "commit"}` and, for LFS, `"lfs"` (sha256) and `"pointer"` (bytes of the LFS pointer). "commit" is
the commit that last changed the file. A listing is one dictionary (a commit of 10,000 files is about 2 MB); git's
trees would save disk at many commits and cost code that a single-machine Hub doesn't need.
"""

import hashlib
import json
import os
import re
import tempfile
import threading
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from .disk import Disk, sync_folder
from .errors import HubError

KINDS = ("datasets", "models", "spaces")
NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
REF_NAME = re.compile(r"(?!.*(\.\.|//))[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}")
OID = re.compile(r"[0-9a-f]{40}")
CACHED_COMMITS = 16


def now() -> str:
    """The time as the Hub writes it, UTC to the millisecond."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


class Repo:
    """One repository. Reading needs no lock: `state` is replaced, never changed; writers hold `lock`."""

    def __init__(self, disk: Disk, folder: Path):
        self.disk = disk
        self.folder = folder
        self.lock = threading.RLock()
        self.state: dict[str, Any] = json.loads((folder / "repo.json").read_bytes())
        self._cached = lru_cache(CACHED_COMMITS)(self._load)
        self._summaries: dict[str, dict[str, Any]] = {}

    @property
    def id(self) -> str:
        return self.state["id"]

    @property
    def kind(self) -> str:
        return self.state["kind"]

    @property
    def refs(self) -> dict[str, str]:
        return self.state["refs"]

    @property
    def web_path(self) -> str:
        """The repository's address below the Hub's: models have no prefix."""
        return self.id if self.kind == "models" else f"{self.kind}/{self.id}"

    def save(self, **changes: Any) -> None:
        """Replace entries of the state, durably; the caller holds the lock."""
        state = {**self.state, **changes}
        self.disk.write_json(self.folder / "repo.json", state)
        self.state = state

    def set_ref(self, ref: str, oid: str | None, **changes: Any) -> None:
        """Point a reference at a commit, or remove it, together with other changes of the state."""
        refs = {name: target for name, target in self.refs.items() if name != ref}
        if oid is not None:
            refs[ref] = oid
        self.save(refs=refs, **changes)

    def find_ref(self, revision: str) -> str | None:
        """The full name of a branch, tag or pull request reference."""
        for name in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if name in self.refs:
                return name
        return None

    def oid(self, revision: str) -> str:
        """The commit that a branch, tag, `refs/...` or a commit's own id names.

        Raises:
            HubError: 404 RevisionNotFound.
        """
        ref = self.find_ref(revision)
        if ref is not None:
            return self.refs[ref]
        if OID.fullmatch(revision) and (self.folder / "commits" / f"{revision}.json").exists():
            return revision
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def commit(self, revision: str) -> dict[str, Any]:
        """The commit of a revision; shared, so not to be changed.

        Raises:
            HubError: 404 RevisionNotFound.
        """
        return self._cached(self.oid(revision))

    def _load(self, oid: str) -> dict[str, Any]:
        return json.loads((self.folder / "commits" / f"{oid}.json").read_bytes())

    def summary(self, oid: str) -> dict[str, Any]:
        """A commit without its files; kept in memory once it was looked at."""
        if oid not in self._summaries:
            self._summaries[oid] = {k: v for k, v in self._cached(oid).items() if k != "files"}
        return self._summaries[oid]

    def write_commit(
        self, parents: list[str], title: str, message: str, files: dict[str, dict], changed: set[str]
    ) -> str:
        """Store a commit that no reference names yet and return its id; `changed` are the paths it touched."""
        commit = {"parents": parents, "title": title, "message": message, "date": now()}
        listing = {path: {k: v for k, v in files[path].items() if k != "commit"} for path in sorted(files)}
        oid = hashlib.sha1(json.dumps([self.id, commit, listing]).encode()).hexdigest()
        for path, entry in listing.items():
            entry["commit"] = oid if path in changed else files[path]["commit"]
        commit = {"oid": oid, **commit, "files": listing}
        self.disk.write_json(self.folder / "commits" / f"{oid}.json", commit)
        return oid

    def history(self, revision: str) -> list[dict[str, Any]]:
        """The commits that a revision is made of, without their files, newest first, by first parents."""
        out = [self.summary(self.oid(revision))]
        while out[-1]["parents"]:
            out.append(self.summary(out[-1]["parents"][0]))
        return out

    def create_ref(self, ref: str, revision: str) -> None:
        """Add a branch or a tag.

        Raises:
            HubError: 409 it exists, 400 an impossible name, 404 RevisionNotFound.
        """
        if not REF_NAME.fullmatch(ref):
            raise HubError(400, f"{ref} is not a valid reference name")
        with self.lock:
            if ref in self.refs:
                raise HubError(409, f"Reference already exists: {ref}")
            self.set_ref(ref, self.oid(revision))

    def delete_ref(self, ref: str) -> None:
        """Remove a branch or a tag.

        Raises:
            HubError: 404 RevisionNotFound; 403 for main.
        """
        with self.lock:
            if ref not in self.refs:
                raise HubError(404, f"Reference does not exist: {ref}", "RevisionNotFound")
            if ref == "refs/heads/main":
                raise HubError(403, "main is the default branch and stays")
            self.set_ref(ref, None)


class Repos:
    """All repositories of a Hub, by kind and id."""

    def __init__(self, disk: Disk):
        self.disk = disk
        self.folder = disk.folder("repos")
        self._lock = threading.Lock()
        self._repos: dict[tuple[str, str], Repo] = {}
        for folder in sorted(self.folder.iterdir()):
            repo = Repo(disk, folder)
            self._repos[repo.kind, repo.id] = repo

    def get(self, kind: str, repo_id: str) -> Repo | None:
        return self._repos.get((kind, repo_id))

    def create(self, kind: str, repo_id: str, private: bool, files: dict[str, dict]) -> Repo:
        """A new repository whose first commit holds these files; it appears in one step.

        Raises:
            HubError: 409 it exists, 400 an impossible name.
        """
        parts = repo_id.split("/")
        if kind not in KINDS or len(parts) != 2 or not all(NAME.fullmatch(part) for part in parts):
            raise HubError(400, f"{kind}/{repo_id} is not a valid repository name")
        with self._lock:
            if (kind, repo_id) in self._repos:
                raise HubError(409, f"You already created this {kind[:-1]} repo: {repo_id}")
            folder = self.folder / f"{kind}--{repo_id.replace('/', '--')}"
            draft = Path(tempfile.mkdtemp(dir=self.disk.tmp))
            (draft / "commits").mkdir()
            state = {"id": repo_id, "kind": kind, "private": private, "created": now(), "refs": {}}
            self.disk.write_json(draft / "repo.json", {**state, "discussions": []})
            repo = Repo(self.disk, draft)
            repo.set_ref("refs/heads/main", repo.write_commit([], "initial commit", "", files, set(files)))
            os.rename(draft, folder)
            sync_folder(self.folder)
            repo.folder = folder
            self._repos[kind, repo_id] = repo
            return repo

    def delete(self, repo: Repo) -> None:
        """Remove a repository; its contents stay in the store, as other commits may name them."""
        with self._lock, repo.lock:
            del self._repos[repo.kind, repo.id]
            self.disk.discard(repo.folder)
