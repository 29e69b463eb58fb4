"""Run a job over shards: finished ones come to the driver as they finish, with one bar that shows how far it is.

A finished shard travels in a Spark accumulator, whose updates reach the driver with the end of the task that made them
and are applied once for each task of a job's last stage, whatever was tried before or beside it. So the driver can
keep shards (`jobs.output.pull_request`) long before the job ends. The job's own rows are but counts, which Spark adds
up on its way (`Observation`): what it saw leave the workers must be what arrived here.

Rejected: `DataFrame.collect` of all that is to be known (nothing arrives before the last shard), `toLocalIterator` (one
shard at a time), jobs over parts of the shards (each waits for its slowest, and the exchange is read through again).
"""

import pickle
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

from jobs.output.finished_shard import COUNTS, count, empty_row
from jobs.output.interface import PublishError
from jobs.shards.udf import ShardWork, pack_shards
from packing_udfs.metrics import add

POLL_SECONDS = 0.25
QUIET_SECONDS = 30  # between lines where the bar is not on a terminal but in a log
SPARK_ERRORS = (PySparkException, Py4JJavaError)


class WorkerError(RuntimeError):
    """A worker could not do its part; the message begins with its own error and goes on with where it came from."""


class LostRowsError(RuntimeError):
    """Spark counted other shards than arrived: a fault of this project or of Spark. Nothing is published."""


class _Finished(AccumulatorParam):
    """A list of finished shards, each the list of its rows. The driver's only ever grows."""

    def zero(self, value: list) -> list:
        return []

    def addInPlace(self, value1: list, value2: list) -> list:  # noqa: N802 – Spark's name
        value1.extend(value2)
        return value1


def collect(
    samples: DataFrame,
    work: ShardWork,
    shards: Sequence[int] | None = None,
    *,
    on_finished: Callable[[list[dict]], None] = lambda rows: None,
    num_kept: int = 0,
    num_partitions: int | None = None,
) -> list[dict]:
    """Pack shards, all or those named; rows of `results.RESULT` with `operation` unpickled, in the order of shards.

    `on_finished` is called in this thread with each finished shard's rows, soon after it finished; `num_kept`: shards
    that were finished before, for the bar. Raises PublishError when a worker could not upload, WorkerError when one
    failed otherwise, and what `on_finished` raises; the job is cancelled then. The job runs in a thread of its own, so
    that an interrupt finds this one free to cancel it: PySpark's handler does, and raises.
    """
    context = samples.sparkSession.sparkContext
    wanted = range(len(work.plan.paths)) if shards is None else shards
    group, observation = f"packing-{uuid.uuid4()}", Observation()  # the names reach no result
    finished = context.accumulator([], _Finished())
    packed = pack_shards(samples, work, lambda rows: finished.add([rows]), shards, num_partitions)
    packed = packed.observe(observation, *(F.sum(name).alias(name) for name in COUNTS))

    def run() -> None:
        context.setJobGroup(group, "pack shards", interruptOnCancel=True)
        packed.collect()

    arrived: dict[int, list[dict]] = {}
    with Progress(num_kept + len(wanted), num_kept) as progress, ThreadPoolExecutor(1) as thread:
        job = thread.submit(run)
        try:
            for rows in _arrivals(finished.value, job):
                rows = [row | {"operation": row["operation"] and pickle.loads(row["operation"])} for row in rows]
                arrived[rows[0]["shard"]] = rows
                progress.add(add(map(count, rows)))
                on_finished(rows)
        except SPARK_ERRORS as error:
            raise worker_error(error) from None
        finally:
            if not job.done():
                context.cancelJobGroup(group)
            finished.value.clear()
        for shard in wanted:
            if shard not in arrived:
                arrived[shard] = [empty_row(shard, work.plan.paths[shard])]
                on_finished(arrived[shard])
                progress.add({})
    rows = [row for shard in wanted for row in arrived[shard]]
    _check(observation.get, add(map(count, rows)))
    return rows


def _arrivals(finished: list[list[dict]], job: Future) -> Iterator[list[dict]]:
    """What is added to a list while a job runs, in order; then the job's error, if it had one."""
    num_seen, is_done = 0, False
    while not is_done:
        is_done = job.done()  # before looking: what a job added, it added before it was done
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
    """A bar of shards, with samples and image bytes a second; in a notebook a widget, in a log a line now and then."""

    def __init__(self, num_shards: int, num_kept: int = 0):
        quiet = {} if sys.stderr.isatty() else {"mininterval": QUIET_SECONDS}
        self._bar = tqdm(total=num_shards, initial=num_kept, unit="shard", file=sys.stderr, dynamic_ncols=True, **quiet)
        self._start, self._total = time.monotonic(), {"num_samples": 0, "num_bytes_read": 0}

    def add(self, counts: dict[str, int]) -> None:
        """Another shard is finished, with these counts (`results.COUNTS`)."""
        self._total = {name: value + counts.get(name, 0) for name, value in self._total.items()}
        seconds = max(1e-9, time.monotonic() - self._start)
        samples, num_bytes = (value / seconds for value in self._total.values())
        self._bar.set_postfix_str(f"{samples:,.0f} samples/s, {num_bytes / 1e6:,.1f} MB/s", refresh=False)
        self._bar.update(1)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error) -> None:
        self._bar.close()


def speed(rows: Sequence[dict], seconds: float, num_kept: int) -> dict:
    """What packing these rows of `RESULT` took: for the log and the caller, never for a file, which has no clock."""
    counts = {"num_samples": 0, "num_bytes_read": 0} | add(map(count, rows))
    per_second = {name: round(counts[f"num_{name}"] / max(seconds, 1e-9), 1) for name in ("samples", "bytes_read")}
    return {"seconds": round(seconds, 3), "num_shards_kept": num_kept} | {
        f"{name}_per_second": value for name, value in per_second.items()
    }


def as_line(how_fast: dict) -> str:
    """`speed` as a run prints it."""
    kept = f", {how_fast['num_shards_kept']:,} shards kept from before" if how_fast["num_shards_kept"] else ""
    return (
        f"packing      {how_fast['seconds']:,.1f} s, {how_fast['samples_per_second']:,.0f} samples/s, "
        f"{how_fast['bytes_read_per_second'] / 1e6:,.1f} MB of images/s{kept}"
    )


def worker_error(error: PySparkException | Py4JJavaError) -> RuntimeError:
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
