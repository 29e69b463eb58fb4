"""Where the next iteration of a dataset starts, known to every process that iterates it.

`set_epoch` and `load_state_dict` are called in the training loop's process, but iterations begin in DataLoader workers,
which may have been started long before (persistent workers). Five integers in shared memory tell them; they cost
nothing per batch. Rejected: an attribute of the dataset (persistent workers keep the copy that they started with), and
taking a loaded position away when an iteration begins (a look at the first batch would lose it).
"""

import torch


class SharedPosition:
    """Where the next iteration starts, in memory that DataLoader workers share, persistent ones too."""

    # `generation` counts the calls of `start`; `finished_by` is who iterated the epoch of this one to its end, or 0.
    _FIELDS = ("epoch", "done", "generation", "finished_by", "is_read_by_workers")

    def __init__(self):
        self._values = torch.zeros(len(self._FIELDS), dtype=torch.int64).share_memory_()
        self._finished = -1  # the generation whose epoch has been iterated to its end by this process

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

    def begin(self, worker) -> tuple[int, int]:
        """(epoch, micro-batches done) for an iteration that begins here.

        A position that was loaded is where an epoch goes on, not where epochs begin: once an iteration has come to the
        end, the next one starts at 0. Workers of one iteration know each other by DataLoader's base seed, so that one
        that starts late is not taken for the next iteration.
        """
        self._values[self._FIELDS.index("is_read_by_workers")] = worker is not None
        is_over = self._finished == self.generation or self.finished_by not in (0, _token(worker))
        return self.epoch, 0 if is_over else self.done

    def finish(self, worker) -> None:
        """An iteration came to the end of its epoch."""
        self._finished = self.generation
        self._values[self._FIELDS.index("finished_by")] = _token(worker)


def _token(worker) -> int:
    """What the workers of one iteration have in common, and -1 outside workers."""
    return -1 if worker is None else worker.seed - worker.id
