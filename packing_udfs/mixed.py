"""Several packed datasets as one, each step from one of them, by weight.

    mixed = MixedDataset({"photos": photos, "text": text}, weights={"photos": 3, "text": 1})

A whole step comes from one dataset, on all ranks: so its packs are alike in image work, as they are in the dataset
alone, and the order inside each dataset is that of the dataset alone. Steps are spread evenly and exactly: the j-th
step of a dataset of weight w stands at (j + ½) / w on a line, and steps are taken as they stand there. Three to one:

    photos at  1/6  1/2  5/6      text at  1/2     ->  photos, photos, text, photos, photos, …  (ties: as given)

so after t steps each dataset is within one step or two of its share. A dataset that comes to its end starts its next
epoch. The state is the number of steps taken; what each dataset has given follows from it. Memory: the sum of the
datasets'. Rejected: drawing at random (the share of a small dataset then varies by the root of its steps), and lanes
by weight inside a step (a rank whose lanes are all photos has other image work than one whose lanes are text, and
weights would be multiples of one lane).
"""

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from numbers import Rational, Real

from packing_udfs.stream.resume import StepDataset


class MixedDataset(StepDataset):
    """Batches of several datasets: see the module docstring. Used and resumed as each of them is.

    datasets: by name. They must agree on rank, world size, global_batch_size and micro_batch_size.
    weights: steps from each, in proportion; by default the datasets' own steps, so that an epoch has each pack once.
    num_steps: steps in an epoch; by default the sum of the datasets'. `set_epoch(e)` starts at step e · num_steps.

    `batch["dataset"]` is the name. Loss by source: `packing_udfs.adapters.loss_by_source`.
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
        cut, *_ = cuts = {name: dataset.cut for name, dataset in self._datasets.items()}.values()
        for key in cut:
            if len({of_one[key] for of_one in cuts}) > 1:
                values = {name: dataset.cut[key] for name, dataset in self._datasets.items()}
                raise ValueError(f"datasets: they must agree on {key}, which is {values}")
        num_lanes = cut["global_batch_size"] // cut["world_size"]
        super().__init__(cut["rank"], cut["world_size"], num_lanes, cut["micro_batch_size"])
        # Exact: an order may not round.
        self._weights = {n: Fraction(w if isinstance(w := weights[n], Rational) else float(w)) for n in self._datasets}
        self.num_steps = sum(d.num_steps for d in self._datasets.values()) if num_steps is None else num_steps
        if self.num_steps < 1:
            raise ValueError(f"num_steps={num_steps}: must be at least 1")

    def _batches(self, epoch: int, first: int, every: int) -> Iterator[dict]:
        per_step = self.micro_batches_per_step
        schedule = self._schedule(epoch * self.num_steps + first // per_step)
        streams: dict[str, Iterator[dict]] = {}
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
        """(dataset, steps taken from it before) of `step` and all that follow."""
        # Before this place on the line there are at most `step` steps, and all but a few of them.
        place = (step - len(self._weights)) / sum(self._weights.values())
        taken = {name: max(0, math.ceil(place * w - Fraction(1, 2))) for name, w in self._weights.items()}
        for position in range(sum(taken.values()), 1 << 62):
            name = min(taken, key=lambda name: (2 * taken[name] + 1) / self._weights[name])
            if position >= step:
                yield name, taken[name]
            taken[name] += 1

    def _identity(self) -> dict:
        weights = [[name, str(weight)] for name, weight in self._weights.items()]  # a list: ties go by their order
        own = {"weights": weights, "num_steps": self.num_steps}
        return own | {f"{n}.{key}": v for n, d in self._datasets.items() for key, v in d._identity().items()}
