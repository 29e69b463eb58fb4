"""Finished shards in a pull request: whenever a run dies, the next one keeps them and ends in the same files."""

import copy
import io
import json
import math
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from jobs.output import commit_pace as module
from jobs.output.commit_pace import Pace
from jobs.output.finished_shard import ShardFile, dump_files, load_files
from jobs.output.hub_draft import HubDraft
from jobs.output.hub_repository import Repository
from jobs.output.interface import MovedError, PublishError, Run

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<:DeprecationWarning")

NUM_SHARDS = 5
RUN = Run(run="1" * 64, shards="2" * 64, num_shards=NUM_SHARDS)
OTHER = Run(run="3" * 64, shards="4" * 64, num_shards=NUM_SHARDS)
INFO = {"contract": 2, "run": RUN.run, "runs": [{"run": RUN.run}], "totals": {}}
FILES = {
    "report.json": b"{}",
    "manifest/train.json": json.dumps(INFO).encode(),
    "manifest/train.parquet": b"PAR1",
}
OLD = [f"data/train/{i:05d}.parquet" for i in range(8)]  # of a run of eight shards before


def path(shard: int) -> str:
    return f"data/train/{shard:05d}.parquet"


@pytest.fixture(scope="module")
def api(session_hub) -> HfApi:
    return HfApi()


@pytest.fixture(scope="module")
def rows(api, tmp_path_factory) -> list[ShardFile]:
    """A finished shard each, uploaded once: the store keeps a content for all repositories."""
    repository = made(api, "user/draft-uploads")
    folder = tmp_path_factory.mktemp("shards")
    found = []
    for shard in range(NUM_SHARDS):
        file = folder / f"{shard}.parquet"
        file.write_bytes(f"shard {shard}".encode() * 100)
        operation = repository.upload(path(shard), file)
        found.append(ShardFile(shard=shard, path=path(shard), num_bytes=700, operation=operation))
    return found


@pytest.fixture(autouse=True)
def no_faults_left(session_hub):
    yield
    session_hub.faults.clear()


def made(api: HfApi, repo: str, **fields) -> Repository:
    """A repository with what an earlier run left."""
    api.create_repo(repo, repo_type="dataset")
    old = [CommitOperationAdd(path, f"old {path}".encode()) for path in ("notes.txt", "manifest/train.json", *OLD)]
    api.create_commit(repo, old, commit_message="old", repo_type="dataset")
    return Repository(repo, 0, **{"max_operations": 3, "checkpoint_seconds": math.inf} | fields)


def attempt(repository: Repository, rows: list[ShardFile], run: Run = RUN) -> tuple[str, list[int]]:
    """What a job does: its commit, and the shards that it had to pack."""
    draft = repository.draft(repository.read_head(), run)
    if draft.published:
        return draft.published, []
    kept, packed = {row.shard for row in draft.kept}, []
    for row in rows:
        if row.shard not in kept:
            draft.add([copy.deepcopy(row)])
            packed.append(row.shard)
    return draft.publish(FILES, [*OLD, *draft.head.left]), packed


def files_of(api: HfApi, repo: str) -> dict[str, str]:
    info = api.dataset_info(repo, files_metadata=True)
    return {s.rfilename: s.lfs.sha256 if s.lfs else s.blob_id for s in info.siblings}


def requests_of(api: HfApi, repo: str) -> list[tuple[str, str]]:
    """(status, run's part of the title) of each pull request, oldest first."""
    found = sorted(api.get_repo_discussions(repo, repo_type="dataset"), key=lambda one: one.num)
    return [(one.status, one.title.partition("run ")[2][:1]) for one in found]


@pytest.fixture(scope="module")
def expected(api, rows) -> dict[str, str]:
    """The files of a run that nothing stops."""
    repository = made(api, "user/draft-whole")
    commit, packed = attempt(repository, rows)
    assert packed == list(range(NUM_SHARDS))
    assert api.dataset_info(repository.repo).sha == commit
    files = files_of(api, repository.repo)
    assert set(files) == {".gitattributes", "notes.txt", *FILES, *map(path, range(NUM_SHARDS))}
    assert requests_of(api, repository.repo) == [("merged", "1")]
    return files


# The requests of that run that change something: the pull request, three parts, what is left in commits of three
# operations (three deletions; three small files; the sidecars), opening it, merging it.
CHANGES = ["pull request", "part 1", "part 2", "part 3", "rest 1", "rest 2", "done", "open", "merge"]
KEPT = [0, 0, 2, 4, 5, 5, 5, 5, 5]


@pytest.mark.parametrize("step", range(len(CHANGES)), ids=CHANGES)
def test_a_run_that_dies_before_a_step_goes_on_from_what_it_kept(session_hub, api, rows, expected, step):
    repository = made(api, f"user/draft-dies-{step}")
    before = files_of(api, repository.repo)
    dead = session_hub.inject(method="POST", path="/commit/|/discussions", skip=step, times=None, reset="before")
    with pytest.raises(PublishError):
        attempt(repository, rows)
    session_hub.faults.clear()
    assert dead.hits
    assert files_of(api, repository.repo) == before
    commit, packed = attempt(repository, rows)
    assert packed == list(range(KEPT[step], NUM_SHARDS))
    assert files_of(api, repository.repo) == expected
    assert api.dataset_info(repository.repo).sha == commit
    assert requests_of(api, repository.repo) == [("merged", "1")]


def test_no_step_is_missing_above(session_hub, api, rows, expected):
    repository = made(api, "user/draft-steps")
    dead = session_hub.inject(
        method="POST", path="/commit/|/discussions", skip=len(CHANGES), times=None, reset="before"
    )
    attempt(repository, rows)
    assert (dead.skip, dead.hits) == (0, 0)


def test_a_run_that_died_behind_its_merge_has_nothing_left_to_do(session_hub, api, rows, expected):
    repository = made(api, "user/draft-lost-merge")
    session_hub.inject(route="merge_pull_request", reset="after")
    session_hub.inject(route="get_discussion", skip=2, times=None, reset="before")
    with pytest.raises(PublishError):
        attempt(repository, rows)
    session_hub.faults.clear()
    merged = api.dataset_info(repository.repo).sha
    assert files_of(api, repository.repo) == expected
    assert attempt(repository, rows) == (merged, [])
    assert attempt(repository, rows, OTHER)[1] == list(range(NUM_SHARDS))  # another run packs


@pytest.mark.parametrize("route", ["create_discussion", "commit", "change_status", "merge_pull_request"])
def test_a_lost_answer_is_no_second_step(session_hub, api, rows, expected, route):
    repository = made(api, f"user/draft-lost-{route}", checkpoint_seconds=0)
    lost = session_hub.inject(route=route, reset="after")
    patient = Repository(repository.repo, 20, 3, 0)
    assert attempt(patient, rows)[1] == list(range(NUM_SHARDS))
    session_hub.faults.clear()
    assert lost.hits == 1
    assert files_of(api, repository.repo) == expected
    assert requests_of(api, repository.repo) == [("merged", "1")]


def test_a_small_quick_run_is_one_commit(api, rows, expected):
    repository = made(api, "user/draft-small", max_operations=100)
    commit, _ = attempt(repository, rows)
    assert files_of(api, repository.repo) == expected
    titles = [one.title for one in api.list_repo_commits(repository.repo, repo_type="dataset")]
    assert titles == [f"Pack 5 shards (run {'1' * 12})", "old", "initial commit"]
    assert api.dataset_info(repository.repo).sha == commit
    assert requests_of(api, repository.repo) == []


def test_shards_are_stored_when_their_time_has_come(api, rows, expected):
    """A clock that advances by 4 s a shard, checkpoints every 10 s: after the third shard."""
    repository = made(api, "user/draft-slow", max_operations=100, checkpoint_seconds=10)
    now = [0.0]
    draft = HubDraft(repository, repository.read_head(), RUN, Pace(lambda: now[0], pytest.fail))
    for row in rows:
        now[0] += 4
        draft.add([copy.deepcopy(row)])
    draft.publish(FILES, OLD)
    revision = "refs/pr/1"
    titles = [one.title for one in api.list_repo_commits(repository.repo, repo_type="dataset", revision=revision)]
    assert [title.rpartition(", ")[2] for title in titles[:3]] == ["done", "part 2", "part 1"]
    commits = api.list_repo_commits(repository.repo, repo_type="dataset", revision=revision)
    stored = load_files(repository.read(".packing/00001.parquet", commits[2].commit_id))
    assert [row.shard for row in stored] == [0, 1, 2]
    assert files_of(api, repository.repo) == expected


def test_shards_of_several_files_are_kept_whole(session_hub, api, rows):
    """Five files of one shard, in commits of three operations; its sidecar comes with the last."""
    repository = made(api, "user/draft-wide")
    shard = [replace(row, shard=0) for row in rows]
    draft = repository.draft(repository.read_head(), RUN)
    session_hub.inject(route="commit", skip=2, times=None, reset="before")
    with pytest.raises(PublishError):
        draft.add(copy.deepcopy(shard))
    session_hub.faults.clear()
    again = repository.draft(repository.read_head(), RUN)
    assert again.kept == []
    again.add(copy.deepcopy(shard))
    kept = repository.draft(repository.read_head(), RUN).kept
    assert [(row.shard, row.path) for row in kept] == [(0, path(i)) for i in range(NUM_SHARDS)]
    assert again.publish(FILES, OLD) == api.dataset_info(repository.repo).sha


def begin(repository: Repository, rows: list[ShardFile], run: Run = RUN) -> HubDraft:
    """A run that stopped after two shards."""
    draft = repository.draft(repository.read_head(), run)
    for row in rows[:2]:
        draft.add([copy.deepcopy(row)])
    return draft


def test_a_pull_request_for_another_head_is_closed(api, rows, expected):
    repository = made(api, "user/draft-stale")
    begin(repository, rows)
    begin(repository, rows, OTHER)
    api.create_commit(repository.repo, [CommitOperationAdd("new.txt", b"new")], commit_message="n", repo_type="dataset")
    assert attempt(repository, rows)[1] == list(range(NUM_SHARDS))
    assert requests_of(api, repository.repo) == [("closed", "1"), ("closed", "3"), ("merged", "1")]
    comment = api.get_discussion_details(repository.repo, 1, repo_type="dataset").events[-2]
    assert "cannot be merged" in comment.content


@pytest.mark.parametrize("hub_filters", [True, False])
def test_another_runs_and_other_peoples_pull_requests_are_left_alone(api, rows, expected, monkeypatch, hub_filters):
    repository = made(api, f"user/draft-foreign-{hub_filters}".lower())
    begin(repository, rows, OTHER)
    api.create_pull_request(repository.repo, "Fix a typo", repo_type="dataset")
    begin(repository, rows)
    monkeypatch.setattr(HfApi, "whoami", lambda self: {"name": "somebody"})
    if not hub_filters:
        listed = HfApi.get_repo_discussions
        monkeypatch.setattr(
            HfApi,
            "get_repo_discussions",
            lambda self, repo, **options: listed(self, repo, **options | {"author": None}),
        )
    draft = repository.draft(repository.read_head(), RUN)
    assert draft.kept == []
    monkeypatch.undo()
    assert attempt(repository, rows)[1] == [2, 3, 4]
    assert [status for status, _ in requests_of(api, repository.repo)] == ["draft", "draft", "merged"]


@pytest.mark.parametrize("change", ["another file", "a shard's file"])
def test_what_the_run_did_not_make_is_not_published(api, rows, expected, change):
    repository = made(api, f"user/draft-changed-{len(change)}")
    begin(repository, rows)
    if change == "another file":
        operation, title = CommitOperationAdd("virus.py", b"import this"), "Update"
    else:
        operation, title = CommitOperationAdd(path(1), b"PAR1 another"), repository.history("refs/pr/1")[0].title
    api.create_commit(repository.repo, [operation], commit_message=title, repo_type="dataset", revision="refs/pr/1")
    packed = attempt(repository, rows)[1]
    assert packed == (list(range(NUM_SHARDS)) if change == "another file" else [1, 2, 3, 4])
    assert files_of(api, repository.repo) == expected


def merge_by_hand(api: HfApi, repository: Repository, num: int = 1) -> None:
    api.change_discussion_status(repository.repo, num, "open", repo_type="dataset")
    api.merge_pull_request(repository.repo, num, repo_type="dataset")


@pytest.mark.parametrize("max_operations", [3, 100])
@pytest.mark.parametrize("run", [RUN, OTHER], ids=["same", "other"])
def test_a_pull_request_that_was_merged_before_it_was_done_is_no_finished_run(api, rows, expected, max_operations, run):
    """Its two shards are in the place of the old run's, its sidecar is there, and the manifest is the old one."""
    repository = made(api, f"user/draft-half-{max_operations}-{run.run[0]}")
    begin(repository, rows)
    merge_by_hand(api, repository)
    head = repository.read_head()
    assert head.left == (path(0), path(1))
    assert ".packing/00001.parquet" in head.paths
    assert not {path(0), path(1)} & set(head.paths)
    commit, packed = attempt(Repository(repository.repo, 0, max_operations, math.inf), rows, run)
    assert packed == list(range(NUM_SHARDS))
    assert files_of(api, repository.repo) == expected
    assert repository.read_head().left == ()
    if (run, max_operations) == (RUN, 3):  # it was merged now: nothing is left to do
        assert attempt(repository, rows) == (commit, [])


def test_old_manifests_of_the_same_run_do_not_make_a_half_merged_one_whole(api, rows, expected):
    """It was published, somebody committed, and the same job began once more."""
    repository = made(api, "user/draft-half-again")
    attempt(repository, rows)
    api.create_commit(repository.repo, [CommitOperationAdd("new.txt", b"new")], commit_message="n", repo_type="dataset")
    begin(repository, rows)
    merge_by_hand(api, repository, 2)
    assert attempt(repository, rows)[1] == list(range(NUM_SHARDS))
    assert files_of(api, repository.repo).keys() == expected.keys() | {"new.txt"}


def test_sidecars_that_were_merged_are_none_of_the_next_draft(api, rows, expected):
    """The second attempt, of which shards 2 and 3 are done, starts from a head whose sidecar names shards 0 and 1."""
    repository = made(api, "user/draft-half-twice")
    begin(repository, rows)
    merge_by_hand(api, repository)
    draft = repository.draft(repository.read_head(), RUN)
    assert draft.kept == []
    for row in rows[2:4]:
        draft.add([copy.deepcopy(row)])
    assert [row.shard for row in repository.draft(repository.read_head(), RUN).kept] == [2, 3]
    assert attempt(repository, rows)[1] == [0, 1, 4]
    assert files_of(api, repository.repo) == expected


def test_files_that_were_left_go_and_those_that_somebody_replaced_stay(api, rows):
    repository = Repository("user/draft-half-less", 0, 3, math.inf)
    repository.create(private=False)
    draft = begin(repository, rows[3:])
    merge_by_hand(api, repository)
    assert repository.read_head().left == (path(3), path(4))
    draft.repository.commit([CommitOperationAdd(path(4), b"mine")], "mine", repository.read_head().commit)
    head = repository.read_head()
    assert (head.left, path(4) in head.paths) == ((path(3),), True)
    draft = repository.draft(head, RUN)
    draft.add([copy.deepcopy(rows[0])])
    draft.publish(FILES, head.left)
    assert set(files_of(api, repository.repo)) == {".gitattributes", path(0), path(4), *FILES}


def without_a_column(data: bytes) -> bytes:
    out = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(data)).drop_columns(["sums"]), out)
    return out.getvalue()


SPOILT = {"no parquet": lambda data: b"garbage", "cut": lambda data: data[:-9], "column": without_a_column}


@pytest.mark.parametrize("spoil", SPOILT)
def test_shards_of_a_sidecar_that_cannot_be_read_are_packed_again(api, rows, expected, caplog, spoil):
    repository = made(api, f"user/draft-spoilt-{spoil.replace(' ', '-')}")
    draft = begin(repository, rows)
    for row in rows[2:4]:
        draft.add([copy.deepcopy(row)])
    title, name = repository.history("refs/pr/1")[0].title, ".packing/00001.parquet"
    spoilt = CommitOperationAdd(name, SPOILT[spoil](repository.read(name, "refs/pr/1")))
    api.create_commit(repository.repo, [spoilt], commit_message=title, repo_type="dataset", revision="refs/pr/1")
    assert attempt(repository, rows)[1] == [0, 1, 4]
    assert f"{name} cannot be read, its shards are packed again" in caplog.text
    assert files_of(api, repository.repo) == expected
    assert requests_of(api, repository.repo) == [("merged", "1")]


@pytest.mark.parametrize("end", ["closed", "merged"])
def test_a_pull_request_that_came_to_an_end_meanwhile_is_named(api, rows, expected, end):
    repository = made(api, f"user/draft-{end}-meanwhile")
    draft = begin(repository, rows)
    if end == "closed":
        api.change_discussion_status(repository.repo, 1, "closed", repo_type="dataset")
    else:
        merge_by_hand(api, repository)
    draft.add([copy.deepcopy(rows[2])])
    with pytest.raises(PublishError, match=f"pull request 1, .*, was {end} before the run was done; run the job again"):
        draft.add([copy.deepcopy(rows[3])])
    assert attempt(repository, rows)[1] == list(range(NUM_SHARDS))
    assert files_of(api, repository.repo) == expected


def test_a_pull_request_that_was_closed_right_before_its_merge(api, rows, monkeypatch):
    repository = made(api, "user/draft-closed-late")
    merge = HfApi.merge_pull_request

    def close_and_merge(self, repo, num, **where):
        self.change_discussion_status(repo, num, "closed", **where)
        return merge(self, repo, num, **where)

    monkeypatch.setattr(HfApi, "merge_pull_request", close_and_merge)
    with pytest.raises(PublishError, match=r"pull request 1, .*, was closed before the run was done"):
        attempt(repository, rows)


@pytest.mark.parametrize("max_operations", [3, 100])
def test_a_hub_that_is_away_is_not_taken_for_one_that_refuses(session_hub, api, rows, max_operations):
    repository = made(api, f"user/draft-away-{max_operations}", max_operations=max_operations)
    session_hub.inject(route="list_discussions", status=500, times=None)
    with pytest.raises(PublishError, match=f"{repository.repo} cannot be asked for pull requests: .*500"):
        attempt(repository, rows)


@pytest.mark.parametrize("route", ["list_discussions", "create_discussion"])
def test_a_token_that_may_open_no_pull_request(session_hub, api, rows, expected, route):
    """A run of one commit goes on without; a larger one is refused, before its first shard where that is known."""
    small = made(api, f"user/draft-forbidden-{route}", max_operations=100, checkpoint_seconds=0)
    refused = session_hub.inject(route=route, status=403, times=None)
    assert attempt(small, rows)[1] == list(range(NUM_SHARDS))
    assert refused.hits == 1
    assert files_of(api, small.repo) == expected
    large = Repository(small.repo, 0, 3, math.inf)
    with pytest.raises(PublishError, match="has no pull requests for this token"):
        attempt(large, rows, OTHER)
    assert files_of(api, small.repo) == expected


def test_a_main_branch_that_moved_closes_the_pull_request(api, rows):
    repository = made(api, "user/draft-moved")
    draft = begin(repository, rows)
    api.create_commit(repository.repo, [CommitOperationAdd("new.txt", b"new")], commit_message="n", repo_type="dataset")
    with pytest.raises(MovedError, match="somebody else committed"):
        draft.publish(FILES, OLD)
    assert requests_of(api, repository.repo) == [("closed", "1")]


def test_a_main_branch_that_moved_is_found_out_before_the_end(api, rows):
    """Whether or not the run could do without a pull request."""
    repository = made(api, "user/draft-moved-early", max_operations=100, checkpoint_seconds=0)
    draft = repository.draft(repository.read_head(), RUN)
    api.create_commit(repository.repo, [CommitOperationAdd("new.txt", b"new")], commit_message="n", repo_type="dataset")
    with pytest.raises(MovedError):
        draft.add([copy.deepcopy(rows[0])])
    assert requests_of(api, repository.repo) == [("closed", "1")]


def test_the_same_shards_may_be_published_under_another_limit(api, rows, expected):
    """`run` differs and `shards` does not: the quarantine's limit was raised."""
    repository = made(api, "user/draft-limit")
    begin(repository, rows)
    assert attempt(repository, rows, Run(run="5" * 64, shards=RUN.shards, num_shards=NUM_SHARDS))[1] == [2, 3, 4]
    assert requests_of(api, repository.repo) == [("merged", "5")]


def test_no_more_commits_an_hour_than_the_hub_takes(monkeypatch):
    monkeypatch.setattr(module, "COMMITS_AN_HOUR", 3)
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(lambda: now[0], sleep)
    for _ in range(3):
        pace.begin()
        now[0] += 10
    assert pace.seconds_to_wait() == 3570
    for _ in range(4):
        pace.begin()
    assert slept == [3570, 10, 10, 3580]


def test_rows_come_back_without_what_could_run_code(rows):
    operation, sums = copy.deepcopy(rows[0].operation), json.dumps({"num_packs": 2})
    row = ShardFile(shard=7, path="data/x.parquet", num_bytes=3, row_groups=b"abc", sums=sums, sha256="ab")
    assert load_files(dump_files([replace(row, operation=operation)])) == [row]
