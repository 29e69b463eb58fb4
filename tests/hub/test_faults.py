"""Faults on order, seen by a plain HTTP client; and what they leave behind."""

import errno
import hashlib
import http.client
import json
import os
import time

import pytest
from huggingface_hub.errors import HfHubHTTPError

from .conftest import REPO, request

DATASET = {"repo_id": REPO, "repo_type": "dataset"}
TREE = f"/api/datasets/{REPO}/tree/main"
FILE = f"/datasets/{REPO}/resolve/main/a.bin"
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def stored(api):
    api.upload_file(path_or_fileobj=CONTENT, path_in_repo="a.bin", **DATASET)


def test_a_status_hits_the_requests_it_names(hub, api):
    fault = hub.inject(route="list_tree", status=429, headers={"Retry-After": "1"}, times=2, skip=1)
    replies = [request(hub, "GET", TREE) for _ in range(4)]
    assert [r.status for r in replies] == [200, 429, 429, 200]
    assert replies[1].headers["Retry-After"] == "1"
    assert request(hub, "GET", f"/api/datasets/{REPO}").status == 200
    assert fault.hits == 2


@pytest.mark.parametrize("filters", [{"route": "resolve"}, {"method": "POST"}, {"path": "paths-info"}])
def test_filters_leave_other_requests_alone(hub, api, filters):
    fault = hub.inject(status=500, times=None, **filters)
    assert request(hub, "GET", TREE).status == 200
    assert fault.hits == 0


def test_a_full_store_refuses_and_keeps_what_it_had(hub, api, make_api, monkeypatch):
    hub.inject(route="lfs_put", status=507, times=None)
    hub.inject(route="commit", status=507)
    head = api.dataset_info(REPO).sha
    with pytest.raises(RuntimeError):
        api.upload_file(path_or_fileobj=b"x", path_in_repo="a.bin", **DATASET)
    with pytest.raises(HfHubHTTPError) as error:
        api.upload_file(path_or_fileobj=b"x", path_in_repo="a.txt", **DATASET)
    assert error.value.response.status_code == 507
    assert api.dataset_info(REPO).sha == head
    hub.faults.clear()

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("jobs.local_hub.store.disk.os.fsync", full)  # a disk that is really full
    with pytest.raises(HfHubHTTPError) as error:
        api.upload_file(path_or_fileobj=b"x", path_in_repo="a.txt", **DATASET)
    assert error.value.response.status_code == 507
    monkeypatch.undo()
    assert api.dataset_info(REPO).sha == head
    assert list(hub.disk.tmp.iterdir()) == []


def test_a_reset_before_the_answer_does_nothing(hub, api):
    hub.inject(route="create_branch", reset="before")
    path = f"/api/datasets/{REPO}/branch/dev"
    with pytest.raises(ConnectionResetError):
        request(hub, "POST", path, "{}", token=hub.token)
    assert request(hub, "POST", path, "{}", token=hub.token).status == 200  # it is not there yet


def test_a_lost_answer_leaves_the_commit(hub, api):
    hub.inject(route="commit", reset="after")
    lines = [
        {"key": "header", "value": {"summary": "lost"}},
        {"key": "file", "value": {"path": "a.txt", "content": ""}},
    ]
    body = "\n".join(json.dumps(line) for line in lines)
    with pytest.raises(ConnectionResetError):
        request(hub, "POST", f"/api/datasets/{REPO}/commit/main", body, token=hub.token)
    assert "a.txt" in api.list_repo_files(**DATASET)
    assert [c.title for c in api.list_repo_commits(**DATASET)] == ["lost", "initial commit"]
    assert [r.status for r in hub.requests if r.route == "commit"] == [0]


@pytest.mark.usefixtures("stored")
def test_an_answer_is_cut_after_some_bytes(hub):
    hub.inject(route="resolve", cut_answer=1000)
    connection = http.client.HTTPConnection(hub.url.removeprefix("http://"), timeout=20)
    connection.request("GET", FILE)
    reply = connection.getresponse()
    assert int(reply.headers["Content-Length"]) == len(CONTENT)
    with pytest.raises(ConnectionResetError):
        reply.read()
    connection.close()
    assert request(hub, "GET", FILE).body == CONTENT
    assert [r.bytes_out for r in hub.requests if r.route == "resolve"] == [1000, len(CONTENT)]


def test_an_upload_that_is_cut_leaves_nothing(hub, api):
    oid = hashlib.sha256(CONTENT).hexdigest()
    address = f"/lfs/{oid}/{hub.sign('lfs', oid)}"
    hub.inject(route="lfs_put", cut_upload=5000)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        request(hub, "PUT", address, CONTENT)
    assert hub.lfs_size(oid) is None
    assert list(hub.disk.tmp.iterdir()) == []
    assert request(hub, "PUT", address, CONTENT).status == 200
    assert hub.lfs_size(oid) == len(CONTENT)


@pytest.mark.usefixtures("stored")
def test_delay_and_drip_change_the_time_and_nothing_else(hub, monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    hub.inject(route="resolve", delay=0.5)
    hub.inject(route="resolve", drip=(4096, 0.25))
    assert [request(hub, "GET", FILE).body == CONTENT for _ in range(3)] == [True] * 3
    assert slept == [0.5, 0, 0.25, 0.25, 0.25]  # 10,240 bytes are three drips; a fault without delay waits 0


def test_a_fault_must_be_one_that_exists(hub):
    with pytest.raises(ValueError, match="reset"):
        hub.inject(reset="sometimes")
