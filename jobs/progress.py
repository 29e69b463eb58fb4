"""Run a job over shards, with one progress bar, and bring its few small rows to the driver."""

import pickle
import sys
import threading
import uuid

from pyspark.errors import PythonException
from pyspark.sql import DataFrame
from tqdm import tqdm

from jobs.publish import PublishError

POLL_SECONDS = 0.25


class ShardError(RuntimeError):
    """A shard could not be packed; the message ends with the worker's own error."""


def collect(shards: DataFrame, num_shards: int) -> list[dict]:
    """The rows of `shards.RESULT`, in any order, with `operation` unpickled. Shows a bar of finished shards.

    Raises PublishError when a worker could not upload, ShardError when one failed otherwise.
    """
    context = shards.sparkSession.sparkContext
    group, done = f"packing-{uuid.uuid4()}", threading.Event()  # the name reaches no result
    context.setJobGroup(group, "pack shards")
    with tqdm(total=num_shards, unit="shard", file=sys.stderr, dynamic_ncols=True) as bar:
        watcher = threading.Thread(target=_watch, args=(context.statusTracker(), group, bar, done), daemon=True)
        watcher.start()
        try:
            rows = shards.toArrow().to_pylist()
        except PythonException as error:
            raise _worker_error(error) from None
        finally:
            done.set()
            watcher.join()
            context.setLocalProperty("spark.jobGroup.id", None)
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


def _worker_error(error: PythonException) -> RuntimeError:
    lines = [line for line in str(error).strip().splitlines() if line and not line[0].isspace()]
    last = next((line for line in reversed(lines) if "Error" in line.split(":")[0]), lines[-1])
    name, _, message = last.partition(": ")
    if name.endswith("PublishError"):
        return PublishError(message)
    return ShardError(f"a shard could not be packed: {last}\n{error}")
