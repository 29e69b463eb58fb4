"""A Hub that fails: the run recovers, or ends with the repository as it was."""

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete

from jobs import pack
from jobs.output import hub_repository
from packing_udfs import config
from tests.spark.conftest import demo_tree, files_of
from tests.spark.made_sources import upload, vqa_row_file

pytestmark = pytest.mark.slow


@pytest.fixture
def faults(session_hub):
    """Inject faults that end with the test."""
    yield session_hub.inject
    session_hub.faults.clear()


def test_a_busy_hub_is_tried_again(run_demo, packed, api, faults):
    commit = faults(route="commit", status=503, times=2)
    upload = faults(route="preupload", status=429, headers={"Retry-After": "1"}, times=1)
    report = run_demo("user/busy")
    assert commit.hits == 2
    assert upload.hits == 1
    assert (
        files_of(api, "user/busy")["manifest/train.parquet"] == files_of(api, "user/packed")["manifest/train.parquet"]
    )
    assert len(api.list_repo_commits("user/busy", repo_type="dataset")) == 2
    assert report["commit"] == api.dataset_info("user/busy").sha


def test_a_lost_answer_is_recognised(run_demo, api, faults):
    lost = faults(route="commit", reset="after", times=1)
    report = run_demo("user/lost")
    assert lost.hits == 1
    assert report["commit"] == api.dataset_info("user/lost").sha
    assert len(api.list_repo_commits("user/lost", repo_type="dataset")) == 2


def test_a_lost_merge_is_recognised(run_demo, api, faults):
    lost = faults(route="merge_pull_request", reset="after", times=1)
    report = run_demo("user/lost-merge", output={"repo": "user/lost-merge", "max_operations_per_commit": 3})
    assert lost.hits == 1
    assert report["commit"] == api.dataset_info("user/lost-merge").sha


@pytest.mark.parametrize("part", [0, 1, 3])
def test_a_lost_part_of_a_pull_request_is_recognised(run_demo, packed, api, faults, part):
    """Sent again, a part that deletes would be refused: its files are gone."""
    repo = f"user/lost-part-{part}"
    run_demo(repo, shards={"num_shards": 4})
    lost = faults(route="commit", reset="after", skip=part, times=1)
    run_demo(repo, shards={"num_shards": 1}, output={"repo": repo, "max_operations_per_commit": 2})
    assert lost.hits == 1
    assert [path for path in files_of(api, repo) if path.startswith("data/")] == ["data/train/00000.parquet"]


@pytest.mark.parametrize("status", [409, 412])
def test_a_refused_part_of_a_pull_request_fails_the_run(run_demo, packed, api, faults, status):
    faults(route="commit", status=503, times=1)
    faults(route="commit", status=status, times=1)
    with pytest.raises(hub_repository.PublishError):
        run_demo("user/packed", shards={"seed": 9}, output={"repo": "user/packed", "max_operations_per_commit": 2})
    assert api.dataset_info("user/packed").sha == packed["commit"]


@pytest.mark.parametrize("route", ["whoami", "create_discussion", "merge_pull_request", "change_status"])
def test_a_busy_moment_anywhere_is_waited_for(run_demo, api, faults, route):
    repo = f"user/busy-{route.replace('_', '-')}"
    busy = faults(route=route, status=503, times=2)
    report = run_demo(repo, output={"repo": repo, "max_operations_per_commit": 4})
    assert busy.hits == 2
    assert report["commit"] == api.dataset_info(repo).sha


def test_a_full_hub_fails_the_run_and_changes_nothing(run_demo, packed, api, faults):
    full = faults(route="put_xorb", status=507, times=None)
    with pytest.raises(
        hub_repository.PublishError, match=r"upload of data/train/0000\d\.parquet to user/packed failed"
    ):
        run_demo("user/packed", shards={"seed": 7}, output={"repo": "user/packed", "retry_seconds": 1})
    assert full.hits
    assert api.dataset_info("user/packed").sha == packed["commit"]


def test_a_hub_that_stays_busy_fails_the_run_and_changes_nothing(run_demo, packed, api, faults):
    busy = faults(route="commit", status=503, times=None)
    with pytest.raises(hub_repository.PublishError, match="commit to user/packed failed"):
        run_demo("user/packed", shards={"seed": 8}, output={"repo": "user/packed", "retry_seconds": 2})
    assert busy.hits > 1
    assert api.dataset_info("user/packed").sha == packed["commit"]


@pytest.mark.parametrize("max_operations", [100, 3])
def test_somebody_elses_commit_in_between_is_not_overwritten(run_demo, api, monkeypatch, max_operations):
    repo = f"user/contested-{max_operations}"
    collect = pack.collect

    def collect_while_another_commits(*args, **kwargs):
        rows = collect(*args, **kwargs)
        operation = CommitOperationAdd("notes.txt", b"mine")
        api.create_commit(repo, [operation], commit_message="notes", repo_type="dataset")
        return rows

    monkeypatch.setattr(pack, "collect", collect_while_another_commits)
    with pytest.raises(hub_repository.PublishError, match="somebody else committed"):
        run_demo(repo, output={"repo": repo, "max_operations_per_commit": max_operations})
    assert set(files_of(api, repo)) == {".gitattributes", "notes.txt"}


def test_a_source_that_changes_while_it_is_read_is_read_as_it_was(spark, api, session_hub, monkeypatch):
    """Its revision is pinned at the start: rows that are added or taken away in between are another run's."""
    upload("user/moving", {"data/train-0.parquet": vqa_row_file(0, 8), "data/train-1.parquet": vqa_row_file(8, 16)})
    tree = demo_tree("user/from-moving", sources=[{"repo": "user/moving"}])
    first, collect = api.dataset_info("user/moving").sha, pack.collect

    def collect_while_the_source_changes(*args, **kwargs):
        replaced = [
            CommitOperationDelete("data/train-1.parquet"),
            CommitOperationAdd("data/train-0.parquet", vqa_row_file(100, 103)),
        ]
        api.create_commit("user/moving", replaced, commit_message="change", repo_type="dataset")
        return collect(*args, **kwargs)

    monkeypatch.setattr(pack, "collect", collect_while_the_source_changes)
    report = pack.run(config.parse(tree), spark)
    assert [(s["commit"], s["num_rows"], s["num_packed"]) for s in report["sources"]] == [(first, 16, 16)]
    monkeypatch.undo()
    again = pack.run(config.parse(tree), spark)
    assert [(s["num_rows"], s["num_packed"]) for s in again["sources"]] == [(3, 3)]
    assert again["commit"] != report["commit"]
