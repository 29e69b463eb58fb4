"""A Hub that is killed at any moment comes back with what it had acknowledged, and nothing half done."""

import contextlib
import hashlib
import http.client
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jobs.local_hub import DEFAULT_TOKEN
from jobs.local_hub.store.blobs import Blobs, git_blob_id
from jobs.local_hub.store.commits import Changes, regular_entry
from jobs.local_hub.store.discussions import Discussions
from jobs.local_hub.store.disk import Disk
from jobs.local_hub.store.repos import Repos
from jobs.local_hub.store.xet_store import XetStore

from .conftest import REPO
from .xet_objects import make_shard, make_xorb, noise


class KilledError(BaseException):
    """Stands for SIGKILL: nothing in the Hub catches it."""


class Store:
    """A Hub's folder without the server in front of it."""

    def __init__(self, root: Path):
        self.disk = Disk(root)
        self.blobs = Blobs(self.disk)
        self.cas = XetStore(self.disk)
        self.repos = Repos(self.disk)

    def read(self, oid: str) -> bytes:
        """The content of a blob or of an LFS object, wherever it is."""
        if name := self.cas.by_sha256.get(oid):
            return b"".join(self.cas.read(name, 0, self.cas.files[name].size))
        return self.blobs.path(oid).read_bytes()

    def lfs_size(self, sha256: str) -> int | None:
        name = self.cas.by_sha256.get(sha256)
        return self.cas.files[name].size if name else self.blobs.size(sha256)


def check(store: Store) -> list[list[str]]:
    """Read every file of every commit that a reference leads to, and of the Xet store; the titles of main's commits,
    per repository."""
    out = []
    for sha256 in store.cas.by_sha256:
        assert hashlib.sha256(store.read(sha256)).hexdigest() == sha256
    for repo in store.repos._repos.values():
        for ref in repo.refs:
            for commit in repo.history(ref):
                for path, entry in repo.commit(commit.oid).files.items():
                    data = store.read(entry.content)
                    assert len(data) == entry.size, path
                    if entry.lfs:
                        assert hashlib.sha256(data).hexdigest() == entry.lfs, path
                    else:
                        assert git_blob_id(data) == entry.oid, path
        out.append([c.title for c in repo.history("main")])
    return out


def work(store: Store, done: list[str]) -> None:
    """One of everything that changes the store; each step is noted once it was acknowledged."""

    def changes(title: str, *lines: dict) -> Changes:
        header = {"key": "header", "value": {"summary": title}}
        return Changes([header, *lines], store.blobs, store.lfs_size)

    def file(path: str) -> dict:
        return {"key": "file", "value": {"path": path, "content": "eHl6"}}

    repo = store.repos.create("datasets", REPO, False, {"a": regular_entry(store.blobs, b"a")})
    done.append("created")
    data = b"large" * 1000
    sha256 = hashlib.sha256(data).hexdigest()
    store.blobs.put_lfs(sha256, [data])
    lfs = {"key": "lfsFile", "value": {"path": "b.bin", "oid": sha256}}
    changes("one", file("a"), lfs).commit_to_branch(repo, "refs/heads/main")
    done.append("one")
    chunks = [noise(i, 500) for i in range(3)]
    name, body = make_xorb(chunks)
    store.cas.xorbs.put(name, io.BytesIO(body).read)
    store.cas.put_shard(make_shard([(name, 0, 3)], {name: chunks}, [name]))
    lfs = {"key": "lfsFile", "value": {"path": "x.bin", "oid": hashlib.sha256(b"".join(chunks)).hexdigest()}}
    changes("xet", lfs).commit_to_branch(repo, "refs/heads/main")
    done.append("xet")
    _, num = Discussions(repo).open_with_commit("refs/heads/main", changes("pull", file("c")))
    done.append("pull")
    Discussions(repo).merge(num, None)
    done.append("merged")
    store.repos.delete(repo)
    done.append("deleted")


TITLES = {
    "": [],
    "created": [["initial commit"]],
    "one": [["one", "initial commit"]],
    "xet": [["xet", "one", "initial commit"]],
    "pull": [["xet", "one", "initial commit"]],
    "merged": [["pull (#1)", "xet", "one", "initial commit"]],
    "deleted": [],
}


def test_a_kill_between_any_two_steps_on_disk(tmp_path, monkeypatch):
    """Every fsync, rename and replace is a moment to die at; the Hub that reopens has all that was acknowledged,
    and of the step that was under way all or nothing."""
    calls = itertools.count()
    deadline = 0

    def dying(function):
        def call(*arguments, **options):
            if next(calls) >= deadline:  # the dead do nothing more, nor do they clean up
                raise KilledError
            return function(*arguments, **options)

        return call

    reached = set()
    for attempt in range(200):
        root = tmp_path / str(attempt)
        done: list[str] = []
        store = Store(root)
        calls, deadline = itertools.count(), attempt
        with monkeypatch.context() as patch, contextlib.suppress(KilledError):
            for name in ("fsync", "replace", "rename", "unlink"):
                patch.setattr(os, name, dying(getattr(os, name)))
            work(store, done)
        store.disk.close()
        store = Store(root)
        assert list(store.disk.tmp.iterdir()) == []
        found = check(store)
        store.disk.close()
        last = done[-1] if done else ""
        following = [*TITLES, "deleted"][list(TITLES).index(last) + 1]
        assert found in (TITLES[last], TITLES[following]), (attempt, last)
        reached.add(last)
        if last == "deleted":
            assert attempt > 20
            assert reached == set(TITLES)
            return
    pytest.fail("the work has more steps than were tried")


def test_a_file_gets_its_name_when_it_is_on_the_device(tmp_path, monkeypatch):
    """First its bytes are flushed, then it is renamed in one step, then the folder's entry is flushed."""
    steps = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        steps.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def note_replace(source, target):
        steps.append(("replace", source, str(target), Path(source).read_bytes()))
        replace(source, target)

    with contextlib.closing(Disk(tmp_path)) as disk:
        monkeypatch.setattr(os, "fsync", note_fsync)
        monkeypatch.setattr(os, "replace", note_replace)
        disk.write(tmp_path / "name", b"content")
    draft = steps[0][1]
    assert draft.startswith(str(tmp_path / "tmp"))
    assert steps == [
        ("fsync", draft),
        ("replace", draft, str(tmp_path / "name"), b"content"),
        ("fsync", str(tmp_path)),
    ]


def serve(root: Path, port: int) -> tuple[subprocess.Popen, str]:
    """A Hub in a process of its own, and its address."""
    command = [sys.executable, "-m", "jobs.local_hub", str(root), "--port", str(port), "--no-xet"]
    env = {k: v for k, v in os.environ.items() if k != "HF_TOKEN"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout.readline().startswith("# A Hub on this machine.")
    assert process.stdout.readline().startswith("# A browser shows")
    printed = dict(process.stdout.readline().removeprefix("export ").strip().split("=") for _ in range(2))
    assert printed["HF_TOKEN"] == DEFAULT_TOKEN
    return process, printed["HF_ENDPOINT"]


def test_a_killed_process_keeps_what_it_acknowledged(tmp_path, make_api):
    """Two writers commit to branches of their own until the Hub is killed with SIGKILL; then it is reopened."""
    root = tmp_path / "hub"
    acknowledged: dict[str, list[str]] = {"main": [], "dev": []}

    class Served:  # what make_api needs of a Hub
        url, token = "", DEFAULT_TOKEN

    for generation in range(2):
        process, Served.url = serve(root, 0)
        api = make_api(Served)
        api.create_repo(REPO, repo_type="dataset", exist_ok=True)
        api.create_branch(REPO, branch="dev", repo_type="dataset", exist_ok=True)
        enough = threading.Event()

        def write(branch: str, api=api, generation=generation, enough=enough) -> None:
            for i in itertools.count():
                title = f"{branch} {generation} {i}"
                sha256 = hashlib.sha256(data := os.urandom(300_000)).hexdigest()
                try:
                    put(Served.url, api, branch, title, sha256, data)
                except OSError:
                    return
                acknowledged[branch].append(title)
                if i == 5:
                    enough.set()

        writers = [threading.Thread(target=write, args=(branch,)) for branch in acknowledged]
        for writer in writers:
            writer.start()
        assert enough.wait(60)
        time.sleep(0.01 * (generation + 1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for writer in writers:
            writer.join()
        store = Store(root)
        check(store)
        repo = store.repos.get("datasets", REPO)
        for branch, titles in acknowledged.items():
            found = [c.title for c in reversed(repo.history(branch))][1:]
            # What was acknowledged is there, in order; one more may have been applied and not answered.
            assert found[: len(titles)] == titles
            assert len(found) <= len(titles) + 1
            acknowledged[branch] = found
        assert list(store.disk.tmp.iterdir()) == []
        store.disk.close()
    assert min(map(len, acknowledged.values())) >= 2


def put(url: str, api, branch: str, title: str, sha256: str, data: bytes) -> None:
    """Upload a file by LFS and commit it, without the client's retries."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    headers = {"Authorization": f"Bearer {api.token}"}

    def send(method: str, path: str, body) -> dict:
        connection.request(method, path, body, headers)
        try:
            reply = connection.getresponse()
            status, answer = reply.status, reply.read()
        except http.client.HTTPException as error:
            raise ConnectionResetError from error
        assert status == 200, answer
        return json.loads(answer or b"{}")

    try:
        objects = [{"oid": sha256, "size": len(data)}]
        batch = send("POST", f"/datasets/{REPO}.git/info/lfs/objects/batch", json.dumps({"objects": objects}))
        send("PUT", batch["objects"][0]["actions"]["upload"]["href"].removeprefix(url), data)
        path = f"{title}.bin"
        lines = [
            {"key": "header", "value": {"summary": title}},
            {"key": "lfsFile", "value": {"path": path, "oid": sha256, "size": len(data)}},
        ]
        send("POST", f"/api/datasets/{REPO}/commit/{branch}", "\n".join(map(json.dumps, lines)))
    finally:
        connection.close()
