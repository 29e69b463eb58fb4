"""The stages of a comparison: the same samples padded, packed by length, and packed in balance, in numbers.

A stage lays samples into *rows*: what one rank reads in one step of one sequence, a padded sample or a pack. So one
set of figures holds for all of them:

    waste       share of positions that are padding; a pack counts as seq_len positions
    lost        samples that the stage cannot take, because they are over a budget that it keeps
    over budget rows whose vision cost or images are over a budget that it does not keep
    straggler   vision cost, max over 8 ranks / mean, a row a rank
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa

from packing_udfs import knapsack, metrics
from packing_udfs.config import INT32_LIMIT, Config
from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.family import Size
from packing_udfs.knapsack import Budgets
from packing_udfs.published import straggler as straggler_module
from packing_udfs.shard import row_groups as row_groups_module
from packing_udfs.shard.pack_shard import PackedShard

NUM_RANKS = 8


@dataclass(frozen=True)
class Samples:
    """Encoded samples, none of them too long for anything, in the job's order."""

    ids: np.ndarray  # int64 [n], sample_id
    input_ids: list[np.ndarray]
    is_trained: list[np.ndarray]  # bool, as long as input_ids
    is_image: list[np.ndarray]  # bool, the placeholders that become an image's features
    image_num_tokens: list[np.ndarray]
    images: list[list[dict]]
    lengths: np.ndarray  # int64 [n], tokens
    vision_costs: np.ndarray  # int64 [n], in the family's unit
    num_images: np.ndarray  # int64 [n]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def demand(self) -> dict[str, np.ndarray]:
        """What the knapsack's functions take beside lengths."""
        return {"vision_costs": self.vision_costs, "num_images": self.num_images}


@dataclass(frozen=True)
class Stage:
    """One way to lay samples into the rows of a batch."""

    name: str
    title: str
    rows: list[np.ndarray]  # the samples of each row
    widths: np.ndarray  # int64 [rows], positions in each row, tokens and padding
    bound: int | None = None  # on the number of rows
    row_groups: list[np.ndarray] | None = None  # rows that the reader deals together; None deals rows at random


def flatten(packed: PackedShard, encoder: Encoder) -> Samples:
    """The samples of a shard's packs."""
    table = pa.concat_tables(packed.row_groups()).combine_chunks()

    def flat(name: str) -> pa.Array:
        return table[name].combine_chunks().flatten()

    def cut(values: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
        return np.split(values, np.cumsum(counts)[:-1])

    lengths = flat("sample_lengths").to_numpy().astype(np.int64)
    num_images = flat("sample_num_images").to_numpy().astype(np.int64)
    ids = flat("input_ids").to_numpy()
    sizes, images = flat("image_sizes").to_pylist(), iter(flat("images").to_pylist())
    starts = np.cumsum(num_images) - num_images
    costs = np.zeros(len(lengths), np.int64)
    for i in np.flatnonzero(num_images).tolist():
        of_sample = sizes[starts[i] : starts[i] + num_images[i]]
        expanded = encoder.family.expand(tuple(Size(**size) for size in of_sample))
        costs[i] = sum(image.vision_cost for image in expanded)
    assert costs.sum() == sum(table["vision_cost"].to_pylist())
    return Samples(
        ids=flat("sample_ids").to_numpy(),
        input_ids=cut(ids, lengths),
        is_trained=cut(flat("labels").to_numpy() >= 0, lengths),
        is_image=cut(ids == encoder.processor.image_token_id, lengths),
        image_num_tokens=cut(flat("image_num_tokens").to_numpy(), num_images),
        images=[[next(images) for _ in range(count)] for count in num_images],
        lengths=lengths,
        vision_costs=costs,
        num_images=num_images,
    )


def make_stages(samples: Samples, config: Config) -> list[Stage]:
    """The stages from naive padding on, each a layout of the samples that it can take."""
    seq_len, all_budgets = config.pack.seq_len, _budgets(config)
    tokens_only = Budgets(seq_len=seq_len)
    fits = np.flatnonzero(~knapsack.too_large(samples.lengths, tokens_only))
    fits_all = np.flatnonzero(~knapsack.too_large(samples.lengths, all_budgets, **samples.demand))
    batches = [samples.lengths[i : i + metrics.NAIVE_BATCH].max() for i in range(0, len(samples), metrics.NAIVE_BATCH)]
    naive = np.repeat(np.asarray(batches, np.int64), metrics.NAIVE_BATCH)[: len(samples)]
    stages = [
        Stage("naive_padding", "Naive padding", [np.asarray([i]) for i in range(len(samples))], naive),
        _packed("constrained_padding", "Padding to seq_len", [np.asarray([i]) for i in fits.tolist()], seq_len),
    ]
    lengths_bound = knapsack.bound(samples.lengths[fits], tokens_only)
    for name, title in (("greedy", "Greedy"), ("first_fit_decreasing", "First-fit decreasing")):
        bins = knapsack.ALGORITHMS[name](samples.lengths[fits], tokens_only)
        stages.append(_packed(name, title, [fits[members] for members in bins], seq_len, lengths_bound))
    demand = {name: values[fits_all] for name, values in samples.demand.items()}
    bins = knapsack.ALGORITHMS["balanced"](samples.lengths[fits_all], all_budgets, **demand)
    costs = np.asarray([demand["vision_costs"][members].sum() for members in bins], np.int64)
    groups = row_groups_module.row_groups(costs, config.shards.num_packs_per_row_group, config.shards.seed)
    bound = knapsack.bound(samples.lengths[fits_all], all_budgets, **demand)
    rows = [fits_all[members] for members in bins]
    return [*stages, _packed("balanced", "Balanced packing", rows, seq_len, bound, groups)]


def _packed(name, title, rows, seq_len, bound=None, groups=None) -> Stage:
    return Stage(name, title, rows, np.full(len(rows), seq_len, np.int64), bound, groups)


def _budgets(config: Config) -> Budgets:
    pack = config.pack
    return Budgets(seq_len=pack.seq_len, vision_cost=pack.max_vision_cost, num_images=pack.max_images_per_pack)


def stage_figures(stage: Stage, samples: Samples, config: Config, global_batch_size: int, scale: Fraction) -> dict:
    """A stage in numbers. `scale`: rows of the sources for each row read, to estimate steps of an epoch."""
    num_rows = len(stage.rows)
    used = np.concatenate([np.empty(0, np.int64), *stage.rows])
    num_tokens, num_positions = int(samples.lengths[used].sum()), int(stage.widths.sum())
    costs = row_sums(stage, samples.vision_costs)
    over = costs > (config.pack.max_vision_cost or INT32_LIMIT)
    over |= row_sums(stage, samples.num_images) > (config.pack.max_images_per_pack or INT32_LIMIT)
    return {
        "name": stage.name,
        "title": stage.title,
        "num_rows": num_rows,
        "num_samples": len(used),
        "num_samples_lost": len(samples) - len(used),
        "num_tokens": num_tokens,
        "num_tokens_lost": int(samples.lengths.sum()) - num_tokens,
        "num_positions": num_positions,
        "waste": fraction(num_positions - num_tokens, num_positions),
        "bound": stage.bound,
        "over_bound": None if stage.bound is None else fraction(num_rows - stage.bound, stage.bound),
        "num_rows_over_budget": int(over.sum()),
        "largest_vision_cost": int(costs.max(initial=0)),
        "straggler_8": straggler(stage, costs, config.shards.seed),
        "num_steps": math.ceil(num_rows * scale / global_batch_size),
    }


def row_sums(stage: Stage, values: np.ndarray) -> np.ndarray:
    """A value of samples summed over each row (int64 [rows])."""
    return np.asarray([values[row].sum() for row in stage.rows], np.int64)


def straggler(stage: Stage, vision_costs: np.ndarray, seed: int) -> float | None:
    """`balance.straggler` of NUM_RANKS ranks with a row each a step; None for fewer rows than ranks.

    Rows without row groups are dealt at random, as a shuffling loader does; row groups as the reader deals them.
    """
    if len(stage.rows) < NUM_RANKS:
        return None
    groups = [np.arange(len(stage.rows))] if stage.row_groups is None else stage.row_groups
    table = pa.table({
        "file": ["data"] * len(groups),
        "num_rows": pa.array([len(group) for group in groups], pa.int32()),
        "vision_cost": pa.array([vision_costs[group] for group in groups], pa.list_(pa.int32())),
    })  # fmt: skip
    return round(straggler_module.straggler(table, NUM_RANKS, seed=seed, balance=stage.row_groups is not None), 6)


def fraction(part: int, whole: int) -> float | None:
    """part / whole to six places; None of nothing."""
    return round(part / whole, 6) if whole else None
