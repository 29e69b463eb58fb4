"""The stages of a comparison: the same samples padded, packed by length, and packed in balance, in numbers.

A stage lays samples into *rows*: a row is a padded sample or a pack, which a rank reads in one step. So all stages have
the same figures:

    waste       share of positions that are padding; a pack counts as seq_len positions
    lost        samples over a budget that the stage keeps
    over budget rows over a vision or image budget that the stage does not keep
    straggler   vision cost, max over 8 ranks / mean, a row a rank
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa
from pydantic import BaseModel

from jobs.shards.settings import settings
from packing_udfs import knapsack, metrics
from packing_udfs.config import Config
from packing_udfs.encode.encoder import Encoder
from packing_udfs.knapsack import Amounts, Budgets
from packing_udfs.knapsack.axes import TOKENS, amounts_of, budgets_of
from packing_udfs.published.pictures import kinds
from packing_udfs.published.straggler import straggler
from packing_udfs.shard.pack_shard import PackedShard
from packing_udfs.shard.row_groups import row_groups

__all__ = ["NUM_RANKS", "Samples", "Stage", "StageFigures", "make_stages", "row_sums", "samples_of", "stage_figures"]

NUM_RANKS = 8


@dataclass(frozen=True)
class Samples:
    """Encoded samples, none of them too long for anything, in the job's order."""

    ids: np.ndarray  # int64 [n], sample_id
    input_ids: list[np.ndarray]
    kinds: list[np.ndarray]  # uint8, as long as input_ids: `pictures.PROMPT`, RESPONSE (trained) or IMAGE
    image_num_tokens: list[np.ndarray]
    images: list[list[dict]]
    amounts: Amounts

    def __len__(self) -> int:
        return len(self.amounts)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [n], tokens."""
        return self.amounts["num_tokens"]

    @property
    def vision_costs(self) -> np.ndarray:
        """int64 [n], in the family's unit."""
        return self.amounts["vision_cost"]

    @property
    def num_images(self) -> np.ndarray:
        """int64 [n]."""
        return self.amounts["num_images"]


@dataclass(frozen=True)
class Stage:
    """One way to lay samples into the rows of a batch."""

    name: str
    title: str
    rows: list[np.ndarray]  # the samples of each row
    widths: np.ndarray  # int64 [rows], positions in each row, tokens and padding
    bound: int | None = None  # on the number of rows
    row_groups: list[np.ndarray] | None = None  # rows that the reader deals together; None deals rows at random


class StageFigures(BaseModel):
    """A stage in numbers; fractions to six places."""

    name: str
    title: str
    num_rows: int
    num_samples: int
    num_samples_lost: int
    num_tokens: int
    num_tokens_lost: int
    num_positions: int
    waste: float | None
    bound: int | None
    over_bound: float | None
    num_rows_over_budget: int
    largest_vision_cost: int
    straggler_8: float | None
    num_steps: int


def samples_of(packed: PackedShard, encoder: Encoder) -> Samples:
    """The samples of a shard's packs."""
    units = [unit for group in packed.groups for pack in group for unit in pack]
    encoded = [unit.encoded for unit in units]
    return Samples(
        ids=np.asarray([unit.sample_id for unit in units], np.int64),
        input_ids=[sample.input_ids for sample in encoded],
        kinds=[kinds(sample.input_ids, sample.labels, encoder.processor.image_token_id) for sample in encoded],
        image_num_tokens=[sample.image_num_tokens for sample in encoded],
        images=[unit.images for unit in units],
        amounts=amounts_of(encoded),
    )


def make_stages(samples: Samples, config: Config) -> list[Stage]:
    """The stages from naive padding on, each a layout of the samples that it can take."""
    seq_len, all_budgets = config.pack.seq_len, settings(config).budgets
    tokens_only = Budgets(num_tokens=seq_len)
    fits = np.flatnonzero(~knapsack.too_large(samples.amounts, tokens_only))
    fits_all = np.flatnonzero(~knapsack.too_large(samples.amounts, all_budgets))
    batches = [samples.lengths[i : i + metrics.NAIVE_BATCH].max() for i in range(0, len(samples), metrics.NAIVE_BATCH)]
    naive = np.repeat(np.asarray(batches, np.int64), metrics.NAIVE_BATCH)[: len(samples)]

    def of_width(name: str, title: str, rows: list[np.ndarray], bound: int | None = None, groups=None) -> Stage:
        return Stage(name, title, rows, np.full(len(rows), seq_len, np.int64), bound, groups)

    stages = [
        Stage("naive_padding", "Naive padding", list(np.arange(len(samples))[:, None]), naive),
        of_width("constrained_padding", "Padding to seq_len", list(fits[:, None])),
    ]
    fitting = samples.amounts.take(fits)
    lengths_bound = knapsack.bound(fitting, tokens_only)
    for name, title in (("greedy", "Greedy"), ("first_fit_decreasing", "First-fit decreasing")):
        bins = knapsack.ALGORITHMS[name](fitting, tokens_only)
        stages.append(of_width(name, title, [fits[members] for members in bins], lengths_bound))
    fitting = samples.amounts.take(fits_all)
    bins = knapsack.balanced(fitting, all_budgets)
    costs = fitting.of_packs("vision_cost", bins)
    groups = row_groups(costs, config.shards.num_packs_per_row_group, config.shards.seed)
    bound = knapsack.bound(fitting, all_budgets)
    rows = [fits_all[members] for members in bins]
    return [*stages, of_width("balanced", "Balanced packing", rows, bound, groups)]


def stage_figures(
    stage: Stage, samples: Samples, config: Config, global_batch_size: int, scale: Fraction
) -> StageFigures:
    """A stage in numbers. `scale`: rows of the sources for each row read, to estimate steps of an epoch."""
    num_rows = len(stage.rows)
    used = np.concatenate([np.empty(0, np.int64), *stage.rows])
    num_tokens, num_positions = int(samples.lengths[used].sum()), int(stage.widths.sum())
    costs = row_sums(stage, samples.vision_costs)
    over = np.zeros(num_rows, bool)
    for name, budget in budgets_of(config.pack).items():
        if name != TOKENS:
            over |= row_sums(stage, samples.amounts[name]) > budget
    return StageFigures(
        name=stage.name,
        title=stage.title,
        num_rows=num_rows,
        num_samples=len(used),
        num_samples_lost=len(samples) - len(used),
        num_tokens=num_tokens,
        num_tokens_lost=int(samples.lengths.sum()) - num_tokens,
        num_positions=num_positions,
        waste=_fraction(num_positions - num_tokens, num_positions),
        bound=stage.bound,
        over_bound=None if stage.bound is None else _fraction(num_rows - stage.bound, stage.bound),
        num_rows_over_budget=int(over.sum()),
        largest_vision_cost=int(costs.max(initial=0)),
        straggler_8=_straggler(stage, costs, config.shards.seed),
        num_steps=math.ceil(num_rows * scale / global_batch_size),
    )


def row_sums(stage: Stage, values: np.ndarray) -> np.ndarray:
    """A value of samples summed over each row (int64 [rows])."""
    return np.asarray([values[row].sum() for row in stage.rows], np.int64)


def _straggler(stage: Stage, vision_costs: np.ndarray, seed: int) -> float | None:
    """The straggler of NUM_RANKS ranks with a row each a step; None for fewer rows than ranks.

    Row groups are dealt as the reader does, rows without row groups at random, as a shuffling loader does.
    """
    if len(stage.rows) < NUM_RANKS:
        return None
    groups = [np.arange(len(stage.rows))] if stage.row_groups is None else stage.row_groups
    table = pa.table({
        "file": ["data"] * len(groups),
        "num_rows": pa.array([len(group) for group in groups], pa.int32()),
        "vision_cost": pa.array([vision_costs[group] for group in groups], pa.list_(pa.int32())),
    })  # fmt: skip
    return round(straggler(table, NUM_RANKS, seed=seed, balance=stage.row_groups is not None), 6)


def _fraction(part: int, whole: int) -> float | None:
    """part / whole to six places; None of nothing."""
    return round(part / whole, 6) if whole else None
