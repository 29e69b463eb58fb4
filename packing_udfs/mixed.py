"""Several packed datasets as one: each step comes from one of them, by weight.

    mixed = MixedDataset({"photos": photos, "text": text}, weights={"photos": 3, "text": 1})

A whole step comes from one dataset, on all ranks. So its packs are alike in image work, and each dataset keeps the
order that it has alone. Steps are spread evenly and exactly: the j-th step of a dataset with weight w stands at
(j + ½) / w on a line, and steps are taken in the order of the line. For weights 3 and 1:

    photos at  1/6  1/2  5/6      text at  1/2     ->  photos, photos, text, photos, photos, …  (ties: as given)

After t steps each dataset is within one or two steps of its share. A dataset that ends starts its next epoch. The
state is the number of steps taken; the position in each dataset follows from it. Memory: the sum of the datasets'.
Rejected: drawing at random (the share of a small dataset would vary by the root of its steps), and weighted lanes
inside a step (ranks of photos would have other image work than ranks of text, and weights would be multiples of one
lane).
"""

import math
from collections.abc import Generator, Iterator, Mapping
from fractions import Fraction
from numbers import Rational, Real

from packing_udfs.stream.resume import Cut, StepDataset

__all__ = ["MixedDataset"]


class MixedDataset(StepDataset):
    """Batches of several datasets. Use and resume it as each of them; `batch["dataset"]` is the dataset's name.

    datasets: by name. They must agree on rank, world size, global_batch_size and micro_batch_size.
    weights: steps from each, in proportion; by default the datasets' own steps, so that an epoch has each pack once.
    num_steps: steps in an epoch; by default the sum of the datasets'. `set_epoch(e)` starts at step e · num_steps.

    Raises ValueError for datasets or weights that do not fit.
    """

    def __init__(
        self,
        datasets: Mapping[str, StepDataset],
        weights: Mapping[str, float] | None = None,
        num_steps: int | None = None,
    ):
        self._datasets = dict(datasets)
        if not self._datasets:
            raise ValueError("datasets: at least one is needed")
        weights = {name: d.num_steps for name, d in self._datasets.items()} if weights is None else weights
        is_weight = [isinstance(w, Real) and 0 < w < math.inf for w in weights.values()]
        if set(weights) != set(self._datasets) or not all(is_weight):
            raise ValueError(f"weights={weights!r}: must be a positive number for each of {sorted(self._datasets)}")
        for key in Cut.__dataclass_fields__:
            values = {name: getattr(dataset.cut, key) for name, dataset in self._datasets.items()}
            if len(set(values.values())) > 1:
                raise ValueError(f"datasets: they must agree on {key}, which is {values}")
        super().__init__(next(iter(self._datasets.values())).cut)
        # Fractions, since an order must not depend on rounding.
        self._weights = {n: Fraction(w if isinstance(w := weights[n], Rational) else float(w)) for n in self._datasets}
        self.num_steps = sum(d.num_steps for d in self._datasets.values()) if num_steps is None else num_steps
        if self.num_steps < 1:
            raise ValueError(f"num_steps={num_steps}: must be at least 1")

    def _batches(self, epoch: int, first: int, every: int) -> Generator[dict, None, None]:
        per_step = self.micro_batches_per_step
        schedule = self._schedule(epoch * self.num_steps + first // per_step)
        streams: dict[str, Generator[dict, None, None]] = {}
        step = None
        try:
            for index in range(first, len(self), every):
                if index // per_step != step:
                    step = index // per_step
                    name, taken = next(schedule)
                    dataset = self._datasets[name]
                    of_epoch, at = divmod(taken, dataset.num_steps)
                    if at == 0 and name in streams:
                        streams.pop(name).close()
                    if name not in streams:
                        streams[name] = dataset._batches(of_epoch, at * per_step + index % per_step, every)
                yield {**next(streams[name]), "dataset": name}
        finally:
            for stream in streams.values():
                stream.close()

    def _schedule(self, step: int) -> Iterator[tuple[str, int]]:
        """(dataset, steps taken from it before) for `step` and all steps after it."""
        # At most `step` steps stand before this place on the line, and only a few less.
        place = (step - len(self._weights)) / sum(self._weights.values())
        taken = {name: max(0, math.ceil(place * w - Fraction(1, 2))) for name, w in self._weights.items()}
        for position in range(sum(taken.values()), 1 << 62):
            name = min(taken, key=lambda name: (2 * taken[name] + 1) / self._weights[name])
            if position >= step:
                yield name, taken[name]
            taken[name] += 1

    def _identity(self) -> dict:
        weights = [[name, str(weight)] for name, weight in self._weights.items()]  # a list: its order decides ties
        own = {"weights": weights, "num_steps": self.num_steps}
        return own | {f"{n}.{key}": v for n, d in self._datasets.items() for key, v in d._identity().items()}
