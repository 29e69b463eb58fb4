"""What a shard's packing is worth, as sums that add up over shards.

Every figure of a run is derived from these sums (`summarise`), so a shard is described by a few integers and the
driver never sees a sample. `naive` is what padding every batch of `NAIVE_BATCH` samples to its longest would take,
the usual way to train without packing, on the same samples in the same order.
"""

from collections.abc import Iterable

import numpy as np

NAIVE_BATCH = 16


def shard_sums(lengths: np.ndarray, vision_costs: np.ndarray, num_packs: int, bound: int) -> dict[str, int]:
    """Sums of one shard. `lengths`, `vision_costs`: int arrays [num_samples] in shard order."""
    batches = [lengths[i : i + NAIVE_BATCH] for i in range(0, len(lengths), NAIVE_BATCH)]
    return {
        "num_samples": len(lengths),
        "num_packs": num_packs,
        "bound": bound,
        "num_tokens": int(lengths.sum()),
        "vision_cost": int(vision_costs.sum()),
        "attention_cost": int((lengths.astype(np.int64) ** 2).sum()),
        "naive_tokens": sum(int(batch.max()) * len(batch) for batch in batches),
    }


def add(sums: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sums of several shards."""
    total: dict[str, int] = {}
    for shard in sums:
        for name, value in shard.items():
            total[name] = total.get(name, 0) + value
    return total


def summarise(sums: dict[str, int], seq_len: int) -> dict[str, float]:
    """Fractions from sums: `fill`, `over_bound` (packs / bound − 1) and `naive_waste` (share of pads)."""

    def fraction(part: int, whole: int) -> float:
        return round(part / whole, 6) if whole else 0.0

    return {
        "fill": fraction(sums["num_tokens"], sums["num_packs"] * seq_len),
        "over_bound": fraction(sums["num_packs"] - sums["bound"], sums["bound"]),
        "naive_waste": fraction(sums["naive_tokens"] - sums["num_tokens"], sums["naive_tokens"]),
    }
