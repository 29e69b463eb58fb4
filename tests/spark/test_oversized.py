"""Shards beyond their limit: several files each, found by manifest, card, reader, append and overwrite."""

from collections import Counter

import pytest
from datasets import load_dataset

from packing_udfs.reader import PackedDataset
from tests.spark.conftest import files_of
from tests.spark.test_job import read_manifest, read_packs, samples_of

# 4.3 MB of images and tokens in one shard, at most 2 × 640 KiB in a file: four files.
ONE_SHARD = {"num_shards": 1, "shard_bytes": 640 << 10, "num_packs_per_row_group": 4}


def data_files(api, repo: str) -> dict[str, str]:
    return {path: oid for path, oid in files_of(api, repo).items() if path.startswith("data/")}


@pytest.fixture(scope="module")
def cut(run_demo) -> dict:
    return run_demo("user/cut", shards=ONE_SHARD)


def test_files_are_within_the_limit_and_together_the_shard(cut, packed, api):
    names = sorted(data_files(api, "user/cut"))
    assert names == ["data/train/00000.parquet", *(f"data/train/00000_00{part}.parquet" for part in (1, 2, 3))]
    found = read_manifest(api, "user/cut")
    sizes = dict(zip(found.row_groups["file"].to_pylist(), found.row_groups["file_bytes"].to_pylist(), strict=True))
    assert sorted(sizes) == names
    assert max(sizes.values()) < 2 * ONE_SHARD["shard_bytes"]
    assert cut["splits"]["train"]["totals"]["num_files"] == 4
    assert sorted(samples_of(read_packs("user/cut"))) == sorted(samples_of(read_packs("user/packed")))
    assert cut["sources"] == packed["sources"]  # the ledger's counts
    assert cut["quarantine"] == packed["quarantine"]
    assert found.info["num_shards"] == 1


def test_datasets_and_the_reader_find_all_of_them(cut):
    total = cut["splits"]["train"]["totals"]
    assert len(load_dataset("user/cut", split="train")) == total["num_packs"]
    dataset = PackedDataset("user/cut", global_batch_size=2, decode=None, end="pad")
    seen = Counter(sample_id for batch in dataset for pack in batch["sample_ids"] for sample_id in pack)
    assert len(seen) == total["num_samples"]


def test_an_append_goes_on_behind_them_and_an_overwrite_replaces_them(run_demo, api):
    one, two = ({"repo": "user/cut-grown", "mode": mode} for mode in ("overwrite", "append"))
    run_demo("user/cut-grown", output=one, shards=ONE_SHARD)
    before = data_files(api, "user/cut-grown")
    run_demo("user/cut-grown", output=two, shards=ONE_SHARD)
    after = data_files(api, "user/cut-grown")
    assert {path: after[path] for path in before} == before
    assert sorted(after) == sorted([*before, *(path.replace("00000", "00001") for path in before)])
    run_demo("user/cut-grown", output=one, shards={"num_shards": 2})
    assert sorted(data_files(api, "user/cut-grown")) == ["data/train/00000.parquet", "data/train/00001.parquet"]
