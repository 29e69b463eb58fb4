"""How much a Python worker holds, as a bound with room: three copies of a shard, what it has loaded, an upload."""

import os

import pytest
from huggingface_hub import HfApi

from tests.bench import etl, etl_source


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [64, 192])
def test_a_worker_holds_its_shard_some_three_times(session_hub, tmp_path, megabytes):
    """In processes of its own, because a worker of this run's session has done other work before."""
    sizes = {"warm": (64, 20_000), f"rss-{megabytes}": (2 * megabytes * etl.MB // 190_000, 190_000)}
    for name, (num_rows, image_bytes) in sizes.items():
        etl_source.write(tmp_path / name, num_rows, image_bytes, 4)
        HfApi().create_repo(f"memory/{name}", repo_type="dataset", exist_ok=True)
        HfApi().upload_folder(repo_id=f"memory/{name}", repo_type="dataset", folder_path=tmp_path / name)
    out = f"memory/packed-{megabytes}"
    options = {"source": f"memory/rss-{megabytes}", "out": out, "num_shards": 2, "warm": "memory/warm"}
    found = etl.measure(dict(os.environ), "job", options)
    assert found["num_files"] == 2
    assert found["num_samples"] > 0.99 * sizes[f"rss-{megabytes}"][0]
    assert found["num_bytes"] / 2 < found["worker_bytes"] <= 3.5 * found["num_bytes"] / 2 + 500 * etl.MB
