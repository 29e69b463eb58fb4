"""Pinning a source while the Hub is busy, away or cut off: it is asked again, and the source is the same."""

from itertools import count

import pytest

from jobs.sources.pin import pin
from jobs.sources.pinned import SourceError
from packing_udfs.config import Source
from tests import drawn_sources

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<:DeprecationWarning", "ignore::ResourceWarning")


_numbers = count()


@pytest.fixture
def source(session_hub) -> Source:
    """A source that nothing remembers: listings are kept by the Hub's clients."""
    return Source(
        repo=drawn_sources.upload(f"user/pinned-again-{next(_numbers)}", drawn_sources.rows(60, 0), num_files=2)
    )


@pytest.fixture(autouse=True)
def no_faults_left(session_hub):
    yield
    session_hub.faults.clear()


def test_every_kind_of_request_is_tried_below(session_hub, source):
    session_hub.requests.clear()
    pin(source, "sources.0")
    assert {record.route for record in session_hub.requests} == set(ROUTES)


ROUTES = ["repo_info", "list_tree", "resolve"]
FAULTS = {"busy": {"status": 429, "headers": {"Retry-After": "1"}}, "away": {"status": 503}, "cut": {"reset": "after"}}


@pytest.mark.parametrize(
    ("route", "fault"), [("repo_info", "busy"), *((route, fault) for route in ROUTES for fault in ("away", "cut"))]
)
def test_a_busy_moment_is_waited_for(session_hub, source, route, fault):
    busy = session_hub.inject(route=route, times=2, **FAULTS[fault])
    found = pin(source, "sources.0", 20)
    assert busy.hits == 2
    assert [file.num_rows for file in found.files] == [30, 30]
    assert found == pin(source, "sources.0")


def test_a_hub_that_stays_busy_is_given_up_and_named(session_hub, source):
    busy = session_hub.inject(status=503, times=None)
    with pytest.raises(SourceError, match=r"sources\.0\.repo: user/pinned-again-\d+ cannot be read"):
        pin(source, "sources.0", 1)
    assert busy.hits > 1
    session_hub.faults.clear()


def test_what_is_wrong_is_said_at_once(session_hub, source, monkeypatch):
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: pytest.fail("it waits"))
    with pytest.raises(SourceError, match="has no revision 'v9'"):
        pin(source.model_copy(update={"revision": "v9"}), "sources.0", 60)
    with pytest.raises(SourceError, match="no dataset user/pinned-nowhere"):
        pin(source.model_copy(update={"repo": "user/pinned-nowhere"}), "sources.0", 60)
