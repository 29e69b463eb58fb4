"""Run a job over shards, with one progress bar, and bring its few small rows to the driver."""

import pickle
import re
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from tqdm import tqdm

from jobs.publish import PublishError

POLL_SECONDS = 0.25
SPARK_ERRORS = (PySparkException, Py4JJavaError)


class WorkerError(RuntimeError):
    """A worker could not do its part; the message begins with its own error and goes on with where it came from."""


def collect(shards: DataFrame, num_shards: int) -> list[dict]:
    """The rows of `shards.RESULT`, in any order, with `operation` unpickled. Shows a bar of finished shards.

    Raises PublishError when a worker could not upload, WorkerError when one failed otherwise. The job runs in a thread
    of its own, so that an interrupt finds this one free to cancel it: PySpark's handler does, and raises.
    """
    context = shards.sparkSession.sparkContext
    group, done = f"packing-{uuid.uuid4()}", threading.Event()  # the name reaches no result

    def run() -> list[dict]:
        context.setJobGroup(group, "pack shards", interruptOnCancel=True)
        return [row.asDict() for row in shards.collect()]

    with (
        tqdm(total=num_shards, unit="shard", file=sys.stderr, dynamic_ncols=True) as bar,
        ThreadPoolExecutor(2) as threads,
    ):
        threads.submit(_watch, context.statusTracker(), group, bar, done)
        try:
            rows = threads.submit(run).result()
        except SPARK_ERRORS as error:
            raise worker_error(error) from None
        finally:
            done.set()
        bar.update(num_shards - bar.n)
    return [row | {"operation": pickle.loads(row["operation"]) if row["operation"] else None} for row in rows]


def _watch(tracker, group: str, bar: tqdm, done: threading.Event) -> None:
    """Move the bar to the number of finished tasks of the last stage: one task is one shard."""
    while not done.wait(POLL_SECONDS):
        stages = {
            s for job in tracker.getJobIdsForGroup(group) for s in getattr(tracker.getJobInfo(job), "stageIds", ())
        }
        info = tracker.getStageInfo(max(stages)) if len(stages) > 1 else None
        if info is not None and info.numTasks == bar.total and info.numCompletedTasks > bar.n:
            bar.update(info.numCompletedTasks - bar.n)


def worker_error(error: PySparkException | Py4JJavaError) -> RuntimeError:
    """What Spark raised for a worker, as PublishError when an upload failed, else as WorkerError."""
    lines = [line for line in str(error).strip().splitlines() if line and not line[0].isspace()]
    last = next((line for line in reversed(lines) if re.match(r"Caused by|[\w.]*Error\b", line)), lines[-1])
    name, _, message = last.partition(": ")
    if name.endswith("PublishError"):
        return PublishError(message)
    return WorkerError(f"a worker failed: {last}\n{error}")
