"""One Spark session for the whole run, the demo source on the Hub, and jobs on it."""

from pathlib import Path

import pytest
from huggingface_hub import HfApi

from jobs import pack
from jobs.demo.start import DEMO, SOURCE, upload_source
from jobs.shards.session import get_session
from packing_udfs import config, config_file

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Warnings of PySpark's and datasets' own making, none of them about what we call."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def spark():
    session = get_session(HERE / "test.conf")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def source(session_hub) -> str:
    """The demo source on the Hub."""
    upload_source()
    return SOURCE


@pytest.fixture(scope="session")
def api(session_hub) -> HfApi:
    return HfApi()


def demo_tree(repo: str, **sections) -> dict:
    """The demo's configuration as plain values for another output; sections are merged, as in shards={"seed": 1}."""
    tree = config_file.load(DEMO.parent.parent / "conf/jobs/demo.yaml").model_dump(mode="json")
    tree["processor"]["path"] = str(DEMO / "processor")
    tree["output"]["repo"] = repo
    for name, values in sections.items():
        tree[name] = {**tree[name], **values} if isinstance(values, dict) else values
    return tree


@pytest.fixture(scope="session")
def run_demo(spark, source):
    """Run the job on the demo source into a repository of the caller's: run_demo("user/x", pack={"seq_len": 2048})."""

    def run(repo: str, **sections) -> dict:
        return pack.run(config.parse(demo_tree(repo, **sections)), spark)

    return run


@pytest.fixture(scope="session")
def packed(run_demo) -> dict:
    """The report of the demo packed as it is into user/packed."""
    return run_demo("user/packed")


def files_of(api: HfApi, repo: str) -> dict[str, str]:
    """Path → content hash of a dataset repository's files at its head."""
    info = api.dataset_info(repo, files_metadata=True)
    return {s.rfilename: s.lfs.sha256 if s.lfs else s.blob_id for s in info.siblings}
