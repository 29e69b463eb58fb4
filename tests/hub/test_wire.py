"""HTTP itself: bodies, ranges, kept-alive connections, and requests that make no sense."""

import hashlib
import http.client
import itertools
import json
import os
import socket
import tracemalloc

import pytest

from jobs.local_hub.store.commits import lfs_entry

from .conftest import REPO, request

FILE = f"/datasets/{REPO}/resolve/main/a.bin"


@pytest.fixture
def content(hub, api) -> bytes:
    data = bytes(range(256)) * 2000  # above what is sent together with the headers
    api.upload_file(path_or_fileobj=data, path_in_repo="a.bin", repo_id=REPO, repo_type="dataset")
    return data


@pytest.mark.parametrize(
    ("asked", "start", "end", "status"),
    [
        (None, 0, 512_000, 200),
        ("bytes=0-0", 0, 1, 206),
        ("bytes=100-199", 100, 200, 206),
        ("bytes=511990-", 511_990, 512_000, 206),
        ("bytes=511990-999999999", 511_990, 512_000, 206),
        ("bytes=-10", 511_990, 512_000, 206),
        ("bytes=-999999999", 0, 512_000, 206),
        ("bytes=0-1,5-6", 0, 512_000, 200),
        ("lines=0-1", 0, 512_000, 200),
    ],
)
def test_ranges(hub, content, asked, start, end, status):
    reply = request(hub, "GET", FILE, **({"Range": asked} if asked else {}))
    assert (reply.status, reply.body) == (status, content[start:end])
    if status == 206:
        assert reply.headers["Content-Range"] == f"bytes {start}-{end - 1}/512000"


@pytest.mark.parametrize("asked", ["bytes=512000-", "bytes=5-4", "bytes=-0"])
def test_ranges_outside_the_file_are_refused(hub, content, asked):
    assert request(hub, "GET", FILE, Range=asked).status == 416


def test_headers_identify_content_and_commit(hub, api, content):
    reply = request(hub, "HEAD", FILE)
    sha256 = hashlib.sha256(content).hexdigest()
    assert reply.headers["ETag"] == reply.headers["X-Linked-Etag"] == f'"{sha256}"'
    assert reply.headers["X-Linked-Size"] == reply.headers["Content-Length"] == "512000"
    assert reply.headers["X-Repo-Commit"] == api.dataset_info(REPO).sha
    assert reply.body == b""


def test_a_connection_is_kept_through_errors_and_unread_bodies(hub, content):
    connection = http.client.HTTPConnection(hub.url.removeprefix("http://"), timeout=20)
    local = set()
    for method, path, body, status in [
        ("GET", FILE, None, 200),
        ("POST", "/nowhere", b"x" * 100_000, 404),
        ("PUT", f"/lfs/{'0' * 64}/wrong", b"x" * 3_000_000, 403),
        ("HEAD", FILE, None, 200),
        ("GET", "/api/datasets/user/none", None, 401),
        ("GET", FILE, None, 200),
    ]:
        connection.request(method, path, body)
        reply = connection.getresponse()
        assert reply.status == status
        reply.read()
        local.add(connection.sock.getsockname())
    connection.close()
    assert len(local) == 1


def test_sending_goes_on_where_the_system_stopped(hub, content, monkeypatch):
    """sendfile and sendmsg may take less than they are given."""
    sendfile, sendmsg = os.sendfile, socket.socket.sendmsg
    monkeypatch.setattr(os, "sendfile", lambda out, file, at, size: sendfile(out, file, at, min(size, 70_001)))

    def send_some(self, views):
        return sendmsg(self, [views[0][:1001]])

    monkeypatch.setattr(socket.socket, "sendmsg", send_some)
    assert request(hub, "GET", FILE).body == content
    assert request(hub, "GET", FILE, Range="bytes=5-9004").body == content[5:9005]


def test_chunked_bodies_are_read(hub):
    data = b"0123456789" * 1000
    oid = hashlib.sha256(data).hexdigest()
    path = f"/lfs/{oid}/{hub.sign('lfs', oid)}"
    assert request(hub, "PUT", path, iter([data[:7], data[7:5000], data[5000:]])).status == 200
    assert hub.blobs.path(oid).read_bytes() == data
    assert [r.bytes_in for r in hub.requests] == [10_000]


def test_a_body_with_another_hash_is_refused(hub, api):
    """It leaves nothing, and a commit cannot name it."""
    oid = hashlib.sha256(b"what was announced").hexdigest()
    reply = request(hub, "PUT", f"/lfs/{oid}/{hub.sign('lfs', oid)}", b"what came")
    assert reply.status == 400
    assert hub.lfs_size(oid) is None
    assert list(hub.disk.tmp.iterdir()) == []
    line = {"key": "lfsFile", "value": {"path": "a.bin", "oid": oid}}
    reply = request(hub, "POST", f"/api/datasets/{REPO}/commit/main", json.dumps(line), token=hub.token)
    assert (reply.status, "never uploaded" in reply.headers["X-Error-Message"]) == (400, True)
    assert api.list_repo_files(REPO, repo_type="dataset") == [".gitattributes"]


def test_large_bodies_are_streamed_both_ways(hub):
    """16 MiB go in and come out; the Hub and the client of this process hold a few pieces of 1 MiB."""
    piece = bytes(1 << 20)
    oid = hashlib.sha256(piece * 16).hexdigest()
    repo = hub.repos.create("datasets", REPO, False, {"a.bin": lfs_entry(oid, 16 << 20)})
    tracemalloc.start()
    try:
        path = f"/lfs/{oid}/{hub.sign('lfs', oid)}"
        assert request(hub, "PUT", path, itertools.repeat(piece, 16)).status == 200
        connection = http.client.HTTPConnection(hub.url.removeprefix("http://"), timeout=20)
        connection.request("GET", f"/datasets/{repo.id}/resolve/main/a.bin")
        reply, size = connection.getresponse(), 0
        while part := reply.read(1 << 16):
            size += len(part)
        connection.close()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == 16 << 20
    assert peak < 6 << 20


def test_an_lfs_file_must_have_the_size_it_claims(hub, api):
    oid = hashlib.sha256(b"abc").hexdigest()
    hub.blobs.put_lfs(oid, [b"abc"])
    for size, status in ((4, 400), (3, 200)):
        line = {"key": "lfsFile", "value": {"path": "a.bin", "oid": oid, "size": size}}
        reply = request(hub, "POST", f"/api/datasets/{REPO}/commit/main", json.dumps(line), token=hub.token)
        assert reply.status == status


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"/api/datasets/{REPO}/commit/main", b"{not json"),
        (f"/api/datasets/{REPO}/commit/main", b'{"key": "file", "value": {"path": "../x", "content": ""}}'),
        (f"/api/datasets/{REPO}/commit/main", b'{"key": "file", "value": {"path": "/x", "content": ""}}'),
        (f"/api/datasets/{REPO}/commit/main", b'{"key": "file", "value": {"path": ".git/x", "content": ""}}'),
        (f"/api/datasets/{REPO}/commit/main", b'{"key": "file", "value": {"path": "x", "content": "*"}}'),
        (f"/api/datasets/{REPO}/commit/main", b'{"key": "rename", "value": {}}'),
        (f"/api/datasets/{REPO}/preupload/main", b"[]"),
        (f"/api/datasets/{REPO}/tag/main", b'{"tag": "a..b"}'),
        ("/api/repos/create", b"\xff"),
    ],
)
def test_requests_that_make_no_sense_are_refused(hub, api, path, body):
    head = api.dataset_info(REPO).sha
    assert request(hub, "POST", path, body, token=hub.token).status == 400
    assert api.dataset_info(REPO).sha == head


def test_unknown_routes_and_other_methods_are_not_found(hub, api):
    assert request(hub, "GET", "/").status == 404
    assert request(hub, "DELETE", FILE, token=hub.token).status == 404
    assert request(hub, "GET", f"/api/datasets/{REPO}/tree/main?cursor=nonsense").status in (400, 404)
