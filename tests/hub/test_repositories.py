"""Repositories, references, listings and commits, through huggingface_hub in this process (LFS)."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, hf_hub_download
from huggingface_hub.errors import (
    BadRequestError,
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_session

from jobs.local_hub import LocalHub

from .conftest import REPO, request

DATASET = {"repo_id": REPO, "repo_type": "dataset"}


def add(api, path: str, content: bytes = b"x", **options):
    return api.upload_file(path_or_fileobj=content, path_in_repo=path, **DATASET, **options)


def read(hub, path: str, cache_dir, revision: str = "main") -> bytes:
    options = {"endpoint": hub.url, "token": hub.token, "cache_dir": cache_dir}
    with open(hf_hub_download(REPO, path, repo_type="dataset", revision=revision, **options), "rb") as file:
        return file.read()


def status(error) -> int:
    return error.value.response.status_code


def test_create_list_and_delete(hub, api):
    with pytest.raises(HfHubHTTPError) as error:
        api.create_repo(REPO, repo_type="dataset")
    assert status(error) == 409
    assert api.create_repo(REPO, repo_type="dataset", exist_ok=True).repo_id == REPO
    assert api.create_repo("user/data").repo_type == "model"  # kinds are apart
    api.delete_repo(**DATASET)
    with pytest.raises(RepositoryNotFoundError):
        api.dataset_info(REPO)
    assert api.model_info("user/data").id == "user/data"
    api.create_repo(REPO, repo_type="dataset")
    assert api.list_repo_files(**DATASET) == [".gitattributes"]


@pytest.mark.parametrize("name", ["user/a--b", "user/..", "user/-a", "user/a/b"])
def test_names_that_could_not_be_told_apart_are_refused(hub, api, name):
    organization, _, rest = name.partition("/")
    body = {"type": "dataset", "name": rest, "organization": organization}
    headers = {"Authorization": f"Bearer {hub.token}"}
    assert get_session().post(f"{hub.url}/api/repos/create", json=body, headers=headers).status_code == 400


def test_regular_files_are_stored_by_git_blob_id(hub, api, tmp_path):
    add(api, "notes/hello.txt", b"hello world\n")
    (info,) = api.get_paths_info(paths="notes/hello.txt", **DATASET)
    assert info.blob_id == "3b18e512dba79e4c8300dd08aeb37f8e728b8dad"  # git hash-object
    assert info.lfs is None
    assert read(hub, "notes/hello.txt", tmp_path / "cache") == b"hello world\n"
    add(api, "empty.parquet", b"")
    assert read(hub, "empty.parquet", tmp_path / "cache") == b""


def test_lfs_files_have_the_pointer_git_would_hold(hub, api, tmp_path):
    add(api, "a.bin", b"hello world\n")
    (info,) = api.get_paths_info(paths="a.bin", **DATASET)
    assert info.lfs.sha256 == "a948904f2f0f479b8f8197694b30184b0d2ed1c1cd2a1ec0fb85d299a192a447"
    assert (info.size, info.lfs.pointer_size) == (12, 127)
    assert read(hub, "a.bin", tmp_path / "cache") == b"hello world\n"
    # The same content is not sent again.
    hub.requests.clear()
    add(api, "b.bin", b"hello world\n")
    assert [r.route for r in hub.requests if r.method == "PUT"] == []


def test_branches_and_tags(hub, api, tmp_path):
    first = add(api, "a.txt", b"1").oid
    api.create_branch(**DATASET, branch="dev/x")
    api.create_tag(**DATASET, tag="v1.0", revision="dev/x")
    add(api, "a.txt", b"2", revision="dev/x")
    assert [read(hub, "a.txt", tmp_path / "cache", r) for r in ("main", "dev/x", "v1.0", first)] == [
        b"1",
        b"2",
        b"1",
        b"1",
    ]
    refs = api.list_repo_refs(**DATASET)
    assert {b.name for b in refs.branches} == {"main", "dev/x"}
    assert [(t.name, t.target_commit) for t in refs.tags] == [("v1.0", first)]
    with pytest.raises(HfHubHTTPError) as error:
        api.create_branch(**DATASET, branch="dev/x")
    assert status(error) == 409
    api.create_branch(**DATASET, branch="dev/x", exist_ok=True)
    with pytest.raises(RevisionNotFoundError):
        add(api, "a.txt", b"3", revision="v1.0")  # a tag takes no commits
    api.delete_branch(**DATASET, branch="dev/x")
    api.delete_tag(**DATASET, tag="v1.0")
    with pytest.raises(RevisionNotFoundError):
        api.list_repo_files(**DATASET, revision="dev/x")
    with pytest.raises(HfHubHTTPError) as error:
        api.delete_branch(**DATASET, branch="main")
    assert status(error) == 403


def test_a_stale_parent_is_refused_and_changes_nothing(hub, api):
    first = add(api, "a.txt", b"1").oid
    second = add(api, "a.txt", b"2", parent_commit=first).oid
    with pytest.raises(HfHubHTTPError) as error:
        add(api, "b.txt", b"3", parent_commit=first)
    assert status(error) == 412
    assert api.dataset_info(REPO).sha == second
    assert "b.txt" not in api.list_repo_files(**DATASET)


def test_commits_at_the_same_time_all_count(hub, api):
    with ThreadPoolExecutor(8) as pool:
        oids = set(pool.map(lambda i: add(api, f"{i}.txt", b"%d" % i).oid, range(16)))
    history = [c.commit_id for c in api.list_repo_commits(**DATASET)]
    assert set(history[:-1]) == oids
    assert len(oids) == len(history) - 1 == 16
    assert len(api.list_repo_files(**DATASET)) == 17


def test_a_commit_is_all_or_nothing(hub, api):
    add(api, "data/a.txt")
    head = api.dataset_info(REPO).sha
    operations = [CommitOperationAdd("data/b.txt", b"y"), CommitOperationDelete("data/missing.txt")]
    with pytest.raises(EntryNotFoundError):
        api.create_commit(operations=operations, commit_message="m", **DATASET)
    assert api.dataset_info(REPO).sha == head
    with pytest.raises(BadRequestError, match="file and a folder"):
        add(api, "data/a.txt/c.txt")
    assert api.list_repo_files(**DATASET) == [".gitattributes", "data/a.txt"]


def test_a_folder_can_be_replaced_in_one_commit(hub, api):
    for name in ("data/train/0.txt", "data/train/1.txt", "data/train_extra/0.txt"):
        add(api, name)
    operations = [CommitOperationDelete("data/train/"), CommitOperationAdd("data/train/0.txt", b"new")]
    api.create_commit(operations=operations, commit_message="m", **DATASET)
    assert api.list_repo_files(**DATASET) == [".gitattributes", "data/train/0.txt", "data/train_extra/0.txt"]
    with pytest.raises(EntryNotFoundError):
        api.delete_folder("data/val", **DATASET)


def test_a_folder_is_not_its_neighbours(hub, api):
    """Names that sort around "data/": "-" and "." come before the slash, "0" and "_" after it."""
    for name in ("data-1/x", "data.txt", "data/x", "data/sub/x", "data0", "data_extra/x"):
        add(api, name)
    assert [f.path for f in api.list_repo_tree(path_in_repo="data", **DATASET)] == ["data/sub", "data/x"]
    tree = list(api.list_repo_tree(path_in_repo="data", recursive=True, **DATASET))
    assert [f.path for f in tree] == ["data/sub", "data/sub/x", "data/x"]
    (before,) = api.get_paths_info(paths="data", **DATASET)
    add(api, "data_extra/y")
    (same,) = api.get_paths_info(paths="data", **DATASET)
    add(api, "data/y")
    (after,) = api.get_paths_info(paths="data", **DATASET)
    assert before.tree_id == same.tree_id != after.tree_id


def test_copies_need_no_upload(hub, api):
    add(api, "a.bin", b"big")
    hub.requests.clear()
    operations = [CommitOperationCopy("a.bin", "b.bin")]
    api.create_commit(operations=operations, commit_message="m", **DATASET)
    a, b = api.get_paths_info(paths=["a.bin", "b.bin"], **DATASET)
    assert (a.lfs.sha256, a.size) == (b.lfs.sha256, b.size)
    assert [r for r in hub.requests if r.method == "PUT"] == []


def test_named_errors(hub, api, tmp_path):
    with pytest.raises(RepositoryNotFoundError):
        api.list_repo_files("user/none", repo_type="dataset")
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info(REPO, revision="none")
    with pytest.raises(EntryNotFoundError):
        list(api.list_repo_tree(path_in_repo="none", **DATASET))
    for options in ({"filename": "none.txt"}, {"filename": "none.txt", "revision": "main"}):
        with pytest.raises(EntryNotFoundError):
            hf_hub_download(endpoint=hub.url, token=hub.token, cache_dir=tmp_path, **DATASET, **options)
    assert api.get_paths_info(paths=["none.txt", "a/b"], **DATASET) == []


def test_listings_are_paged_and_hold_one_commit(tmp_path, make_api):
    with LocalHub(tmp_path / "hub", page_size=3) as hub:
        api = make_api(hub)
        api.create_repo(REPO, repo_type="dataset")
        paths = [f"data/{i:02d}.txt" for i in range(10)]
        api.create_commit(
            operations=[CommitOperationAdd(p, p.encode()) for p in paths], commit_message="ten", **DATASET
        )
        hub.requests.clear()
        listing = iter(api.list_repo_tree(path_in_repo="data", **DATASET))
        seen = [next(listing).path]
        api.create_commit(operations=[CommitOperationDelete(p) for p in paths[5:]], commit_message="five", **DATASET)
        seen += [file.path for file in listing]
        assert seen == paths  # the pages after the deletion are still those of the first page's commit
        assert len([r for r in hub.requests if r.route == "list_tree"]) == 4
        assert [f.path for f in api.list_repo_tree(path_in_repo="data", **DATASET)] == paths[:5]
        assert len(api.list_repo_commits(**DATASET)) == 3  # a page
        for i in range(4):
            add(api, f"more/{i}.txt")
        assert len(api.list_repo_commits(**DATASET)) == 7


def test_an_expanded_listing_names_the_commit_that_last_changed_each_file(hub, api):
    first = add(api, "data/a.txt", b"1").oid
    second = add(api, "data/b.txt", b"1").oid
    third = add(api, "other.txt", b"1").oid
    tree = {f.path: f.last_commit.oid for f in api.list_repo_tree(**DATASET, recursive=True, expand=True)}
    assert {k: v for k, v in tree.items() if k != ".gitattributes"} == {
        "data": second,
        "data/a.txt": first,
        "data/b.txt": second,
        "other.txt": third,
    }


def test_card_metadata_is_validated_and_shown(hub, api):
    with pytest.raises(ValueError, match="Invalid metadata"):
        add(api, "README.md", b"---\na: [\n---\n")
    add(api, "README.md", b"---\nconfigs:\n- config_name: default\n  data_files: data/*\n---\nText\n")
    assert api.dataset_info(REPO).card_data.configs == [{"config_name": "default", "data_files": "data/*"}]


def test_info_lists_files_with_sizes(hub, api):
    add(api, "a.bin", b"abc")
    siblings = {s.rfilename: s for s in api.dataset_info(REPO, files_metadata=True).siblings}
    assert set(siblings) == {".gitattributes", "a.bin"}
    assert siblings["a.bin"].size == siblings["a.bin"].lfs.size == 3


def test_a_page_for_people(hub, api):
    """Files with links that lead to them, and the card's text; a link to an HTML file is a page in a browser."""
    add(api, "README.md", b"---\nlicense: mit\n---\n<b>Charts</b> & pages\n")
    add(api, "some folder/report.html", b"<p>it</p>")
    reply = request(hub, "GET", f"/datasets/{REPO}")
    assert (reply.status, reply.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    text = reply.body.decode()
    assert "&lt;b&gt;Charts&lt;/b&gt; &amp; pages" in text
    assert not re.search(r"(src|href)=.?(?:http|//)", text)
    links = re.findall('href="([^"]+)"', text)
    assert f"/datasets/{REPO}/resolve/main/README.md" in links
    (link,) = (link for link in links if link.endswith("report.html"))
    shown = request(hub, "GET", link, Accept="text/html,*/*")
    assert (shown.body, shown.headers["Content-Type"]) == (b"<p>it</p>", "text/html; charset=utf-8")
    assert shown.headers["Content-Security-Policy"] == "sandbox"
    for of_client in (request(hub, "GET", link), request(hub, "GET", links[0], Accept="text/html")):
        assert of_client.headers["Content-Type"] == "application/octet-stream"
    assert request(hub, "GET", "/datasets/user/nothing").status == 401
