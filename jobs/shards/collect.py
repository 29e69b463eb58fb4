"""Run a job over shards: each comes to the driver as soon as it is finished, and one bar shows the progress.

A finished shard travels in a Spark accumulator. Its updates reach the driver when the task that made them ends, and
count once for each task of a job's last stage, however often Spark tried it. So the driver can keep shards
(`jobs.output.hub_draft`) long before the job ends. The job's own rows are only counts, which Spark adds up on their way
(`Observation`): what it saw leave the workers must be what arrived here.

Rejected: `DataFrame.collect` of everything (nothing arrives before the last shard), `toLocalIterator` (one shard at a
time), jobs over parts of the shards (each waits for its slowest, and reads through the exchange again).
"""

import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from py4j.protocol import Py4JJavaError
from pyspark import AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from tqdm.auto import tqdm

from jobs.output.finished_shard import COUNTS, ShardFile
from jobs.output.interface import PublishError
from jobs.shards.udf import ShardWork, pack_shards
from packing_udfs.metrics import add

__all__ = ["SPARK_ERRORS", "LostRowsError", "Progress", "WorkerError", "as_line", "collect", "speed", "worker_error"]

POLL_SECONDS = 0.25
QUIET_SECONDS = 30  # between lines when the bar goes to a log and not to a terminal
SPARK_ERRORS = (PySparkException, Py4JJavaError)


class WorkerError(RuntimeError):
    """A worker failed; the message begins with its own error and goes on with where it came from."""


class LostRowsError(RuntimeError):
    """Spark counted other shards than arrived: a fault of this project or of Spark. Nothing is published."""


class _Finished(AccumulatorParam):
    """A list of finished shards, each the list of its files. The driver's list only grows."""

    def zero(self, value: list) -> list:
        return []

    def addInPlace(self, value1: list, value2: list) -> list:  # noqa: N802 – Spark's name
        value1 += value2
        return value1


def collect(
    samples: DataFrame,
    work: ShardWork,
    shards: Sequence[int] | None = None,
    *,
    on_finished: Callable[[list[ShardFile]], None] = lambda files: None,
    num_kept: int = 0,
    num_partitions: int | None = None,
) -> list[ShardFile]:
    """Pack shards, all or those named, and return their files in the order of shards.

    `on_finished` is called in this thread with each finished shard's files, soon after it finished; `num_kept`: shards
    that were finished before, for the bar. Raises PublishError when a worker could not upload, WorkerError when one
    failed otherwise, and what `on_finished` raises; the job is cancelled then. It runs in another thread, so that an
    interrupt can cancel it from this one: PySpark's handler does, and raises.
    """
    context = samples.sparkSession.sparkContext
    wanted = range(len(work.plan.paths)) if shards is None else shards
    group, observation = f"packing-{uuid.uuid4()}", Observation()  # the names reach no result
    finished = context.accumulator([], _Finished())
    packed = pack_shards(samples, work, lambda files: finished.add([files]), shards, num_partitions)
    packed = packed.observe(observation, *(F.sum(name).alias(name) for name in COUNTS))

    def run() -> None:
        context.setJobGroup(group, "pack shards", interruptOnCancel=True)
        packed.collect()

    arrived: dict[int, list[ShardFile]] = {}
    with Progress(num_kept + len(wanted), num_kept) as progress, ThreadPoolExecutor(1) as thread:
        job = thread.submit(run)
        try:
            for files in _arrivals(finished.value, job):
                arrived[files[0].shard] = files
                progress.add(add(file.counts for file in files))
                on_finished(files)
        except SPARK_ERRORS as error:
            raise worker_error(error) from None
        finally:
            if not job.done():
                context.cancelJobGroup(group)
            finished.value.clear()
        for shard in wanted:
            if shard not in arrived:  # it got no sample, so Spark had no group for it
                arrived[shard] = [ShardFile(shard=shard, path=work.plan.paths[shard])]
                on_finished(arrived[shard])
                progress.add({})
    found = [file for shard in wanted for file in arrived[shard]]
    _check(observation.get, add(file.counts for file in found))
    return found


def _arrivals(finished: list[list[ShardFile]], job: Future) -> Iterator[list[ShardFile]]:
    """What is added to a list while a job runs, in order; then the job's error, if it had one."""
    num_seen, is_done = 0, False
    while not is_done:
        is_done = job.done()  # before the list is read: a job adds everything before it is done
        while num_seen < len(finished):
            yield finished[num_seen]
            num_seen += 1
        if not is_done:
            wait([job], POLL_SECONDS)
    job.result()


def _check(observed: dict, arrived: dict[str, int]) -> None:
    """Raises LostRowsError unless Spark saw what arrived."""
    for name in COUNTS:
        if (observed.get(name) or 0) != arrived.get(name, 0):
            raise LostRowsError(f"{name}: Spark counted {observed.get(name)}, {arrived.get(name, 0)} arrived")


class Progress:
    """A bar of shards, with samples and image bytes a second; a widget in a notebook, a line now and then in a log."""

    def __init__(self, num_shards: int, num_kept: int = 0):
        often = 0.1 if sys.stderr.isatty() else QUIET_SECONDS
        self._bar = tqdm(total=num_shards, initial=num_kept, unit="shard", dynamic_ncols=True, mininterval=often)
        self._start, self._num_samples, self._num_bytes = time.monotonic(), 0, 0

    def add(self, counts: dict[str, int]) -> None:
        """Another shard is finished, with these `COUNTS`."""
        self._num_samples += counts.get("num_samples", 0)
        self._num_bytes += counts.get("num_bytes_read", 0)
        seconds = max(1e-9, time.monotonic() - self._start)
        rates = f"{self._num_samples / seconds:,.0f} samples/s, {self._num_bytes / seconds / 1e6:,.1f} MB/s"
        self._bar.set_postfix_str(rates, refresh=False)
        self._bar.update(1)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error) -> None:
        self._bar.close()


def speed(files: Sequence[ShardFile], seconds: float, num_kept: int) -> dict[str, float]:
    """How fast these files were packed: for the log and the caller. A published file never holds a clock's time."""
    counts = add(file.counts for file in files)
    rates = {name: counts.get(f"num_{name}", 0) / max(seconds, 1e-9) for name in ("samples", "bytes_read")}
    per_second = {f"{name}_per_second": round(rate, 1) for name, rate in rates.items()}
    return {"seconds": round(seconds, 3), "num_shards_kept": num_kept} | per_second


def as_line(how_fast: dict[str, float]) -> str:
    """`speed` as a run prints it."""
    kept = f", {how_fast['num_shards_kept']:,} shards kept from before" if how_fast["num_shards_kept"] else ""
    return (
        f"packing      {how_fast['seconds']:,.1f} s, {how_fast['samples_per_second']:,.0f} samples/s, "
        f"{how_fast['bytes_read_per_second'] / 1e6:,.1f} MB of images/s{kept}"
    )


def worker_error(error: Exception) -> RuntimeError:
    """What Spark raised for a worker, as PublishError when an upload failed, else as WorkerError."""
    lines = [line for line in str(error).strip().splitlines() if line and not line[0].isspace()]
    last = next((line for line in reversed(lines) if re.match(r"Caused by|[\w.]*Error\b", line)), lines[-1])
    name, _, message = last.partition(": ")
    if name.endswith("PublishError"):
        return PublishError(message)
    if full := re.search(r"[\w.]*(Exception|Error): .{0,80}No space left on device.*", str(error)):
        return WorkerError(
            f"a disk is full: {full[0].strip()}; free some, or name a larger one in spark.local.dir "
            "(SPARK_LOCAL_DIRS), where the shuffle holds all images once, and each worker writes one shard"
        )
    return WorkerError(f"a worker failed: {last}\n{error}")
