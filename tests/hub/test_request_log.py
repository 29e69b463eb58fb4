"""What the Hub writes down of each request."""

import json
import threading

from jobs.local_hub import LocalHub, RequestRecord

from .conftest import REPO, request

FILE = f"/datasets/{REPO}/resolve/main/a.bin"


def test_a_record_says_what_was_asked_and_answered(hub, api):
    api.upload_file(path_or_fileobj=b"0123456789", path_in_repo="a.bin", repo_id=REPO, repo_type="dataset")
    hub.requests.clear()
    assert request(hub, "GET", FILE, Range="bytes=2-5").body == b"2345"
    assert request(hub, "HEAD", FILE, **{"User-Agent": "me"}).body == b""
    assert request(hub, "POST", "/nowhere", b"abc").status == 404
    methods = {record.method: record for record in hub.requests}  # written down by a thread each, in any order
    get, head, none = methods["GET"], methods["HEAD"], methods["POST"]
    assert get == RequestRecord("GET", "resolve", 206, 0, 4, FILE, get.seconds, "bytes=2-5", "")
    assert 0 < get.seconds < 10
    assert head == RequestRecord("HEAD", "resolve", 200, 0, 0, FILE, head.seconds, None, "me")
    assert (none.route, none.status, none.bytes_in) == ("none", 404, 3)


def test_records_go_to_a_file_too(tmp_path, make_api):
    log = tmp_path / "requests.jsonl"
    for _ in range(2):
        with LocalHub(tmp_path / "hub", log_path=log) as hub:
            make_api(hub).whoami()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(r["route"], r["status"]) for r in lines] == [("whoami", 200)] * 2  # a restart appends


def test_looking_waits_for_requests_that_are_being_answered(hub):
    record = RequestRecord("GET", "resolve", 200, 0, 0, "/", 0.0, None, "")
    hub.requests.begin()
    timer = threading.Timer(0.05, hub.requests.end, [record])
    timer.start()
    assert hub.requests.records() == [record]
    timer.join()


def test_concurrent_clients_are_all_counted(hub, api):
    content = bytes(1_000_000)
    api.upload_file(path_or_fileobj=content, path_in_repo="a.bin", repo_id=REPO, repo_type="dataset")
    hub.requests.clear()
    wrong = []

    def read(start: int) -> None:
        for i in range(5):
            first = 1000 * (10 * start + i)
            if request(hub, "GET", FILE, Range=f"bytes={first}-{first + 99_999}").body != content[:100_000]:
                wrong.append(first)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(hub.requests) == 60
    assert {(r.status, r.bytes_out) for r in hub.requests} == {(206, 100_000)}
