"""The demo as it is published, once for all tests that read it; copy what is to be changed."""

from pathlib import Path

import pytest

from tests.unit.published import publish_demo


@pytest.fixture(scope="session")
def published(tmp_path_factory) -> Path:
    """The demo packed into train and validation."""
    folder = tmp_path_factory.mktemp("published")
    publish_demo(folder, "shards.validation_fraction=0.1")
    return folder
