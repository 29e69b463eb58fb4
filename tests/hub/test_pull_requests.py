"""Pull requests: the way to publish many commits at once."""

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError

from jobs.local_hub import LocalHub

from .conftest import REPO

DATASET = {"repo_id": REPO, "repo_type": "dataset"}


def commit(api, files: dict[str, bytes | None], **options):
    operations = [
        CommitOperationDelete(path) if content is None else CommitOperationAdd(path, content)
        for path, content in files.items()
    ]
    return api.create_commit(operations=operations, commit_message="commit", **DATASET, **options)


def contents(hub, revision: str) -> dict[str, bytes]:
    repo = hub.repos.get("datasets", REPO)
    files = repo.commit(revision).files
    return {p: hub.blobs.path(f.oid).read_bytes() for p, f in files.items() if p != ".gitattributes"}


def test_a_pull_request_collects_commits_and_merges_them(hub, api):
    commit(api, {"keep.txt": b"1", "old.txt": b"1", "change.txt": b"1"})
    pull = api.create_pull_request(title="Publish", **DATASET)
    assert (pull.num, pull.status, pull.git_reference) == (1, "draft", "refs/pr/1")
    commit(api, {"new.txt": b"1"}, revision=pull.git_reference)
    head = commit(api, {"old.txt": None, "change.txt": b"2"}, revision=pull.git_reference).oid
    assert "new.txt" not in contents(hub, "main")
    # A change of main that touches other files does not conflict.
    main = commit(api, {"meanwhile.txt": b"1"}).oid
    details = api.get_discussion_details(discussion_num=1, **DATASET)
    assert (details.conflicting_files, details.target_branch) == ([], "refs/heads/main")
    assert [e.type for e in details.events] == ["comment", "commit", "commit"]
    api.change_discussion_status(discussion_num=1, new_status="open", **DATASET)
    api.merge_pull_request(discussion_num=1, **DATASET)
    want = {"keep.txt": b"1", "change.txt": b"2", "new.txt": b"1", "meanwhile.txt": b"1"}
    assert contents(hub, "main") == want
    details = api.get_discussion_details(discussion_num=1, **DATASET)
    assert details.status == "merged"
    merge = hub.repos.get("datasets", REPO).commit("main")
    assert details.merge_commit_oid == merge.oid == api.dataset_info(REPO).sha
    assert merge.parents == [main, head]


@pytest.mark.parametrize(
    ("ours", "theirs", "conflicts"),
    [
        ({"a.txt": b"2"}, {"a.txt": b"3"}, ["a.txt"]),
        ({"a.txt": None}, {"a.txt": b"3"}, ["a.txt"]),
        ({"a.txt": b"3"}, {"a.txt": None}, ["a.txt"]),
        ({"new.txt": b"1"}, {"new.txt": b"2"}, ["new.txt"]),
        ({"a.txt": b"2"}, {"a.txt": b"2"}, []),  # both sides agree
        ({"a.txt": None}, {"b.txt": b"2"}, []),
    ],
)
def test_a_merge_refuses_files_that_both_sides_changed(hub, api, ours, theirs, conflicts):
    commit(api, {"a.txt": b"1", "b.txt": b"1"})
    made = commit(api, theirs, create_pr=True)
    head = commit(api, ours).oid
    details = api.get_discussion_details(discussion_num=made.pr_num, **DATASET)
    assert details.conflicting_files == conflicts
    if not conflicts:
        api.merge_pull_request(discussion_num=made.pr_num, **DATASET)
        assert api.get_discussion_details(discussion_num=made.pr_num, **DATASET).status == "merged"
        return
    with pytest.raises(HfHubHTTPError) as error:
        api.merge_pull_request(discussion_num=made.pr_num, **DATASET)
    assert error.value.response.status_code == 409
    assert api.dataset_info(REPO).sha == head
    assert api.get_discussion_details(discussion_num=made.pr_num, **DATASET).status == "open"


def test_create_pr_opens_one_with_the_commit(hub, api):
    first = commit(api, {"a.txt": b"1"}).oid
    commit(api, {"a.txt": b"2"})
    made = commit(api, {"b.txt": b"1"}, create_pr=True, parent_commit=first)
    assert (made.pr_num, made.pr_revision) == (1, "refs/pr/1")
    assert contents(hub, "refs/pr/1") == {"a.txt": b"1", "b.txt": b"1"}  # it starts from parent_commit
    assert api.get_discussion_details(discussion_num=1, **DATASET).status == "open"
    with pytest.raises(HfHubHTTPError):
        commit(api, {"missing.txt": None}, create_pr=True)
    assert [d.num for d in api.get_repo_discussions(**DATASET)] == [1]  # a refused commit leaves none


def test_stale_parents_on_a_pull_request_are_refused(hub, api):
    made = commit(api, {"a.txt": b"1"}, create_pr=True)
    commit(api, {"b.txt": b"1"}, revision="refs/pr/1", parent_commit=made.oid)
    with pytest.raises(HfHubHTTPError) as error:
        commit(api, {"c.txt": b"1"}, revision="refs/pr/1", parent_commit=made.oid)
    assert error.value.response.status_code == 412


def test_only_an_open_pull_request_merges_and_only_once(hub, api):
    api.create_pull_request(title="Draft", **DATASET)
    num = api.create_discussion(title="Just talk", **DATASET).num

    def merge(num: int) -> int:
        with pytest.raises(HfHubHTTPError) as error:
            api.merge_pull_request(discussion_num=num, **DATASET)
        return error.value.response.status_code

    assert (merge(1), merge(num), merge(99)) == (400, 400, 404)
    api.change_discussion_status(discussion_num=1, new_status="open", **DATASET)
    api.merge_pull_request(discussion_num=1, **DATASET)
    assert merge(1) == 400
    with pytest.raises(HfHubHTTPError):
        commit(api, {"a.txt": b"1"}, revision="refs/pr/1")
    with pytest.raises(HfHubHTTPError):
        api.change_discussion_status(discussion_num=1, new_status="closed", **DATASET)


def test_discussions_are_listed_commented_renamed_and_closed(hub, api):
    api.create_discussion(title="Talk", **DATASET)
    api.create_pull_request(title="Pull", **DATASET)
    assert [d.title for d in api.get_repo_discussions(**DATASET)] == ["Pull", "Talk"]
    assert [d.num for d in api.get_repo_discussions(discussion_type="pull_request", **DATASET)] == [2]
    assert api.comment_discussion(discussion_num=2, comment="fine", **DATASET).content == "fine"
    assert api.rename_discussion(discussion_num=2, new_title="Other", **DATASET).new_title == "Other"
    api.change_discussion_status(discussion_num=2, new_status="closed", comment="done", **DATASET)
    details = api.get_discussion_details(discussion_num=2, **DATASET)
    assert (details.title, details.status) == ("Other", "closed")
    assert [e.type for e in details.events] == ["comment", "comment", "title-change", "comment", "status-change"]
    assert len({e.id for e in details.events}) == 5
    assert [d.num for d in api.get_repo_discussions(discussion_status="closed", **DATASET)] == [2]


def test_pull_requests_outlive_a_restart(tmp_path, make_api):
    with LocalHub(tmp_path / "hub") as hub:
        api = make_api(hub)
        api.create_repo(REPO, repo_type="dataset")
        commit(api, {"a.txt": b"1"}, create_pr=True)
    with LocalHub(tmp_path / "hub") as hub:
        api = make_api(hub)
        refs = api.list_repo_refs(include_pull_requests=True, **DATASET)
        assert [r.ref for r in refs.pull_requests] == ["refs/pr/1"]
        api.merge_pull_request(discussion_num=1, **DATASET)
        assert contents(hub, "main") == {"a.txt": b"1"}
