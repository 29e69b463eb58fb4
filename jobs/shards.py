"""Samples to shards to packs: the one exchange of the job and the grouped pandas UDF behind it.

    sample_id ─▶ shard = pmod(xxhash64(seed, sample_id), n) ─▶ repartition ─▶ groupBy ─▶ pack_shard ─▶ Parquet ─▶ Hub

The UDF returns a few small rows and never image bytes: the shard's file is written to the worker's disk and uploaded
from there. Uploads are content-addressed and nothing refers to them until the driver commits, so a task that runs
twice does no harm. Rejected: returning packs to a data source writer, which sends every image through the JVM again.
"""

import json
import os
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.partitioning import partition_keys
from packing_udfs import shard_file
from packing_udfs.drawn import draw
from packing_udfs.encode import Encoder
from packing_udfs.pack import PackSettings, pack_shard
from packing_udfs.processor import ProcessorFiles

RESULT = (
    "shard int, path string, num_bytes long, operation binary, "
    "row_groups binary, quarantine binary, ledger binary, sums string, drawn string"
)
NUM_DRAWN = 4  # shards of a split that draw packs for the report; the first of them that has any is taken
PER_MILLION = 1_000_000


@dataclass(frozen=True)
class ShardPlan:
    """Which shards a run writes: the path in the repository of each, validation shards last."""

    seed: int
    paths: tuple[str, ...]
    num_validation: int  # shards of the validation split, at the end of `paths`
    validation_fraction: float

    @property
    def num_train(self) -> int:
        return len(self.paths) - self.num_validation

    def index_in_split(self, shard: int) -> int:
        """Which of its split's shards a shard is."""
        return shard if shard < self.num_train else shard - self.num_train


@dataclass(frozen=True)
class ShardWork:
    """All that a worker needs: settings, the processor's files and what to do with a finished file."""

    settings: PackSettings
    processor: ProcessorFiles
    plan: ShardPlan
    upload: Callable[[str, Path], object]  # (path in the repository, local file) -> what the commit needs


def assign(samples: DataFrame, plan: ShardPlan) -> DataFrame:
    """Add `shard`, the global shuffle: a hash of the sample's id and copy, so that duplicates meet and copies spread.

    Which split a sample is in is a matter of its id alone: no copy of a validation sample is trained on.
    """

    def bucket(salt: str, num: int, *columns: str):
        return F.pmod(F.xxhash64(F.lit(salt), F.lit(plan.seed), "sample_id", *columns), F.lit(num))

    shard = bucket("shard", plan.num_train, "copy")
    if plan.num_validation:
        is_validation = bucket("validation", PER_MILLION) < round(plan.validation_fraction * PER_MILLION)
        validation = plan.num_train + bucket("validation shard", plan.num_validation, "copy")
        shard = F.when(is_validation, validation).otherwise(shard)
    return samples.withColumn("shard", shard.cast("int"))


def pack_shards(samples: DataFrame, work: ShardWork, num_partitions: int | None = None) -> DataFrame:
    """One row of `RESULT` a shard that got any row. Nothing runs until the result is asked for.

    `num_partitions` is the number of shards, one a task, unless a test says otherwise; it changes no byte.
    """
    num_shards = len(work.plan.paths)
    keys = F.array([F.lit(key) for key in partition_keys(num_shards)])
    keyed = assign(samples, work.plan).withColumn("shard_key", F.element_at(keys, F.col("shard") + 1))
    sent = samples.sparkSession.sparkContext.broadcast(work)

    def pack_group(group: pd.DataFrame) -> pd.DataFrame:
        shard = int(group["shard"].iat[0])
        return pd.DataFrame([run_shard(shard, group.drop(columns=["shard", "shard_key"]), sent.value)])

    return (
        keyed.repartition(num_partitions or num_shards, "shard_key")
        .groupBy("shard_key")
        .applyInPandas(pack_group, RESULT)
    )


def run_shard(shard: int, samples: pd.DataFrame, work: ShardWork) -> dict:
    """Pack one shard, write its file, hand it to `work.upload`; a row of `RESULT` as a dict. Needs no Spark."""
    packed = pack_shard(samples, _encoder(work.processor, work.settings.train_on), work.settings)
    row = {
        "shard": shard,
        "path": work.plan.paths[shard],
        "num_bytes": 0,
        "operation": None,
        "row_groups": None,
        "quarantine": to_ipc(packed.quarantine),
        "ledger": to_ipc(packed.ledger),
        "sums": json.dumps(packed.sums),
        "drawn": None,
    }
    if packed.num_packs:
        if work.plan.index_in_split(shard) < NUM_DRAWN:
            row["drawn"] = json.dumps(draw(next(packed.row_groups())))
        with tempfile.TemporaryDirectory(prefix="packing-", dir=_local_folder(shard)) as folder:
            file = Path(folder, "shard.parquet")
            row_groups = shard_file.write_shard(str(file), row["path"], packed.row_groups())
            row["num_bytes"] = file.stat().st_size
            row["row_groups"] = to_ipc(row_groups)
            row["operation"] = pickle.dumps(work.upload(row["path"], file))
    return row


def _local_folder(shard: int) -> str | None:
    """One of Spark's local folders, which go with the application even when the worker is killed.

    In a worker, Spark sets SPARK_LOCAL_DIRS to them; elsewhere None, for the system's own.
    """
    folders = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if folder]
    return folders[shard % len(folders)] if folders else None


@lru_cache(maxsize=1)
def _encoder(processor: ProcessorFiles, train_on: str) -> Encoder:
    """Loaded once a worker process, not once a shard."""
    return Encoder(processor.load(), train_on)


def to_ipc(table: pa.Table) -> bytes:
    """A small table as Arrow IPC bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def from_ipc(data: bytes) -> pa.Table:
    """The table of `to_ipc`."""
    return pa.ipc.open_stream(data).read_all()
