"""Kill a training job again and again, and hold what it was given to whole epochs.

    python -m tests.reader.soak [--kills 1000] [--seed 0]

Each job reads on from the last checkpoint with another world size and other workers, all its ranks in one process, and
reports each step. At a random moment it, or one of its workers, gets SIGKILL; steps behind its last checkpoint are
forgotten, as training would. When an epoch is complete, the samples of the steps that count must be those of the
dataset, each once. Prints one JSON line; exits with 1 when a sample was lost or repeated.
"""

import argparse
import contextlib
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader

from packing_udfs.reader import PackedDataset
from tests.reader.conftest import write_dataset

GLOBAL_BATCH_SIZE = 16
# (world size, workers of each rank): all of 8, 4, 16, 1 and 0, 2, 8, with 16 workers at most, for small machines.
JOBS = [(8, 0), (4, 2), (16, 0), (1, 8), (8, 2), (4, 0), (1, 2), (1, 0)]
CHECKPOINT_EVERY = 2  # steps
PATIENCE = 120  # seconds without a step or an end: a hang


def run_job(folder: str, world_size: int, num_workers: int, state: dict | None, epoch: int, report: int) -> None:
    """All ranks of a job, in step; a JSON line a step: [step, ids of its samples, state, pids of the workers]."""
    torch.set_num_threads(1)
    loaders = []
    for rank in range(world_size):
        dataset = PackedDataset(
            folder,
            global_batch_size=GLOBAL_BATCH_SIZE,
            micro_batch_size=1,
            rank=rank,
            world_size=world_size,
            end="pad",
            decode=None,
            prefetch=2,
        )
        dataset.set_epoch(epoch)
        if state:
            dataset.load_state_dict(state)
        loaders.append(iter(DataLoader(dataset, batch_size=None, num_workers=num_workers)))
    pids = [worker.pid for loader in loaders for worker in getattr(loader, "_workers", [])]
    first = state["step"] if state else 0
    for step in range(first + 1, dataset.num_steps + 1):
        batches = [next(loader) for loader in loaders for _ in range(dataset.micro_batches_per_step)]
        ids = [i for batch in batches if not batch["is_padding"].item() for i in batch["sample_ids"][0]]
        line = json.dumps([step, ids, batches[-1]["state"], pids]) + "\n"
        assert os.write(report, line.encode()) == len(line)


def start_job(*args) -> tuple[int, int]:
    """(pid, pipe to read) of a forked job, in a process group of its own."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        return pid, read
    os.setsid()
    os.close(read)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a worker's death is told with a traceback
    status = 1
    try:
        run_job(*args, write)
        status = 0
    finally:
        os._exit(status)


def steps_of(pipe: int):
    """The lines of a job until it ends."""
    rest = b""
    while True:
        if not select.select([pipe], [], [], PATIENCE)[0]:
            raise TimeoutError(f"neither a step nor an end in {PATIENCE} s")
        if not (data := os.read(pipe, 1 << 16)):
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)


def epoch_with_kills(folder: str, epoch: int, num_steps: int, draw: random.Random, counts: Counter) -> list[int]:
    """Ids of the samples of one epoch, from jobs that are killed until one gets through."""
    done: list[tuple[list[int], dict]] = []  # ids and state of each step up to the last checkpoint
    while len(done) < num_steps:
        world_size, num_workers = JOBS[counts["jobs"] % len(JOBS)]
        counts["jobs"] += 1
        pid, pipe = start_job(folder, world_size, num_workers, done[-1][1] if done else None, epoch)
        kill_after, seen, victim = draw.randint(0, 5), list(done), None
        for step, ids, state, pids in steps_of(pipe):
            assert step == len(seen) + 1
            seen.append((ids, state))
            if victim is None and len(seen) - len(done) >= kill_after:
                time.sleep(draw.random() * 0.02)
                victim = draw.choice([0, *pids[:1], *pids[-1:]])
                kill(pid, victim)
        _, status = os.waitpid(pid, 0)
        os.close(pipe)
        kill(pid, 0)  # what a dead job has left
        if status:
            counts["kills"] += 1
            counts["killed_workers"] += bool(victim)
            seen = seen[: len(seen) // CHECKPOINT_EVERY * CHECKPOINT_EVERY] if len(seen) < num_steps else seen
        done = seen
    return [sample for ids, _ in done for sample in ids]


def kill(job: int, worker: int) -> None:
    """SIGKILL a worker, or with 0 the whole job."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL) if worker else os.killpg(job, signal.SIGKILL)


def soak(num_kills: int, seed: int) -> dict:
    counts, draw = Counter(), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        write_dataset(Path(folder), [[4] * 40, [4] * 40, [4] * 40, [4] * 20 + [3] * 7])  # 581 packs: 37 steps
        stored = pq.read_table(Path(folder, "data/train"), columns=["sample_ids"])["sample_ids"]
        expected = Counter(i for ids in stored.to_pylist() for i in ids)
        epoch = 0
        while counts["kills"] < num_kills:
            seen = Counter(epoch_with_kills(folder, epoch, 37, draw, counts))
            counts["lost"] += (expected - seen).total()
            counts["repeated"] += (seen - expected).total()
            counts["samples"] += seen.total()
            epoch += 1
    return {**counts, "epochs": epoch}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.reader.soak")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    result = soak(arguments.kills, arguments.seed)
    print(json.dumps(result))
    sys.exit(bool(result["lost"] or result["repeated"]))
