"""What the rows of a source add up to and how many packs they make, from a seeded sample of them, with intervals.

Sums over the drawn blocks (`jobs.forecast.blocks`) are scaled to all rows of their source, its limit and its weight.
Packs do not follow from such sums alone, because a shard of few samples packs worse. So shards of the run's own size
are drawn from the samples and packed by the run's algorithm. *Demand* is the number of packs that the scarcest budget
asks for, if packs could be full. The ratio of packs to demand is carried over to the run:

    packs = demand of all samples × packs / demand, both summed over the drawn shards

and never more than there are samples. A mean of the shards' own ratios is wrong: a shard of one short sample asks for
a hundredth of a pack and takes a whole one.

An interval holds 90 % of NUM_REPLICATES estimates from blocks drawn again with replacement (a bootstrap over blocks,
because neighbours are alike). Each is drawn towards the estimate by √(share of rows that were not read), and widened
for few blocks as Student's t is. To that comes what hashes decide: the rows that a weight takes, the validation rows,
and the samples of each shard. For sources that were read as a whole nothing else is uncertain.

Only duplicates within the sample are seen: a source full of them makes fewer packs than the forecast says.

Cost: the drawn blocks' row groups over the network, at most MAX_BYTES of rows, and a millisecond a row.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from pydantic import BaseModel

from jobs.forecast.blocks import Block, draw_blocks
from jobs.shards.plan import ShardPlan
from jobs.shards.settings import settings
from jobs.sources.pinned import PinnedSource
from jobs.sources.sample import share_out
from packing_udfs import knapsack
from packing_udfs.config import Config
from packing_udfs.encode.encoder import Encoder
from packing_udfs.hashing import hashes
from packing_udfs.knapsack import axes
from packing_udfs.shard.pack_shard import PackSettings

__all__ = ["Estimate", "Sample", "Totals", "demand", "draw", "interval", "packs", "totals"]

MAX_BYTES = 1 << 30  # of the rows of a sample
LEAST_ROWS = 32  # of a source, however small its share
NUM_REPLICATES = 400
NUM_DRAWN_SHARDS = 8  # at least …
LEAST_DRAWN = 512  # … and so many samples in them
NUM_DEALT_SHARDS = 64  # of sources that were read as a whole
INTERVAL, Z95 = (5, 95), 1.645  # percentiles, and the normal distribution's

# Salts of the draws.
_BLOCKS, _BOOTSTRAP, _SHARDS, _RATIOS, _SIZES, _USED, _SPLIT = range(7)


class Estimate(BaseModel):
    """An estimate and its 90 % interval."""

    estimate: int | float
    low: int | float
    high: int | float


@dataclass(frozen=True)
class Sample:
    """The blocks drawn of one source, and how many of its rows the run would use."""

    pinned: PinnedSource
    blocks: list[Block]

    @property
    def num_rows_read(self) -> int:
        return sum(block.num_rows for block in self.blocks)

    @property
    def num_rows_used(self) -> float:
        """Expected rows and copies after limit and weight."""
        share = self.pinned.num_sampled_bytes / self.pinned.num_bytes if self.pinned.num_bytes else 1.0
        return self.pinned.num_rows * share

    @property
    def spread(self) -> float:
        """Standard deviation of `num_rows_used`: hashes choose the rows beyond whole copies of the source."""
        share = self.num_rows_used / self.pinned.num_rows % 1
        return math.sqrt(self.pinned.num_rows * share * (1 - share))

    @property
    def unread(self) -> float:
        """Share of rows that was not read."""
        return 1 - self.num_rows_read / self.pinned.num_rows


def draw(
    sources: Sequence[PinnedSource], max_rows: int, encoder: Encoder, how: PackSettings, retry_seconds: float
) -> list[Sample]:
    """Blocks of each source, rows shared out by the sources' sizes. Raises SourceError when rows cannot be read."""
    shares = share_out(max_rows, [source.num_rows for source in sources])
    total, samples = max(1, sum(shares)), []
    for i, (source, share) in enumerate(zip(sources, shares, strict=True)):
        if source.num_rows:
            num_rows, max_bytes = min(source.num_rows, max(LEAST_ROWS, share)), MAX_BYTES * max(1, share) // total
            key = (how.seed, _BLOCKS, i)
            blocks = draw_blocks(source, num_rows, max_bytes, encoder, how, key, f"sources.{i}", retry_seconds)
            samples.append(Sample(source, list(blocks)))
    return samples


@dataclass(frozen=True)
class Totals:
    """Sums over all rows that the run would use, float [1 + NUM_REPLICATES] each: the estimate, then its replicates."""

    num_rows: np.ndarray
    num_samples: np.ndarray
    num_quarantined: np.ndarray
    num_duplicates: np.ndarray
    num_label_tokens: np.ndarray
    num_bytes: np.ndarray
    num_bytes_written: np.ndarray
    amounts: dict[str, np.ndarray]
    """By axis."""


def _totals_of(block: Block) -> list[int]:
    """Of all but axes in the order of `Totals`, then of each axis."""
    return [
        block.num_rows, len(block.amounts), sum(block.quarantine.values()), block.num_duplicates,
        block.num_label_tokens, block.num_bytes, block.num_bytes_written,
        *(int(block.amounts[axis.name].sum()) for axis in axes.AXES),
    ]  # fmt: skip


def totals(samples: Sequence[Sample], seed: int) -> Totals:
    """What the drawn blocks say of all rows that the run would use."""
    names, num_plain = [axis.name for axis in axes.AXES], len(fields(Totals)) - 1
    whole = np.zeros((1 + NUM_REPLICATES, num_plain + len(names)))
    for i, sample in enumerate(samples):
        values = np.asarray([_totals_of(block) for block in sample.blocks], np.float64)
        drawn = hashes(NUM_REPLICATES * len(values), seed, _BOOTSTRAP, i) % np.uint64(len(values))
        sums = np.vstack([values.sum(axis=0), values[drawn.astype(np.int64)].reshape(-1, *values.shape).sum(axis=1)])
        scaled = sums * (sample.num_rows_used / sums[:, :1])
        likely = scaled[0] + (scaled - scaled[0]) * math.sqrt(sample.unread) * _widened(len(values))
        whole += likely * (1 + _normal(sample.spread, seed, _USED, i) / max(1.0, sample.num_rows_used))[:, None]
    return Totals(*whole.T[:num_plain], amounts=dict(zip(names, whole.T[num_plain:], strict=True)))


def _widened(num_blocks: int) -> float:
    """How much wider than a bootstrap an interval from few blocks must be: √(n / (n − 1)), times Student's t over z.

    The second factor by its series, 1 + (z² + 1) / 4 (n − 1); 16 blocks give 1.10, 64 give 1.02.
    """
    freedom = max(1, num_blocks - 1)
    return math.sqrt((freedom + 1) / freedom) * (1 + (Z95**2 + 1) / (4 * freedom))


def demand(budgets: knapsack.Budgets, sums: Mapping[str, int | np.ndarray]) -> np.ndarray:
    """Packs that the scarcest budget asks for. sums: of samples, by axis; or arrays of such sums."""
    return np.max(np.stack([np.asarray(sums[name]) / budget for name, budget in budgets.items()]), axis=0)


def packs_and_demand(samples: Sequence[Sample], how: PackSettings, num_shards: float, num_samples: float) -> np.ndarray:
    """float [shards, 2]: packs and demand of some shards as a run of `num_samples` samples in `num_shards` has them."""
    blocks = [block for sample in samples for block in sample.blocks]
    amounts = knapsack.Amounts.concatenated([block.amounts for block in blocks])
    weights = np.concatenate([
        np.full(len(block.amounts), sample.num_rows_used / sample.num_rows_read)
        for sample in samples for block in sample.blocks
    ])  # fmt: skip
    size = num_samples / num_shards
    found = []
    for members in _drawn_shards(weights, size, how.seed, [sample.unread for sample in samples]):
        some = amounts.take(members)
        options = {"attention_weight": how.attention_weight} if how.algorithm == "balanced" else {}
        bins = knapsack.ALGORITHMS[how.algorithm](some, how.budgets, **options)
        sums = {name: int(values.sum()) for name, values in some.by_axis.items()}
        found.append((len(bins), demand(how.budgets, sums)))
    return np.asarray(found, np.float64)


def _drawn_shards(weights: np.ndarray, mean: float, seed: int, unread: list[float]) -> list[np.ndarray]:
    """Samples of some shards of a run with `mean` samples a shard, no shard empty.

    When these are all samples of the run they are dealt by hash, as the run deals them, several times for few shards.
    Else shards are drawn by weight.
    """
    num_drawn = max(NUM_DRAWN_SHARDS, math.ceil(LEAST_DRAWN / max(1.0, mean)))
    if not any(unread) and (weights == 1).all():
        num_shards, dealt = max(1, round(len(weights) / mean)), []
        for deal in range(max(1, NUM_DEALT_SHARDS // num_shards)):
            shard_of = hashes(len(weights), seed, _SHARDS, deal) % np.uint64(num_shards)
            order = np.argsort(shard_of, kind="stable")
            dealt += np.split(order, np.flatnonzero(np.diff(shard_of[order])) + 1)
        return dealt[: max(num_drawn, NUM_DEALT_SHARDS)]
    sizes = _sizes(mean, num_drawn, seed)
    ends = np.cumsum(weights)
    drawn = np.searchsorted(ends, _uniform(int(sizes.sum()), seed, _SHARDS) * ends[-1], side="right")
    return np.split(drawn.clip(max=len(ends) - 1), np.cumsum(sizes)[:-1])


def _sizes(mean: float, num: int, seed: int) -> np.ndarray:
    """Samples in each of `num` shards that are not empty, int64: Poisson's distribution without its 0.

    With one sample a shard on average a third of the shards is empty, and the others have 1.6 samples each.
    """
    k = np.arange(1, math.ceil(mean + 12 * math.sqrt(mean)) + 12)
    log_p = k * math.log(mean) - np.cumsum(np.log(k))
    cdf = np.cumsum(np.exp(log_p - log_p.max()))
    return 1 + np.searchsorted(cdf[:-1], _uniform(num, seed, _SIZES) * cdf[-1], side="right")


def _uniform(num: int, *key: int) -> np.ndarray:
    return hashes(num, *key).astype(np.float64) / 2.0**64


def _normal(deviation: float, *key: int) -> np.ndarray:
    """0 for the estimate, then a draw of a normal distribution for each replicate (a sum of twelve uniform ones)."""
    drawn = _uniform(12 * NUM_REPLICATES, *key).reshape(NUM_REPLICATES, 12).sum(axis=1) - 6
    return deviation * np.concatenate([[0.0], drawn])


def packs(samples: Sequence[Sample], config: Config, plan: ShardPlan, sums: Totals) -> tuple[np.ndarray, np.ndarray]:
    """Packs for training and for validation, float [1 + NUM_REPLICATES] each."""
    how = settings(config, [sample.pinned for sample in samples])
    asked = demand(how.budgets, sums.amounts)
    fraction, num_samples = plan.validation_fraction, float(sums.num_samples[0])
    deviation = math.sqrt(fraction * (1 - fraction) / max(1.0, num_samples))
    of_validation = fraction + _normal(deviation, how.seed, _SPLIT)

    def of_split(share: np.ndarray, num_shards: int) -> np.ndarray:
        most = sums.num_samples * share
        return np.minimum(asked * share * _packs_per_demand(samples, how, num_shards, float(most[0])), most)

    return of_split(1 - of_validation, plan.num_train), of_split(of_validation, plan.num_validation)


def _packs_per_demand(samples: Sequence[Sample], how: PackSettings, num_shards: int, num_samples: float) -> np.ndarray:
    """float [1 + NUM_REPLICATES]; 0 without shards.

    A replicate has as many shards as make both errors: there are few drawn shards, and the run's own are few.
    """
    if not num_shards:
        return np.zeros(1 + NUM_REPLICATES)
    found = packs_and_demand(samples, how, num_shards, num_samples)
    num = max(1, round(1 / (1 / len(found) + 1 / num_shards)))
    drawn = hashes(NUM_REPLICATES * num, how.seed, _RATIOS, num_shards) % np.uint64(len(found))
    again = found[drawn.astype(np.int64)].reshape(NUM_REPLICATES, num, 2).sum(axis=1)
    num_packs, of_shards = np.vstack([found.sum(axis=0), again]).T
    return num_packs / of_shards


def interval(values: np.ndarray, *, digits: int | None = None) -> Estimate:
    """The estimate and the percentiles of its replicates; whole numbers, rounded outwards, unless `digits` is given."""
    low, high = np.percentile(values[1:], INTERVAL)
    estimate, low, high = float(values[0]), float(min(low, values[0])), float(max(high, values[0]))
    if digits is None:
        return Estimate(estimate=round(estimate), low=math.floor(low + 1e-6), high=math.ceil(high - 1e-6))
    return Estimate(estimate=round(estimate, digits), low=round(low, digits), high=round(high, digits))
