"""Samples to shards to packs: the one exchange of the job and the grouped pandas UDF behind it.

    upper half of sample_id ─▶ shard = pmod(xxhash64(…), n) ─▶ repartition ─▶ groupBy ─▶ pack_shard ─▶ Parquet ─▶ Hub

The UDF returns a few counts and never image bytes: it writes the shard's file to the worker's disk and uploads it from
there. Uploads are content-addressed and nothing refers to them until the driver commits, so a task may run twice.
Rejected: returning packs to a data source writer, which sends every image through the JVM again.

A worker holds its shard three times, whatever the UDF does: as Spark's Arrow batches, as these joined, and as pandas'
objects; beside them one row group, then an upload. An oversized shard is cut into files of at most
`shards.max_file_bytes`, but Spark hands it over whole: its worker's memory grows with it. Repeats of a row add at most
one copy for each partition of the source (`jobs.sources.repeats`).
"""

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import TaskContext
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.output import uploads
from jobs.output.finished_shard import COUNTS, ShardFile, to_ipc
from jobs.shards.last_version import LastVersion
from jobs.shards.partition_keys import partition_keys
from jobs.shards.plan import PER_MILLION, ShardPlan
from jobs.shards.worker_memory import give_back, torch_left_out
from packing_udfs import contract
from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.processor import ProcessorFiles
from packing_udfs.metrics import add
from packing_udfs.parquet import write
from packing_udfs.published.pictures import draw
from packing_udfs.shard.keep_packs import Previous
from packing_udfs.shard.pack_shard import PackedFile, PackSettings, pack_shard
from packing_udfs.storage.byte_source import AbsentError

__all__ = ["ShardWork", "assign", "log_shard", "pack_shards", "reused", "run_shard"]

NUM_DRAWN = 4  # shards of a split that draw packs for the report; the report takes the first one that has any


@dataclass(frozen=True)
class ShardWork:
    """All that a worker needs: settings, the processor's files and what to do with a finished file."""

    settings: PackSettings
    processor: ProcessorFiles
    plan: ShardPlan
    upload: Callable[[str, Path], object]  # (path in the repository, local file) -> what the commit needs
    last: LastVersion | None = None  # of these shards, when their packs may stay where they are
    run: str = ""  # the run's name in the executors' logs; without it nothing is logged


def assign(samples: DataFrame, plan: ShardPlan) -> DataFrame:
    """Add `shard`, the global shuffle: a hash of the id's upper half and the copy.

    So duplicates meet, a sample whose text is edited stays in its shard, and copies spread. The split depends on that
    half alone: no copy of a validation sample is trained on, nor are its images with another text, except small ones.
    """
    images = F.shiftright("sample_id", 32)

    def bucket(salt: str, num: int, *columns: str) -> Column:
        return F.pmod(F.xxhash64(F.lit(salt), F.lit(plan.seed), images, *columns), F.lit(num))

    shard = bucket("shard", plan.num_train, "copy")
    if plan.num_validation:
        is_validation = bucket("validation", PER_MILLION) < round(plan.validation_fraction * PER_MILLION)
        validation = plan.num_train + bucket("validation shard", plan.num_validation, "copy")
        shard = F.when(is_validation, validation).otherwise(shard)
    return samples.withColumn("shard", shard.cast("int"))


def pack_shards(
    samples: DataFrame,
    work: ShardWork,
    finished: Callable[[list[ShardFile]], object],
    shards: Sequence[int] | None = None,
    num_partitions: int | None = None,
) -> DataFrame:
    """Pack shards, all or those named; nothing runs until the result is read.

    `finished` is called in a worker with a shard's files: an accumulator's `add`, of which Spark counts one successful
    attempt of a task. The result has a row for each shard that got any sample: its number and `COUNTS`.
    `num_partitions` is one a shard unless a test says otherwise; it changes no byte.
    """
    wanted = list(range(len(work.plan.paths))) if shards is None else sorted(shards)
    keys = dict(zip(wanted, partition_keys(len(wanted)), strict=True))
    key_of = F.array([F.lit(keys.get(shard)).cast("int") for shard in range(len(work.plan.paths))])
    keyed = assign(samples, work.plan).withColumn("shard_key", F.element_at(key_of, F.col("shard") + 1))
    if shards is not None:
        keyed = keyed.where(F.col("shard_key").isNotNull())  # before the exchange, which a finished shard does not need
    sent = samples.sparkSession.sparkContext.broadcast(work)

    def pack_group(group: pd.DataFrame) -> pd.DataFrame:
        start, shard = time.perf_counter(), int(group["shard"].iat[0])
        give_back()  # memory that earlier tasks have left
        with torch_left_out():
            _encoder(sent.value.processor, sent.value.settings.train_on)
        files = run_shard(shard, group, sent.value)
        finished(files)
        counts = add(file.counts for file in files)
        log_shard(sent.value.run, shard, counts, time.perf_counter() - start)
        return pd.DataFrame([{"shard": shard, **counts}])

    return (
        keyed.repartition(num_partitions or len(wanted), "shard_key")
        .groupBy("shard_key")
        .applyInPandas(pack_group, ", ".join(["shard int", *(f"{name} long" for name in COUNTS)]))
    )


def log_shard(run: str, shard: int, counts: dict[str, int], seconds: float) -> None:
    """Write a JSON line to the executor's log (its stderr): a shard's seconds, attempt and counts."""
    if run:
        log, context = PySparkLogger.getLogger("packing"), TaskContext.get()
        log.setLevel(logging.INFO)
        attempt = context.attemptNumber() if context else 0
        log.info("shard packed", run=run, shard=shard, attempt=attempt, seconds=round(seconds, 3), **counts)


def run_shard(shard: int, samples: pd.DataFrame, work: ShardWork) -> list[ShardFile]:
    """Pack one shard, write its files and hand each to `work.upload`. Needs no Spark.

    The frame loses the bytes of its images file by file, as they are written. A shard without packs gives one
    `ShardFile` too, which has its quarantine and its ledger.
    """
    encoder = _encoder(work.processor, work.settings.train_on)
    last, why_not, max_drift = _last_version(work, work.plan.paths[shard])
    if why_not:
        work = replace(work, last=None)  # Xet has nothing to be reminded of
    packed = pack_shard(samples, encoder, work.settings, last, max_drift)
    files = []
    for part, packed_file in enumerate(packed.files):
        path = part_path(work.plan.paths[shard], part)
        file = ShardFile(shard=shard, path=path, sums=json.dumps(packed_file.sums))
        if part == 0:
            file = replace(file, quarantine=to_ipc(packed.quarantine), ledger=to_ipc(packed.ledger))
            file = replace(file, num_bytes_read=_image_bytes(samples))
            if packed_file.groups and work.plan.index_in_split(shard) < NUM_DRAWN:
                file = replace(file, drawn=json.dumps(draw(next(packed_file.row_groups()))))
        if packed_file.groups:
            written = _write(path, packed_file, packed.files[part + 1 :], work, _local_folder(shard))
            file = replace(file, reuse=json.dumps(reused(packed_file, why_not)), **written)
        files.append(file)
    return files


def part_path(path: str, part: int) -> str:
    """Path of a part of an oversized shard: data/train/00007.parquet, data/train/00007_001.parquet …

    The order of the names is that of the parts. No other shard has such a name, in this run or a later append
    (`jobs.shards.plan.shard_path`).
    """
    return path if part == 0 else path.replace(".parquet", f"_{part:03d}.parquet")


def _write(
    path: str, packed: PackedFile, to_come: Sequence[PackedFile], work: ShardWork, local_folder: str | None
) -> dict[str, Any]:
    """Write a file and hand it to `work.upload`; the fields of its `ShardFile`."""
    with tempfile.TemporaryDirectory(prefix="packing-", dir=local_folder) as folder:
        file = Path(folder, "shard.parquet")
        row_groups = write.write_shard(str(file), path, packed.row_groups())
        num_bytes = file.stat().st_size
        if work.last is not None:
            work.last.remind(path, file)
        packed.let_go(to_come)
        give_back()  # images and what writing took: an upload needs some 200 MB
        with uploads.counted() as sent:
            operation = work.upload(path, file)
    written = {"num_bytes": num_bytes, "num_bytes_uploaded": sent.num_bytes}
    return written | {"row_groups": to_ipc(row_groups), "operation": operation}


def _last_version(work: ShardWork, path: str) -> tuple[list[Previous], str, float]:
    """The packs of a shard's published files; why they cannot be used, if so; the drift that using them may cost."""
    if work.last is None:
        return [], "", 0.0
    files = []
    try:
        while (found := work.last.file(part_path(path, len(files)))) is not None:
            files.append(found)
    except (contract.ContractError, AbsentError) as error:
        return [], str(error), 0.0
    return files, "", work.last.max_drift


def reused(packed: PackedFile, why_not: str = "") -> dict[str, Any]:
    """What became of the last version's packs: their numbers, and why a file was packed afresh; {} without one."""
    num_packs, plan = packed.sums["num_packs"], packed.plan
    if plan is not None and plan.why_afresh:
        why_not = why_not or plan.why_afresh
    if why_not:
        return {"num_files_afresh": 1, "num_packs_new": num_packs, "why": why_not}
    if plan is None:
        return {}
    counts = {"num_packs_kept": plan.num_kept, "num_packs_moved": plan.num_moved, "num_packs_changed": plan.num_changed}
    return counts | {"num_packs_new": num_packs - sum(counts.values())}


def _image_bytes(samples: pd.DataFrame) -> int:
    """Bytes of all images of a shard's rows."""
    images = (image for of_row in samples["images"] if of_row is not None for image in of_row)
    return sum(len(image["bytes"]) for image in images if image and image["bytes"])


def _local_folder(shard: int) -> str | None:
    """One of Spark's local folders, which Spark removes even when the worker is killed; None for the system's own.

    Spark sets SPARK_LOCAL_DIRS to them in a worker.
    """
    folders = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if folder]
    return folders[shard % len(folders)] if folders else None


@lru_cache(maxsize=1)
def _encoder(processor: ProcessorFiles, train_on: str) -> Encoder:
    """The encoder, loaded once in a worker process."""
    return Encoder(processor.load(), train_on)
