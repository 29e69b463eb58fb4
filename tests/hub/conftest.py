"""A Hub per test and the two ways to be its client: huggingface_hub here, or a process of its own.

What clients read from the environment they read when they are imported, so whatever depends on it (Xet, `datasets`)
runs in a process with the Hub's environment.
"""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from huggingface_hub import HfApi, constants

from jobs.local_hub import LocalHub

REPO = "user/data"
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """huggingface_hub hands bodies to httpx in a form that httpx deprecates."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:Use 'content=<:DeprecationWarning"))


@dataclass
class Reply:
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes


def request(hub: LocalHub, method: str, path: str, body=None, token=None, **headers: str) -> Reply:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(hub.url).port, timeout=20)
    try:
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        return Reply(reply.status, dict(reply.getheaders()), reply.read())
    finally:
        connection.close()


def run_python(hub: LocalHub, code: str, **environment: str):
    """Run a client in a process with the Hub's environment; what it prints last, as JSON."""
    env = {**os.environ, **hub.environment(), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def hub(tmp_path):
    with LocalHub(tmp_path / "hub", page_size=1000) as hub:
        yield hub


@pytest.fixture
def make_api(monkeypatch) -> Callable[..., HfApi]:
    """HfApi clients of a Hub; large files go by LFS in this process."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    return lambda hub, token=None: HfApi(endpoint=hub.url, token=hub.token if token is None else token)


@pytest.fixture
def api(hub, make_api) -> HfApi:
    """A client of `hub`, where the dataset REPO exists."""
    api = make_api(hub)
    api.create_repo(REPO, repo_type="dataset")
    return api
