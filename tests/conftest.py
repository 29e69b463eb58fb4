"""One embedded Hub for the whole run, in the environment before anything imports huggingface_hub or starts a JVM."""

import os
import secrets
import shutil
import tempfile

import pytest

from jobs.local_hub import LocalHub

# At import, because pytest imports the conftest files below this one, and with them huggingface_hub, before any hook.
# Its token is in no file of ours, the default one in every archive: where the token is found, a run has left it.
_HUB = LocalHub(tempfile.mkdtemp(prefix="packing-test-hub-"), token=f"hf_{secrets.token_hex(16)}").start()
os.environ.update(_HUB.environment())
# hf_xet's own retries take minutes against a Hub that is meant to fail; the job's retries are what the tests look at.
os.environ.update({"HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "1", "HF_XET_CLIENT_RETRY_BASE_DELAY": "50ms"})
# Two test processes on two cores: with two threads each, torch's would wait for one another, and they wait by spinning.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_unconfigure(config):
    _HUB.stop()
    shutil.rmtree(_HUB.root)


@pytest.fixture(scope="session")
def session_hub() -> LocalHub:
    """The Hub that HF_ENDPOINT names."""
    return _HUB
