"""A job that was stopped goes on from the shards that it had finished, and ends in the bytes of one that was not."""

import time

import pytest

from jobs import pack
from jobs.output.hub_draft import HubDraft
from jobs.published.check_dataset import validate
from jobs.published.dataset import open_packed
from jobs.shards.ledger import QualityError
from tests.spark.conftest import demo_tree, files_of
from tests.spark.test_kills import killed, start_job

pytestmark = pytest.mark.slow

AT_ONCE = {"checkpoint_seconds": 0}


class StoppedError(Exception):
    """Stands in for whatever ends a driver."""


@pytest.fixture
def uninterrupted(run_demo, api):
    """Files of a run into a repository, which is gone afterwards: reports name it, so it must be the same one."""

    def run(repo: str) -> dict[str, str]:
        run_demo(repo, output={"repo": repo, **AT_ONCE})
        files = files_of(api, repo)
        assert len([path for path in files if path.startswith("data/")]) == 4
        api.delete_repo(repo, repo_type="dataset")
        return files

    return run


def stop_after(monkeypatch, num_shards: int) -> None:
    """The driver ends when so many shards are in its pull request."""
    add, calls = HubDraft.add, []

    def add_and_stop(self, rows):
        add(self, rows)
        calls.append(rows)
        if len(calls) == num_shards:
            raise StoppedError

    monkeypatch.setattr(HubDraft, "add", add_and_stop)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_stopped_run_packs_only_what_is_missing(run_demo, uninterrupted, api, monkeypatch, num_shards):
    repo = f"user/stopped-{num_shards}"
    expected = uninterrupted(repo)
    stop_after(monkeypatch, num_shards)
    with pytest.raises(StoppedError):
        run_demo(repo, output={"repo": repo, **AT_ONCE})
    monkeypatch.undo()
    assert set(files_of(api, repo)) == {".gitattributes"}
    assert len(api.list_repo_commits(repo, repo_type="dataset", revision="refs/pr/1")) == 1 + num_shards
    report = run_demo(repo, output={"repo": repo, **AT_ONCE})
    assert report["speed"]["num_shards_kept"] == num_shards
    assert files_of(api, repo) == expected
    (request,) = api.get_repo_discussions(repo, repo_type="dataset")
    assert request.status == "merged"


def test_a_run_with_all_shards_reads_no_source(run_demo, uninterrupted, api, monkeypatch):
    """It ended between the last shard and the report; what a shard's limit decides may differ then."""
    repo = "user/stopped-late"
    expected = uninterrupted(repo)
    stop_after(monkeypatch, 4)
    with pytest.raises(StoppedError):
        run_demo(repo, output={"repo": repo, **AT_ONCE})
    monkeypatch.undo()
    monkeypatch.setattr(pack, "read", lambda *args, **named: pytest.fail("a source is read"))
    with pytest.raises(QualityError):
        run_demo(repo, output={"repo": repo, **AT_ONCE}, quality={"max_quarantine_fraction": 0.0})
    report = run_demo(repo, output={"repo": repo, **AT_ONCE})
    assert report["speed"]["num_shards_kept"] == 4
    assert files_of(api, repo) == expected
    again = run_demo(repo, output={"repo": repo, **AT_ONCE})  # as when the merge's answer was not heard
    assert again["commit"] == report["commit"]
    assert all(again[name] == report[name] for name in again if name != "speed")
    assert files_of(api, repo) == expected


@pytest.mark.parametrize("before", [True, False], ids=["over another", "new"])
def test_a_half_finished_run_that_was_merged_by_hand_is_packed_anew(run_demo, api, monkeypatch, before):
    """Over a dataset without the duplicates, whose packs could have stayed; and where nothing was."""
    repo = f"user/merged-by-hand-{before}".lower()
    if before:
        run_demo(repo)
    sections = {"output": {"repo": repo, **AT_ONCE}, "shards": {"duplicates": "keep"}}
    stop_after(monkeypatch, 2)
    with pytest.raises(StoppedError):
        run_demo(repo, **sections)
    monkeypatch.undo()
    api.change_discussion_status(repo, 1, "open", repo_type="dataset")
    api.merge_pull_request(repo, 1, repo_type="dataset")
    assert ".packing/00002.parquet" in files_of(api, repo)
    report = run_demo(repo, **sections)
    assert report["speed"]["num_shards_kept"] == 0
    assert report["config"]["shards"]["duplicates"] == "keep"
    if before:
        assert report["reuse"]["num_packs_kept"] > 0
    assert list(validate(open_packed(repo))) == []
    assert len([path for path in files_of(api, repo) if path.startswith("data/")]) == 4


def test_another_configuration_starts_anew(run_demo, packed, api, monkeypatch):
    repo = "user/stopped-changed"
    stop_after(monkeypatch, 2)
    with pytest.raises(StoppedError):
        run_demo(repo, output={"repo": repo, **AT_ONCE}, shards={"seed": 5})
    monkeypatch.undo()
    report = run_demo(repo)
    assert report["speed"]["num_shards_kept"] == 0
    data = {path: oid for path, oid in files_of(api, repo).items() if path.startswith("data/")}
    assert data == {path: oid for path, oid in files_of(api, "user/packed").items() if path.startswith("data/")}


def test_an_append_that_was_not_heard_of_is_not_made_twice(run_demo, api):
    repo = "user/appended-once"
    run_demo(repo)
    section = {"repo": repo, "mode": "append"}
    first = run_demo(repo, output=section, shards={"seed": 1})
    files = files_of(api, repo)
    assert len([path for path in files if path.startswith("data/")]) == 8
    assert run_demo(repo, output=section, shards={"seed": 1})["commit"] == first["commit"]
    assert files_of(api, repo) == files


def test_a_killed_driver_loses_only_what_was_under_way(run_demo, uninterrupted, session_hub, api, tmp_path):
    repo = "user/killed-midway"
    expected = uninterrupted(repo)
    slow = session_hub.inject(route="preupload", skip=1, delay=3.0, times=None)  # asked for by shards and by commits
    process = start_job(tmp_path, demo_tree(repo, output={"repo": repo, **AT_ONCE}))
    with killed(process, session_hub):
        end = time.monotonic() + 180
        while num_parts(api, repo) < 1:
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < end
            time.sleep(0.1)
    assert slow.hits
    kept = num_parts(api, repo)
    report = run_demo(repo, output={"repo": repo, **AT_ONCE})
    assert 1 <= kept == report["speed"]["num_shards_kept"] < 4
    assert files_of(api, repo) == expected


def num_parts(api, repo: str) -> int:
    """Commits in the first pull request."""
    if not api.repo_exists(repo, repo_type="dataset"):
        return 0
    if not list(api.get_repo_discussions(repo, repo_type="dataset")):
        return 0
    titles = [one.title for one in api.list_repo_commits(repo, repo_type="dataset", revision="refs/pr/1")]
    return sum(", part " in title for title in titles)
