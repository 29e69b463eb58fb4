"""What a shard's packing is worth, as sums that add up over shards.

Every figure of a run is derived from these sums (`summarise`), so a shard is described by a few integers and the
driver never sees a sample. `naive` is what padding every batch of `NAIVE_BATCH` samples to its longest would take,
the usual way to train without packing, on the same samples in the same order.

Histograms add up too, because their bins are fixed: values up to 16 have a bin each, larger ones eight in every
doubling, so that a bin is at most an eighth of its value wide, from a dozen tokens to a billion. A bin is named by the
largest value in it, and powers of two, as budgets often are, end one:

    0, 1, 1, 16, 17, 18, 97, 104      →      {"0": 1, "1": 2, "16": 1, "18": 2, "104": 2}
"""

from collections.abc import Iterable, Sequence

import numpy as np

from packing_udfs.knapsack import axes
from packing_udfs.knapsack.axes import TOKENS, VISION, Amounts

__all__ = ["NAIVE_BATCH", "add", "bins", "histograms", "shard_sums", "summarise"]

NAIVE_BATCH = 16


def shard_sums(amounts: Amounts, num_packs: int, bound: int) -> dict[str, int]:
    """Sums of one shard, whose samples are in shard order."""
    lengths = amounts[TOKENS]
    batches = [lengths[i : i + NAIVE_BATCH] for i in range(0, len(lengths), NAIVE_BATCH)]
    return {
        "num_samples": len(lengths),
        "num_packs": num_packs,
        "bound": bound,
        "num_tokens": int(lengths.sum()),
        "vision_cost": int(amounts.get(VISION).sum()),
        "attention_cost": int((lengths**2).sum()),
        "naive_tokens": sum(int(batch.max()) * len(batch) for batch in batches),
    }


def histograms(
    amounts: Amounts, packs: Sequence[Sequence[int] | np.ndarray], seq_len: int
) -> dict[str, dict[str, int]]:
    """Histograms of one shard's samples and packs on each axis: counts by the largest value of a bin (see above).

    packs: the samples of each pack. `pack_fill` stands for their tokens, in per cent of `seq_len`, rounded up.
    """
    found = {"pack_fill": _counts(-(-100 * amounts.of_packs(TOKENS, packs) // seq_len))}
    for axis in axes.AXES:
        found[f"sample_{axis.label}"] = _counts(bins(amounts.get(axis.name)))
        if axis.name != TOKENS:
            found[f"pack_{axis.label}"] = _counts(bins(amounts.of_packs(axis.name, packs)))
    return found


def bins(values: np.ndarray) -> np.ndarray:
    """The largest value of the bin that each value is in, int64 [n]; values at least 0."""
    values = np.asarray(values, np.int64)
    below = np.maximum(values - 1, 0)
    _, num_bits = np.frexp(below.astype(np.float64))  # 2 ** (num_bits - 1) <= below, exact up to 2 ** 53
    shift = np.maximum(num_bits - 4, 0)
    return np.where(values > 0, ((below >> shift) + 1) << shift, 0)


def _counts(values: np.ndarray) -> dict[str, int]:
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(map(str, found.tolist()), counts.tolist(), strict=True))


def add(sums: Iterable[dict]) -> dict:
    """The sums of several shards; sums inside sums, as histograms are, add up by name."""
    total: dict = {}
    for shard in sums:
        for name, value in shard.items():
            if isinstance(value, dict):
                total[name] = add([total.get(name, {}), value])
            else:
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
