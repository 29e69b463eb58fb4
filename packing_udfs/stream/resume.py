"""Steps, workers and resuming: what all datasets here share, whatever their batches are.

A position is two integers: an epoch and the micro-batches done in it. The training loop's process sets it, but
iterations begin in DataLoader workers, which may have started long before (persistent workers). Five integers in shared
memory tell them, at no cost per batch. Rejected: an attribute of the dataset (persistent workers keep their first
copy), and using up a loaded position when an iteration begins (a look at the first batch would lose it).

DataLoader takes batches from its workers in turn. So micro-batch j of a step always comes from worker j mod workers,
and the order of batches does not depend on the number of workers.
"""

import logging
import multiprocessing
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

import torch
from torch.utils.data import IterableDataset, get_worker_info

__all__ = ["STATE_VERSION", "Cut", "SharedPosition", "State", "StateError", "StepDataset"]

log = logging.getLogger(__name__)

STATE_VERSION = 2
_MOST = (1 << 31) - 1  # epochs, and lanes of a rank


class State(TypedDict):
    """A position in the order of packs, the same on every rank: what `PackedDataset.state_dict` returns."""

    version: int  # STATE_VERSION
    fingerprint: str  # SHA-256 of the manifest
    order_version: int
    global_batch_size: int
    seed: int
    shuffle: bool
    balance: bool
    end: str
    epoch: int
    step: int  # the next one
    lane: int  # lanes of the rank that are done in that step: 0 except between micro-batches


class StateError(ValueError):
    """A state that does not fit this dataset, or cannot be taken here. The message says what differs."""


class Start(NamedTuple):
    """Where the next iteration starts."""

    epoch: int = 0
    done: int = 0  # micro-batches of the epoch
    generation: int = 0  # counts the calls of `SharedPosition.start`
    finished_by: int = 0  # the iteration that came to the end of the epoch in this generation, or 0
    has_workers: int = 0  # 1 if DataLoader workers iterate


class SharedPosition:
    """A `Start` in memory that DataLoader workers share, persistent ones too."""

    def __init__(self):
        self._values = torch.tensor(Start()).share_memory_()  # int64 [5]
        self._finished = -1  # the generation whose epoch this process has iterated to its end
        self._num_begun = 0  # iterations in this process
        self._own: tuple[int, int] | None = None  # (generation, micro-batches done) for this worker alone

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        if not self._values.is_shared():  # a deep copy, or plain pickle
            self._values.share_memory_()

    def read(self) -> Start:
        return Start(*self._values.tolist())

    def start(self, epoch: int, done: int) -> None:
        """The next iteration is of `epoch`, after `done` micro-batches."""
        self._values[:] = torch.tensor(Start(epoch, done, self.read().generation + 1))

    def start_here(self, epoch: int, done: int) -> None:
        """As `start`, for this worker alone: StatefulDataLoader gives each worker a position of its own."""
        self._write("epoch", epoch)
        self._own = self.read().generation, done

    def begin(self, worker) -> tuple[int, int, tuple[int, int]]:
        """An iteration begins here. Returns (epoch, micro-batches done, what to pass to `finish`).

        One epoch continues at a loaded position; once an iteration has come to the end, the next one starts at 0.
        Workers come to the end before the loop. So the next one also starts at 0 if the loop leaves an epoch while
        workers fetch its last batches.
        """
        self._num_begun += 1
        self._write("has_workers", int(worker is not None))
        start, iteration = self.read(), _iteration(worker, self._num_begun)
        mark = start.generation, iteration
        if self._own and self._own[0] == start.generation:
            return start.epoch, self._own[1], mark
        is_over = self._finished == start.generation or start.finished_by not in (0, iteration)
        return start.epoch, 0 if is_over else start.done, mark

    def finish(self, mark: tuple[int, int]) -> None:
        """An iteration came to the end of its epoch. Does nothing if another position was set in the meantime."""
        generation, iteration = mark
        if generation == self.read().generation:
            self._own = None
            self._finished = generation
            self._write("finished_by", iteration)

    def _write(self, field: str, value: int) -> None:
        """Set one field; other processes may be setting others."""
        self._values[Start._fields.index(field)] = value


def _iteration(worker, num_begun: int) -> int:
    """A number that the workers of one iteration share and no other iteration has, or -1 outside workers.

    Workers that start together have successive numbers among their parent's processes, and persistent ones begin
    together. (DataLoader's base seed is the same in each epoch if the loop seeds torch in each.)
    """
    if worker is None:
        return -1
    *_, number = 0, *multiprocessing.current_process()._identity
    return (number - worker.id) << 32 | num_begun


@dataclass(frozen=True)
class Cut:
    """How a step is cut: into `num_lanes` for each rank, and those into micro-batches."""

    rank: int
    world_size: int
    global_batch_size: int
    micro_batch_size: int

    @property
    def num_lanes(self) -> int:
        return self.global_batch_size // self.world_size


class StepDataset(IterableDataset):
    """This rank's batches of each step; `batch["state"]` is the state after it. Subclasses set `num_steps`."""

    num_steps: int

    def __init__(self, cut: Cut):
        self.cut = cut
        self._shared = SharedPosition()
        self._position: tuple[int, int] | None = None  # (epoch, micro-batches done in it) of the iteration here

    @property
    def micro_batches_per_step(self) -> int:
        """Batches of a step on a rank: accumulate gradients over them."""
        return self.cut.num_lanes // self.cut.micro_batch_size

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return self.num_steps * self.micro_batches_per_step

    def seek(self, epoch: int, step: int = 0) -> None:
        """Start at `step` of `epoch` next time, also in persistent workers."""
        self._shared.start(epoch, step * self.micro_batches_per_step)
        self._position = None

    def set_epoch(self, epoch: int) -> None:
        """Start at step 0 of `epoch` next time. After `load_state_dict`, the epoch of the state keeps its position."""
        if epoch != self._shared.read().epoch:
            self.seek(epoch)

    def state_at(self, epoch: int, step: int) -> dict:
        """The state of a run that continues at `step` of `epoch`."""
        return self._state(epoch, step * self.micro_batches_per_step)

    def state_dict(self) -> dict:
        """The position, in the process that iterates. Raises StateError in the loop's process if DataLoader workers
        iterate: they are ahead of the loop, so use `batch["state"]`."""
        worker, start = get_worker_info(), self._shared.read()
        if worker is None and start.has_workers:
            raise StateError(
                "the batches come from DataLoader workers, which are ahead of the loop: use batch['state']"
            )
        if self._position is None:
            return self._state(start.epoch, start.done)
        epoch, done = self._position
        # StatefulDataLoader returns a worker's state to the same worker, which adds its number again.
        return self._state(epoch, done - (worker.id if worker else 0))

    def load_state_dict(self, state: dict) -> None:
        """Continue after `state`: the next iteration yields the batches that would have come. World size, workers,
        micro_batch_size and prefetch may differ from the run that saved it. Raises StateError for other
        differences."""
        identity = self._identity()
        if set(state) != {*identity, "epoch", "step", "lane"}:
            raise StateError(f"reader state: its keys are {sorted(state)}, expected {sorted(self._state(0, 0))}")
        for key, value in identity.items():
            if state[key] != value:
                advice = _ADVICE.get(key.rpartition(".")[2], _OWN)
                raise StateError(f"reader state: {key} is {state[key]!r}, {advice.format(value)}")
        for key, most in {"epoch": _MOST, "step": self.num_steps, "lane": _MOST}.items():
            if type(state[key]) is not int or not 0 <= state[key] <= most:
                raise StateError(f"reader state: {key} is {state[key]!r}, must be an integer from 0 to {most}")
        micro_batches, over = divmod(state["lane"], self.cut.micro_batch_size)
        if over or state["lane"] >= self.cut.num_lanes or (state["lane"] and state["step"] == self.num_steps):
            raise StateError(
                f"reader state: it was taken between the micro-batches of a step, after {state['lane']} lanes of a "
                "rank, which is no whole number of micro-batches here; use the state of a finished step"
            )
        start = self._shared.start if get_worker_info() is None else self._shared.start_here
        start(state["epoch"], state["step"] * self.micro_batches_per_step + micro_batches)
        self._position = None

    def __iter__(self) -> Iterator[dict]:
        worker, per_step = get_worker_info(), self.micro_batches_per_step
        worker_id, num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        busy = max(n for n in range(1, num_workers + 1) if per_step % n == 0)
        if busy < num_workers and worker_id == 0:
            log.warning(
                "%d of %d DataLoader workers are idle: a step has %d micro-batches of %d packs on this rank, so %d "
                "workers share them; set num_workers to that, or micro_batch_size lower",
                *(num_workers - busy, num_workers, per_step, self.cut.micro_batch_size, busy),
            )
        epoch, start, mark = self._shared.begin(worker)
        self._position = epoch, start + worker_id
        return self._run(epoch, start + worker_id, busy, mark) if worker_id < busy else iter(())

    def _run(self, epoch: int, first: int, every: int, mark: tuple[int, int]) -> Iterator[dict]:
        indices = range(first, len(self), every)
        with closing(self._batches(epoch, first, every)) as batches:
            for index, batch in zip(indices, batches, strict=False):
                batch["state"] = self._state(epoch, index + 1)
                self._position = epoch, index + every
                yield batch
        self._shared.finish(mark)

    def _batches(self, epoch: int, first: int, every: int) -> Generator[dict, None, None]:
        """Micro-batches first, first + every, … of an epoch."""
        raise NotImplementedError

    def _identity(self) -> dict:
        """What a state must agree with, by name."""
        raise NotImplementedError

    def _state(self, epoch: int, done: int) -> dict:
        step, micro_batches = divmod(min(done, len(self)), self.micro_batches_per_step)
        return {**self._identity(), "epoch": epoch, "step": step, "lane": micro_batches * self.cut.micro_batch_size}


_OWN = "this dataset has {!r}: make it with the state's value"
_ADVICE = {
    "version": "this code writes and reads {!r}: use the packing-udfs release that saved it",
    "order_version": "this code has {!r}, another order of packs: use the packing-udfs release that saved it",
    "fingerprint": "the manifest here is {!r}, other data: open the revision that the run started with",
}
