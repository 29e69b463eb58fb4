"""The same bytes for any parallelism: on Spark and off it, on one core and two, in one partition and five."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.output import hub_repository
from jobs.output.finished_shard import from_ipc
from jobs.shards import settings
from jobs.shards.collect import collect
from jobs.shards.partition_keys import partition_keys, spark_hash
from jobs.shards.plan import plan_shards
from jobs.shards.udf import ShardWork, assign, pack_shards, run_shard
from jobs.sources.pin import pin, read
from packing_udfs import config, contract
from packing_udfs.encode.processor import fetch
from tests.spark.conftest import HERE, demo_tree, files_of


def keep_digest(path_in_repo: str, file: Path) -> str:
    """Stands in for an upload: what would have been sent."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def shard_work(source):
    """The demo's samples and work, with digests of files in place of uploads."""
    parsed = config.parse(demo_tree("user/packed"))
    pinned = [pin(s, f"sources.{i}") for i, s in enumerate(parsed.sources)]
    plan = plan_shards(parsed, pinned, hub_repository.Head(None))
    return pinned, ShardWork(settings.settings(parsed), fetch(parsed.processor.path), plan, keep_digest)


@pytest.fixture(scope="module")
def samples(spark, shard_work):
    one, two = (read(spark, source) for source in shard_work[0])
    return one.unionByName(two)


def digests(rows) -> dict[str, str]:
    return {row.path: row.operation for row in rows}


def test_the_udf_on_spark_equals_the_plain_function(samples, shard_work, packed, api):
    _, work = shard_work
    local = assign(samples, work.plan).toArrow().to_pandas()  # toPandas differs between Spark versions
    plain = []
    for shard, group in local.groupby("shard"):
        shuffled = group.drop(columns="shard").sample(frac=1.0, random_state=shard)  # a shuffle promises no order
        plain += run_shard(int(shard), shuffled, work)
    by_path = {row.path: row for row in plain}
    on_spark = collect(samples, work)
    assert len(on_spark) == 4
    for row in on_spark:
        expected = by_path[row.path]
        for name in ("row_groups", "quarantine", "ledger"):
            assert from_ipc(getattr(row, name)).equals(from_ipc(getattr(expected, name))), (row.path, name)
    published = {path: oid for path, oid in files_of(api, "user/packed").items() if path.startswith("data/")}
    assert digests(on_spark) == published


@pytest.mark.parametrize("num_partitions", [1, 2, 5])
def test_number_of_partitions_changes_no_byte(samples, shard_work, packed, api, num_partitions):
    rows = collect(samples, shard_work[1], num_partitions=num_partitions)
    published = {path: oid for path, oid in files_of(api, "user/packed").items() if path.startswith("data/")}
    assert digests(rows) == published


def test_one_exchange_carries_the_images(samples, shard_work):
    plan = pack_shards(samples, shard_work[1], print)._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange") == 1, plan
    assert "FlatMapGroupsInPandas" in plan


def test_each_shard_is_a_task_of_its_own(samples, shard_work):
    _, work = shard_work
    keyed = pack_shards(samples, work, lambda rows: None)
    sizes = keyed.rdd.glom().map(len).collect()
    assert sizes == [1, 1, 1, 1]


def test_partition_keys_agree_with_spark(spark):
    values = [0, 1, 2, 41, 42, 1_000_000, 2**31 - 1]
    frame = spark.createDataFrame([(v,) for v in values], "v int").selectExpr("v", "hash(v) h")
    assert {row.v: row.h for row in frame.collect()} == dict(zip(values, spark_hash(values).tolist(), strict=True))
    keys = partition_keys(33)
    spread = spark.createDataFrame([(k,) for k in keys], "v int").repartition(33, "v")
    assert spread.rdd.glom().map(lambda part: [row.v for row in part]).collect() == [[key] for key in keys]


def test_sample_schema_is_the_contract(samples):
    assert samples.schema.simpleString() == from_arrow_schema(contract.SAMPLE_SCHEMA).simpleString()


def test_one_core_gives_the_same_dataset(source, packed, api, tmp_path):
    """A process of its own, because a session's number of cores is fixed. The head must not move: nothing changed."""
    conf = tmp_path / "one_core.conf"
    conf.write_text((HERE / "test.conf").read_text().replace("local[2]", "local[1]"))
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(demo_tree("user/packed")))
    command = [sys.executable, "-m", "jobs.pack", "--config", str(job), "--spark-conf", str(conf)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert packed["commit"][:12] in done.stdout
    assert api.dataset_info("user/packed").sha == packed["commit"]
