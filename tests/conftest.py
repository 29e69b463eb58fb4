"""One embedded Hub for the whole run, in the environment before anything imports huggingface_hub or starts a JVM."""

import os
import shutil
import tempfile

import pytest

from jobs.local_hub import LocalHub

# At import, because pytest imports the conftest files below this one, and with them huggingface_hub, before any hook.
_HUB = LocalHub(tempfile.mkdtemp(prefix="packing-test-hub-")).start()
os.environ.update(_HUB.environment())


def pytest_unconfigure(config):
    _HUB.stop()
    shutil.rmtree(_HUB.root)


@pytest.fixture(scope="session")
def session_hub() -> LocalHub:
    """The Hub that HF_ENDPOINT names."""
    return _HUB
