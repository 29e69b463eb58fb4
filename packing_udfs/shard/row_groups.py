"""Row groups aligned in image work, and how even the work of the ranks then is.

A shard's K packs, sorted by vision cost, go into G = ⌈K/R⌉ row groups, G neighbours at a time, one to each: the
p-th cheapest pack of every row group costs about the same. Ranks that read row groups of one size in step, at the
same position, then have equal work at every step, at any world size, without reading another's data.

    costs 1 2 3 4 5 6 7 8 9, R = 3, G = 3          layers (1 2 3) (4 5 6) (7 8 9)
    the g-th of every layer to row group g         groups (1 4 7) (2 5 8) (3 6 9)

The reader deals row groups of nearly the same mean together, so the g-th of one shard meets the g-th of others.
K that G doesn't divide leaves one layer short. It is the middle one: costs lie closest there, and the cheapest
and the costliest packs, where neighbours differ most, stay in full layers. Cost: one stable sort.
Rejected: sorting each row group's packs only (nothing aligns them between row groups), equal sums by a to-and-fro or
longest-processing-time rule (even totals, but no two row groups are alike).
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from packing_udfs.hashing import permutation

__all__ = ["deal", "row_groups"]

Pack = TypeVar("Pack")


def row_groups(vision_costs: np.ndarray, num_packs_per_group: int, seed: int) -> list[np.ndarray]:
    """Indices of a shard's packs for each of its row groups, in stored order (int64).

    vision_costs: of each pack. num_packs_per_group: the most in one row group. Sizes differ by at most one, larger
    ones first. Inside a row group the positions are permuted by (seed, size): the same in every shard, so that
    stored order says nothing of cost but positions stay aligned. No packs, no row groups.

    Raises ValueError on num_packs_per_group below 1.
    """
    if num_packs_per_group < 1:
        raise ValueError(f"num_packs_per_group={num_packs_per_group}: must be at least 1")
    num_packs = len(vision_costs)
    if num_packs == 0:
        return []
    num_groups = -(-num_packs // num_packs_per_group)
    num_full, num_short = divmod(num_packs, num_groups)
    ranked = np.argsort(np.asarray(vision_costs), kind="stable")
    low = num_full // 2 * num_groups  # ranks below the short layer
    layers = np.concatenate([ranked[:low], ranked[low + num_short :]]).reshape(num_full, num_groups)
    short = ranked[low : low + num_short]
    groups = []
    for group in range(num_groups):
        members = layers[:, group]
        if group < num_short:
            members = np.insert(members, num_full // 2, short[group])
        groups.append(members[permutation(len(members), seed, len(members))])
    return groups


def deal(packs: Sequence[Pack], vision_costs: np.ndarray, num_packs_per_group: int, seed: int) -> list[list[Pack]]:
    """A shard's packs in its row groups, by `row_groups`."""
    groups = row_groups(vision_costs, num_packs_per_group, seed)
    return [list(map(packs.__getitem__, group)) for group in groups]
