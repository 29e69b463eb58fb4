"""Steps, workers and resuming: what every dataset here has in common, whatever its batches are.

A position is two integers, an epoch and the micro-batches done in it. `set_epoch` and `load_state_dict` are called in
the training loop's process, but iterations begin in DataLoader workers, which may have been started long before
(persistent workers). Five integers in shared memory tell them; they cost nothing per batch. Rejected: an attribute of
the dataset (persistent workers keep the copy that they started with), and taking a loaded position away when an
iteration begins (a look at the first batch would lose it).

DataLoader takes batches from its workers in turn, so micro-batch j of a step always belongs to worker j mod workers,
and the order of batches does not depend on their number.
"""

import logging
import multiprocessing
from collections.abc import Iterator
from contextlib import closing
from typing import TypedDict

import torch
from torch.utils.data import IterableDataset, get_worker_info

log = logging.getLogger(__name__)

STATE_VERSION = 2
_MOST = (1 << 31) - 1  # epochs, and lanes of a rank


class State(TypedDict):
    """A position in the order of packs, the same on every rank: what `PackedDataset.state_dict` gives."""

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
    lane: int  # of the rank's lanes of that step, those that are done: 0 except between micro-batches


class StateError(ValueError):
    """A state that does not belong to this dataset, or that cannot be had here; the message says what differs."""


class SharedPosition:
    """Where the next iteration starts, in memory that DataLoader workers share, persistent ones too."""

    # `generation` counts the calls of `start`; `finished_by` is who iterated the epoch of this one to its end, or 0.
    _FIELDS = ("epoch", "done", "generation", "finished_by", "is_read_by_workers")

    def __init__(self):
        self._values = torch.zeros(len(self._FIELDS), dtype=torch.int64).share_memory_()
        self._finished = -1  # the generation whose epoch has been iterated to its end by this process
        self._num_begun = 0  # iterations in this process
        self._own: tuple[int, int] | None = None  # (generation, micro-batches done) that this worker was given

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        if not self._values.is_shared():  # a deep copy, or plain pickle
            self._values.share_memory_()

    def __getattr__(self, name: str) -> int:
        if name not in SharedPosition._FIELDS:
            raise AttributeError(name)
        return int(self._values[self._FIELDS.index(name)])

    def start(self, epoch: int, done: int) -> None:
        """The next iteration is of `epoch`, after `done` micro-batches."""
        self._values[:] = torch.tensor([epoch, done, self.generation + 1, 0, 0])

    def start_here(self, epoch: int, done: int) -> None:
        """The same for the next iteration of this worker alone: StatefulDataLoader gives each a position of its own."""
        self._values[self._FIELDS.index("epoch")] = epoch
        self._own = self.generation, done

    def begin(self, worker) -> tuple[int, int, tuple[int, int]]:
        """(epoch, micro-batches done) for an iteration that begins here, and what `finish` is to be told.

        A position that was loaded is where an epoch goes on, not where epochs begin: once an iteration has come to the
        end, the next one starts at 0. Workers come to it before the loop does: of an iteration that is left in the last
        batches of an epoch, which are being fetched, the next one starts at 0 as well.
        """
        self._num_begun += 1
        mark = self.generation, _iteration(worker, self._num_begun)
        self._values[self._FIELDS.index("is_read_by_workers")] = worker is not None
        if self._own and self._own[0] == self.generation:
            return self.epoch, self._own[1], mark
        is_over = self._finished == self.generation or self.finished_by not in (0, mark[1])
        return self.epoch, 0 if is_over else self.done, mark

    def finish(self, mark: tuple[int, int]) -> None:
        """An iteration came to the end of its epoch. It is nobody's business if another position was set meanwhile."""
        if mark[0] == self.generation:
            self._own = None
            self._finished, self._values[self._FIELDS.index("finished_by")] = mark


def _iteration(worker, num_begun: int) -> int:
    """What the workers of one iteration have in common, and no other iteration's: one that starts late is not taken for
    the next iteration. -1 outside workers.

    Workers that are started together have successive numbers among the processes of their parent, and persistent ones
    begin together. (DataLoader's base seed is the same in each epoch where each seeds torch anew.)
    """
    if worker is None:
        return -1
    *_, number = 0, *multiprocessing.current_process()._identity
    return (number - worker.id) << 32 | num_begun


class StepDataset(IterableDataset):
    """Batches that belong to steps, this rank's part of them, and a state after each: `batch["state"]`.

    A rank's part of a step is `num_lanes` packs, in micro-batches. A subclass gives `num_steps`, `_identity()` (what a
    state must agree with, by name) and `_batches(epoch, first, every)` (micro-batches first, first + every, … of an
    epoch, as dicts).
    """

    num_steps: int

    def __init__(self, rank: int, world_size: int, num_lanes: int, micro_batch_size: int):
        self.cut = {
            "rank": rank,
            "world_size": world_size,
            "global_batch_size": world_size * num_lanes,
            "micro_batch_size": micro_batch_size,
        }
        self._rank, self._num_lanes, self._micro_batch_size = rank, num_lanes, micro_batch_size
        self._shared = SharedPosition()
        self._position: tuple[int, int] | None = None  # (epoch, micro-batches done in it) of the iteration here

    @property
    def micro_batches_per_step(self) -> int:
        """Batches of a step on a rank: what gradients are accumulated over."""
        return self._num_lanes // self._micro_batch_size

    def __len__(self) -> int:
        """Batches in an epoch. The same on every rank."""
        return self.num_steps * self.micro_batches_per_step

    def seek(self, epoch: int, step: int = 0) -> None:
        """Start at `step` of `epoch` next time, also in persistent workers."""
        self._shared.start(epoch, step * self.micro_batches_per_step)
        self._position = None

    def set_epoch(self, epoch: int) -> None:
        """Start at step 0 of `epoch` next time. After `load_state_dict`, the epoch of the state keeps its position."""
        if epoch != self._shared.epoch:
            self.seek(epoch)

    def state_at(self, epoch: int, step: int) -> dict:
        """The state of a run that goes on at `step` of `epoch`."""
        return self._state(epoch, step * self.micro_batches_per_step)

    def state_dict(self) -> dict:
        """The position, in the process that iterates. Raises StateError where DataLoader workers do: they are ahead of
        the loop, so what counts there is `batch["state"]`."""
        worker = get_worker_info()
        if worker is None and self._shared.is_read_by_workers:
            raise StateError(
                "the batches come from DataLoader workers, which are ahead of the loop: use batch['state']"
            )
        if self._position is None:
            return self._state(self._shared.epoch, self._shared.done)
        epoch, done = self._position
        # In a worker, StatefulDataLoader gives the state back to this very worker, which will add its number again.
        return self._state(epoch, done - (worker.id if worker else 0))

    def load_state_dict(self, state: dict) -> None:
        """Go on after `state`: the next iteration gives the batches that would have come. The world size, workers,
        micro_batch_size and prefetch may differ from those of the run that saved it. Raises StateError that says what
        may not."""
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
        micro_batches, over = divmod(state["lane"], self._micro_batch_size)
        if over or state["lane"] >= self._num_lanes or (state["lane"] and state["step"] == self.num_steps):
            raise StateError(
                f"reader state: it was taken between the micro-batches of a step, after {state['lane']} lanes of a "
                f"rank, which is no whole number of micro-batches here; use the state of a finished step"
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
                *(num_workers - busy, num_workers, per_step, self._micro_batch_size, busy),
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

    def _batches(self, epoch: int, first: int, every: int) -> Iterator[dict]:
        raise NotImplementedError

    def _identity(self) -> dict:
        raise NotImplementedError

    def _state(self, epoch: int, done: int) -> dict:
        step, micro_batches = divmod(min(done, len(self)), self.micro_batches_per_step)
        return {**self._identity(), "epoch": epoch, "step": step, "lane": micro_batches * self._micro_batch_size}


_OWN = "this dataset has {!r}: make it with the value of the state"
_ADVICE = {
    "version": "this code writes and reads {!r}: use the packing-udfs release that saved it",
    "order_version": "this code has {!r} and another order of packs: use the packing-udfs release that saved it",
    "fingerprint": "the manifest here is {!r}: the data is another; open the revision that the run was started with",
}
