"""How long the Hub is asked again, and what is said meanwhile."""

import logging

import httpx2
import pytest
from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from jobs.output.retries import LOCAL_SECONDS, is_transient, retrying
from jobs.sources.pin import pin
from jobs.sources.pinned import SourceError
from packing_udfs.config import Source
from packing_udfs.storage.hub_errors import is_refused_here, one_line

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """Seconds that it would have slept."""
    slept: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", slept.append)
    return slept


def refused():
    try:
        raise ConnectionRefusedError(111, "Connection refused")
    except ConnectionRefusedError as error:
        raise httpx2.ConnectError(str(error)) from error


@pytest.mark.parametrize("endpoint", [NOWHERE, "http://localhost:9", "http://[::1]:9"])
def test_a_hub_that_does_not_run_here_is_given_up_soon(monkeypatch, pauses, caplog, endpoint):
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    with caplog.at_level(logging.WARNING), pytest.raises(httpx2.ConnectError):
        retrying(300)(refused)
    assert pauses == [0.5, 1, 2, 4, 8]  # the next would be longer than all that is left
    lines = [record.getMessage() for record in caplog.records]
    hint = f"HF_ENDPOINT is {endpoint}, where no Hub runs: start it (`make hub`), or name another; trying again"
    assert lines[0].endswith(f"{hint} for up to {LOCAL_SECONDS} s")
    assert all(line.endswith(hint) for line in lines[1:])


def test_another_that_refuses_is_waited_for(monkeypatch, pauses, caplog):
    """It may be starting, or be behind something that is; the first line says for how long and at which address."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://10.1.2.3:80")
    answers = [refused] * 9 + [lambda: "here"]
    with caplog.at_level(logging.WARNING):
        assert retrying(300)(lambda: answers.pop(0)()) == "here"
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(pauses) == 9
    assert lines[0].endswith("; trying again for up to 300 s; HF_ENDPOINT is http://10.1.2.3:80")
    assert lines[1].endswith("Connection refused; trying again")


@pytest.mark.parametrize(("status", "is_busy"), [(403, False), (503, True)])
def test_what_the_hub_answered_decides_although_a_library_wraps_it(session_hub, tmp_path, status, is_busy):
    """huggingface_hub says of both that the file is not in its cache."""
    HfApi().create_repo("user/refused", repo_type="dataset", exist_ok=True)
    fault = session_hub.inject(route="resolve", status=status, times=None)
    try:
        with pytest.raises(LocalEntryNotFoundError) as caught:
            hf_hub_download("user/refused", "a.json", repo_type="dataset", cache_dir=tmp_path)
    finally:
        session_hub.faults.clear()
    assert fault.hits >= 1
    assert is_transient(caught.value) == is_busy


def test_a_source_on_no_hub(monkeypatch, session_hub, pauses):
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    monkeypatch.setattr(HfApi, "dataset_info", lambda *args, **kwargs: refused())
    with pytest.raises(SourceError) as error:
        pin(Source(repo="user/x"), "sources.0", 300)
    assert str(error.value).count(NOWHERE) == 2  # where it was looked for, and the variable that says so
    assert len(pauses) == 5


def test_a_wrong_token_is_named(session_hub):
    """The Hub's own words for it name no variable, and lead to an encyclopedia."""
    with pytest.raises(HfHubHTTPError) as error:
        HfApi(token="hf_wrong").dataset_info("user/x")
    assert "developer.mozilla.org" in str(error.value)
    text = one_line(error.value)
    assert text.startswith("it refuses the token in HF_TOKEN, or needs one there: Client error '401 Unauthorized' ")
    assert "developer.mozilla.org" not in text
    assert not is_refused_here(error.value)
