"""What an upload sends is counted by what Xet takes for new."""

import numpy as np
import pytest
from huggingface_hub import HfApi
from huggingface_hub.utils import _xet

from jobs.output import uploads
from jobs.output.hub_repository import Repository


@pytest.fixture(scope="module")
def repository(session_hub) -> Repository:
    HfApi().create_repo("user/counted", repo_type="dataset")
    return Repository("user/counted", 10)


def test_new_bytes_count_and_known_ones_do_not(repository, session_hub, tmp_path):
    file = tmp_path / "0.parquet"
    data = np.random.default_rng(0).bytes(400_000)
    file.write_bytes(data)
    before = _xet.get_xet_session
    session_hub.requests.clear()
    with uploads.counted() as first:
        repository.upload("data/train/0.parquet", file)
    routes = ("put_xorb", "put_shard")
    put = sum(record.bytes_in for record in session_hub.requests.records() if record.route in routes)
    assert 400_000 <= put == pytest.approx(first.num_bytes, abs=2_000)
    with uploads.counted() as again:
        repository.upload("data/train/1.parquet", file)
    assert 0 < again.num_bytes < 2_000
    file.write_bytes(data + np.random.default_rng(1).bytes(100_000))
    with uploads.counted() as longer:
        repository.upload("data/train/2.parquet", file)
    assert 100_000 <= longer.num_bytes <= 102_000 + (128 << 10)
    assert _xet.get_xet_session is before


def test_nothing_is_known_of_what_does_not_go_through_xet(tmp_path):
    with uploads.counted() as sent:
        pass
    assert sent.num_bytes is None
