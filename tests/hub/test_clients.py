"""The real clients against the Hub, over LFS and over Xet."""

import hashlib

import pytest

from jobs.local_hub import LocalHub

from .conftest import REPO, run_python

HUGGINGFACE_HUB = """
import hashlib, json, os
import numpy as np
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download

api, repo = HfApi(), dict(repo_id="user/data", repo_type="dataset")
rng = np.random.default_rng(0)
# Incompressible, constant and float parts: chunks that Xet stores as they are, by LZ4 and byte-grouped.
data = rng.bytes(300_000) + b"a" * 300_000 + np.linspace(0, 1, 75_000, dtype=np.float32).tobytes()
small = rng.bytes(1000)
api.create_repo(**repo)
first = api.upload_file(path_or_fileobj=data, path_in_repo="data/train-0.parquet", **repo)
second = api.create_commit(
    operations=[
        CommitOperationAdd("README.md", b"---\\nlicense: mit\\n---\\n# Data\\n"),
        CommitOperationAdd("data/test-0.parquet", small),
        CommitOperationCopy("data/train-0.parquet", "copy/train-0.parquet"),
    ],
    commit_message="two", **repo,
)
third = api.create_commit(
    operations=[CommitOperationDelete("data/test-0.parquet")], commit_message="three",
    parent_commit=second.oid, **repo,
)

def sha(path):
    return hashlib.sha256(open(path, "rb").read()).hexdigest()

fs, root = HfFileSystem(), "datasets/user/data"
spans = [(0, 10), (299_990, 20), (599_999, 3), (899_000, 1000), (150_000, 600_000), (0, 900_000)]
with fs.open(f"{root}/data/train-0.parquet", block_size=1000) as file:
    ranges = []
    for start, size in spans:
        file.seek(start)
        ranges.append(file.read(size) == data[start : start + size])
tree = {f.path: getattr(f, "size", None) for f in api.list_repo_tree(**repo, recursive=True)}
snapshot = snapshot_download(**repo)
print(json.dumps({
    "sha256": hashlib.sha256(data).hexdigest(),
    "download": sha(hf_hub_download(filename="data/train-0.parquet", **repo)),
    "old": sha(hf_hub_download(filename="data/test-0.parquet", revision=second.oid, **repo))
           == hashlib.sha256(small).hexdigest(),
    "copy": sha(os.path.join(snapshot, "copy/train-0.parquet")),
    "snapshot": sorted(os.path.relpath(os.path.join(d, f), snapshot) for d, _, fs_ in os.walk(snapshot) for f in fs_),
    "ranges": ranges,
    "tree": tree,
    "glob": fs.glob(f"{root}/**/*.parquet"),
    "history": [c.commit_id for c in api.list_repo_commits(**repo)][:3] == [third.oid, second.oid, first.oid],
    "license": api.dataset_info("user/data").card_data.license,
    "xet_hash": api.get_paths_info(paths=["data/train-0.parquet"], **repo)[0].xet_hash is not None,
}))
"""


@pytest.mark.parametrize("xet", [True, False], ids=["xet", "lfs"])
def test_huggingface_hub_reads_back_what_it_wrote(tmp_path, xet):
    with LocalHub(tmp_path / "hub", xet=xet) as hub:
        seen = run_python(hub, HUGGINGFACE_HUB)
        routes = {r.route for r in hub.requests}
        assert [r for r in hub.requests if r.route == "none" or r.status >= 500] == []
    assert seen["download"] == seen["copy"] == seen["sha256"]
    assert seen["old"]
    assert seen["history"]
    assert seen["ranges"] == [True] * 6
    files = [".gitattributes", "README.md", "copy/train-0.parquet", "data/train-0.parquet"]
    assert seen["snapshot"] == files
    assert {path for path, size in seen["tree"].items() if size is not None} == set(files)
    assert {path for path, size in seen["tree"].items() if size is None} == {"copy", "data"}
    assert seen["tree"]["data/train-0.parquet"] == 900_000
    prefix = "datasets/user/data/"
    assert seen["glob"] == [prefix + "copy/train-0.parquet", prefix + "data/train-0.parquet"]
    assert seen["license"] == "mit"
    assert seen["xet_hash"] is xet
    # Each mode took its own way in, and only that.
    assert ("put_xorb" in routes, "lfs_put" in routes) == (xet, not xet)
    assert ("get_xorb" in routes) is xet


DATASETS = """
import io, json, warnings
import pyarrow as pa, pyarrow.parquet as pq
from datasets import load_dataset
from huggingface_hub import CommitOperationAdd, HfApi

api, repo = HfApi(), dict(repo_id="user/data", repo_type="dataset")
api.create_repo(**repo)
operations = []
for i in range(2):
    buffer = io.BytesIO()
    table = pa.table({"id": range(100 * i, 100 * i + 100), "text": [f"row {k}" * 50 for k in range(100)]})
    pq.write_table(table, buffer, row_group_size=20)
    operations.append(CommitOperationAdd(f"data/train-{i:05d}-of-00002.parquet", buffer.getvalue()))
api.create_commit(operations=operations, commit_message="data", **repo)
streamed = load_dataset("user/data", split="train", streaming=True)
whole = load_dataset("user/data", split="train")
print(json.dumps({
    "streamed": [row["id"] for row in streamed], "whole": whole["id"][:],
    "columns": whole.column_names, "same": list(streamed) == list(whole),
}))
"""


@pytest.mark.parametrize("xet", [True, False], ids=["xet", "lfs"])
def test_datasets_loads_and_streams(tmp_path, xet):
    with LocalHub(tmp_path / "hub", xet=xet) as hub:
        seen = run_python(hub, DATASETS)
        ranged = [r for r in hub.requests if r.route == "resolve" and r.range]
        assert [r for r in hub.requests if r.status >= 500] == []
    assert seen["streamed"] == seen["whole"] == list(range(200))
    assert seen["columns"] == ["id", "text"]
    assert seen["same"]
    assert {r.status for r in ranged} == {206}  # streaming reads ranges


UPLOAD = """
import json, sys
import numpy as np
from huggingface_hub import HfApi
rng = np.random.default_rng(0)
data = bytearray(rng.bytes(8 << 20))
for at in EDITS:
    data[at : at + 10] = b"0123456789"
api = HfApi()
api.create_repo("user/data", repo_type="dataset", exist_ok=True)
oid = api.upload_file(path_or_fileobj=bytes(data), path_in_repo="x.bin", repo_id="user/data", repo_type="dataset").oid
print(json.dumps(oid))
"""


@pytest.mark.parametrize("same_cache", [True, False], ids=["warm cache", "cold cache"])
def test_a_changed_file_uploads_only_its_new_chunks(hub, tmp_path, same_cache):
    """8 MiB of noise, then 10 bytes of it changed: chunks have 64 KiB on average and at most 128 KiB."""
    run_python(hub, UPLOAD.replace("EDITS", "[]"))
    assert sum(r.bytes_in for r in hub.requests if r.route == "put_xorb") >= 8 << 20
    hub.requests.clear()
    home = {} if same_cache else {"HF_HOME": str(tmp_path / "other")}
    run_python(hub, UPLOAD.replace("EDITS", "[4000000]"), **home)
    # One chunk, or two when the edit is at a boundary.
    assert 0 < sum(r.bytes_in for r in hub.requests if r.route == "put_xorb") < 300_000
    # Without a memory of its own a client asks the Hub about the first chunk, and finds it.
    asked = [r.status for r in hub.requests if r.route == "find_chunk"]
    assert same_cache or 200 in asked


def test_a_restarted_hub_serves_and_dedups_what_it_held(tmp_path):
    with LocalHub(tmp_path / "hub") as hub:
        run_python(hub, UPLOAD.replace("EDITS", "[]"))
    with LocalHub(tmp_path / "hub", xet=False) as hub:  # a Hub without Xet still reads what came by Xet
        code = """
import hashlib, json
from huggingface_hub import hf_hub_download
data = open(hf_hub_download("user/data", "x.bin", repo_type="dataset"), "rb").read()
print(json.dumps([hashlib.sha256(data).hexdigest(), len(data)]))
"""
        sha256, size = run_python(hub, code)
        repo = hub.repos.get("datasets", REPO)
        assert sha256 == repo.commit("main").files["x.bin"].lfs
        assert size == 8 << 20
    with LocalHub(tmp_path / "hub") as hub:
        run_python(hub, UPLOAD.replace("EDITS", "[100]"), HF_HOME=str(tmp_path / "other"))
        assert sum(r.bytes_in for r in hub.requests if r.route == "put_xorb") > 7 << 20  # the first chunk changed
        hub.requests.clear()
        run_python(hub, UPLOAD.replace("EDITS", "[7000000]"), HF_HOME=str(tmp_path / "third"))
        assert sum(r.bytes_in for r in hub.requests if r.route == "put_xorb") < 300_000


def test_a_wiped_store_refuses_a_client_that_remembers_it(tmp_path):
    """The client's cache names xorbs that are gone; the upload must fail, not store an unreadable file."""
    home = {"HF_HOME": str(tmp_path / "home")}
    with LocalHub(tmp_path / "first") as hub:
        port = int(hub.url.rpartition(":")[2])
        run_python(hub, UPLOAD.replace("EDITS", "[]"), **home)
    with LocalHub(tmp_path / "second", port=port) as hub:
        with pytest.raises(AssertionError, match=r"400|Bad Request|not here"):
            run_python(hub, UPLOAD.replace("EDITS", "[4000000]"), **home)
        assert hub.cas.by_sha256 == {}
        assert list(hub.repos.get("datasets", REPO).commit("main").files) == [".gitattributes"]
        # With a fresh memory the same upload is fine.
        run_python(hub, UPLOAD.replace("EDITS", "[4000000]"), HF_HOME=str(tmp_path / "fresh"))
        (name,) = hub.cas.by_sha256.values()
        digest = hashlib.sha256()
        for piece in hub.cas.read(name, 0, 8 << 20):
            digest.update(piece)
        assert digest.hexdigest() in hub.cas.by_sha256
