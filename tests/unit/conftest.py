"""The demo as samples, as a packed shard and as it is published, each once; copy what is to be changed."""

from pathlib import Path

import fsspec
import pytest
from transformers import AutoProcessor

from jobs.output.folder import Folder
from packing_udfs.encode.encoder import Encoder
from packing_udfs.shard.pack_shard import PackedShard, pack_shard
from tests.unit.demo_samples import DEMO, as_spark_gives, demo_rows
from tests.unit.packed_shards import DEMO_SETTINGS
from tests.unit.published_demo import publish_demo


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    return Encoder(AutoProcessor.from_pretrained(DEMO / "processor"))


@pytest.fixture(scope="session")
def rows() -> list[dict]:
    return demo_rows()


@pytest.fixture(scope="session")
def packed(rows, encoder) -> PackedShard:
    return pack_shard(as_spark_gives(rows), encoder, DEMO_SETTINGS)


@pytest.fixture(scope="session")
def published(tmp_path_factory) -> Path:
    """The demo packed into train and validation."""
    folder = tmp_path_factory.mktemp("published")
    publish_demo(folder, "shards.validation_fraction=0.1")
    return folder


@pytest.fixture(params=["disk", "memory"])
def folder(request, tmp_path):
    """A folder on a disk, and one in an object store (fsspec's in memory)."""
    if request.param == "disk":
        yield Folder(str(tmp_path / "packed"))
        return
    name = f"memory://{tmp_path.name}/packed"
    yield Folder(name)
    fs, root = fsspec.url_to_fs(name)
    if fs.exists(root):
        fs.rm(root, recursive=True)
