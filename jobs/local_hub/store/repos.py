"""Repositories: references that name commits, and commits that list every file.

    ROOT/repos/<kind>--<namespace>--<name>/repo.json             what changes: `RepoState`
    ROOT/repos/<kind>--<namespace>--<name>/commits/<oid>.json    a `Commit`, never changed

A commit is written before the reference that names it, each in one atomic step. A kill in between leaves the
repository at its last commit, and a file that nothing names.
"""

import hashlib
import json
import os
import re
import tempfile
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jobs.local_hub.errors import HubError

from .disk import Disk, sync_folder
from .repo_state import Commit, FileEntry, RepoState, now

__all__ = ["Repo", "Repos"]

KINDS = ("datasets", "models", "spaces")
NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
REF_NAME = re.compile(r"(?!.*(\.\.|//))[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}")
OID = re.compile(r"[0-9a-f]{40}")
CACHED_COMMITS = 16


class Repo:
    """One repository. Reading needs no lock, because `state` is replaced, never changed; writers hold `lock`."""

    def __init__(self, disk: Disk, folder: Path):
        self.disk = disk
        self.folder = folder
        self.lock = threading.RLock()
        self.state = RepoState.model_validate_json((folder / "repo.json").read_bytes())
        self.id, self.kind = self.state.id, self.state.kind
        self._cached = lru_cache(CACHED_COMMITS)(self._load)
        self._summaries: dict[str, Commit] = {}

    @property
    def refs(self) -> dict[str, str]:
        return self.state.refs

    @property
    def web_path(self) -> str:
        """The repository's path in the Hub's addresses: models have no prefix."""
        return self.id if self.kind == "models" else f"{self.kind}/{self.id}"

    def save(self, **changes: Any) -> None:
        """Replace fields of the state, durably; the caller holds the lock."""
        state = self.state.model_copy(update=changes)
        self.disk.write(self.folder / "repo.json", state.to_json())
        self.state = state

    def set_ref(self, ref: str, oid: str, **changes: Any) -> None:
        """Point a reference at a commit, in one step with other changes of the state."""
        self.save(refs={**self.refs, ref: oid}, **changes)

    def find_ref(self, revision: str) -> str | None:
        """The full name of a branch, a tag or a pull request's reference."""
        names = (revision, f"refs/heads/{revision}", f"refs/tags/{revision}")
        return next((name for name in names if name in self.refs), None)

    def oid(self, revision: str) -> str:
        """The commit id that a branch, a tag, `refs/...` or a commit id names; HubError RevisionNotFound if none."""
        ref = self.find_ref(revision)
        if ref is not None:
            return self.refs[ref]
        if OID.fullmatch(revision) and (self.folder / "commits" / f"{revision}.json").exists():
            return revision
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def commit(self, revision: str) -> Commit:
        """The commit of a revision, found as by `oid`."""
        return self._cached(self.oid(revision))

    def _load(self, oid: str) -> Commit:
        return Commit.model_validate_json((self.folder / "commits" / f"{oid}.json").read_bytes())

    def summary(self, oid: str) -> Commit:
        """A commit without its files, kept in memory."""
        if oid not in self._summaries:
            self._summaries[oid] = self._cached(oid).model_copy(update={"files": {}})
        return self._summaries[oid]

    def history(self, revision: str) -> list[Commit]:
        """The commits of a revision without their files, newest first, along first parents."""
        out = [self.summary(self.oid(revision))]
        while out[-1].parents:
            out.append(self.summary(out[-1].parents[0]))
        return out

    def write_commit(
        self, parents: list[str], title: str, message: str, files: Mapping[str, FileEntry], changed: set[str]
    ) -> str:
        """Store a commit that no reference names yet and return its id; `changed` are the paths that it touched."""
        date = now()
        contents = {path: files[path].content for path in sorted(files)}
        oid = hashlib.sha1(json.dumps([self.id, parents, title, message, date, contents]).encode()).hexdigest()
        listing = {
            path: files[path].model_copy(update={"commit": oid}) if path in changed else files[path]
            for path in contents
        }
        commit = Commit(oid=oid, parents=parents, title=title, message=message, date=date, files=listing)
        self.disk.write(self.folder / "commits" / f"{oid}.json", commit.to_json())
        return oid

    def create_ref(self, ref: str, revision: str) -> None:
        """Add a branch or a tag; HubError 409 if it exists, 400 for an invalid name."""
        if not REF_NAME.fullmatch(ref):
            raise HubError(400, f"{ref} is not a valid reference name")
        with self.lock:
            if ref in self.refs:
                raise HubError(409, f"Reference already exists: {ref}")
            self.set_ref(ref, self.oid(revision))

    def delete_ref(self, ref: str) -> None:
        """Remove a branch or a tag; HubError RevisionNotFound if there is none, 403 for main."""
        with self.lock:
            if ref not in self.refs:
                raise HubError(404, f"Reference does not exist: {ref}", "RevisionNotFound")
            if ref == "refs/heads/main":
                raise HubError(403, "main is the default branch and stays")
            self.save(refs={name: oid for name, oid in self.refs.items() if name != ref})


class Repos:
    """All repositories of a Hub, by kind and id."""

    def __init__(self, disk: Disk):
        self.disk = disk
        self.folder = disk.folder("repos")
        self._lock = threading.Lock()
        loaded = [Repo(disk, folder) for folder in sorted(self.folder.iterdir())]
        self._repos = {(repo.kind, repo.id): repo for repo in loaded}

    def get(self, kind: str, repo_id: str) -> Repo | None:
        return self._repos.get((kind, repo_id))

    def create(self, kind: str, repo_id: str, private: bool, files: Mapping[str, FileEntry]) -> Repo:
        """Add a repository whose first commit has these files, in one step.

        HubError 409 if it exists, 400 for an invalid name.
        """
        parts = repo_id.split("/")
        if kind not in KINDS or len(parts) != 2 or not all(NAME.fullmatch(part) for part in parts):
            raise HubError(400, f"{kind}/{repo_id} is not a valid repository name")
        with self._lock:
            if (kind, repo_id) in self._repos:
                raise HubError(409, f"You already created this {kind[:-1]} repo: {repo_id}")
            draft = Path(tempfile.mkdtemp(dir=self.disk.tmp))
            (draft / "commits").mkdir()
            state = RepoState(id=repo_id, kind=kind, private=private, created=now(), refs={}, discussions=[])
            self.disk.write(draft / "repo.json", state.to_json())
            repo = Repo(self.disk, draft)
            repo.set_ref("refs/heads/main", repo.write_commit([], "initial commit", "", files, set(files)))
            repo.folder = self.folder / f"{kind}--{repo_id.replace('/', '--')}"
            os.rename(draft, repo.folder)
            sync_folder(self.folder)
            self._repos[kind, repo_id] = repo
            return repo

    def delete(self, repo: Repo) -> None:
        """Remove a repository; its contents stay in the store, because other commits may name them."""
        with self._lock, repo.lock:
            del self._repos[repo.kind, repo.id]
            self.disk.discard(repo.folder)
