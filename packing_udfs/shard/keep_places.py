"""Where packs stand when a shard is packed again (`keep_packs`): at their old places, as far as costs allow.

Each place of a row group is one of a layer of packs alike in image work (`packing_udfs.shard.row_groups`). A freed
place gets the pack nearest in cost, of those that have none or stand in the *tail*: the row groups that are smaller
than the others, which shrink and grow; a single one keeps its order, as it has none to be alike to. When the layers
have worn out, packs are dealt to row groups anew, whole.

Cost: for each freed place a look at the packs without one. Rejected: moving packs up behind a pack that is gone (every
position behind it loses its layer).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from packing_udfs.knapsack import Amounts, Budgets
from packing_udfs.knapsack.axes import VISION
from packing_udfs.shard.row_groups import deal

__all__ = ["LastPack", "Shard", "align"]

Place = tuple[int, int]  # row group, position in it

COST_TOLERANCES = (4, 8, 16, 32)  # by such a part of the mean cost a changed pack may be off its layer's median
MAX_MISALIGNMENT = 0.015  # how much a step's largest cost over its mean may be above that of packing afresh


@dataclass
class LastPack:
    """A pack of the last version: the sample in each slot, None where it is gone."""

    place: Place
    slots: list[int | None]
    is_changed: bool = False

    def members(self) -> list[int]:
        return [i for i in self.slots if i is not None]

    def add(self, i: int) -> None:
        """Put a sample where one is gone, so that only one place changes; else behind the others."""
        if None in self.slots:
            self.slots[self.slots.index(None)] = i
        else:
            self.slots.append(i)
        self.is_changed = True


@dataclass
class Shard:
    """The samples to pack, and how they are packed."""

    amounts: Amounts
    budgets: Budgets
    pack: Callable[[list[int]], list[list[int]]]
    """Makes packs of samples (indices in, packs out)."""
    most: int
    """Packs in a row group."""
    seed: int
    loose: list[int] = field(default_factory=list)
    """Samples that are in no pack of the last version."""

    def __post_init__(self) -> None:
        self.sizes = self.amounts.matrix(self.budgets)  # int64 [axes with a budget, samples]
        self.caps = np.asarray(list(self.budgets.values()), np.int64)

    def size(self, members: Sequence[int]) -> np.ndarray:
        """What samples take together of each axis with a budget."""
        return self.sizes[:, list(members)].sum(axis=1)

    def cost(self, members: Sequence[int]) -> int:
        """Their vision cost."""
        return int(self.amounts.get(VISION)[list(members)].sum())

    def costs(self, packs: Sequence[Sequence[int]]) -> np.ndarray:
        """Vision costs, int64 [packs]."""
        return self.amounts.of_packs(VISION, packs)

    def deal(self, packs: list[list[int]]) -> list[list[list[int]]]:
        """Packs in row groups, as a first packing deals them."""
        return deal(packs, self.costs(packs), self.most, self.seed)


def align(
    old: list[list[int]], stay: list[LastPack], new: list[list[int]], shard: Shard, fresh: list[list[list[int]]]
) -> list[list[list[int]]]:
    """Row groups whose places are nearly as alike in cost as those of `fresh`, by the least of some means that do it.

    Changed packs that are out of their layer leave their place, at first only those that are far out; then all packs
    that are; then all packs are dealt anew, as they are.
    old: what each pack of the last version cost, by row group and place.
    """
    limit = _misalignment(fresh, shard) + MAX_MISALIGNMENT
    for part, may_move in [*((part, False) for part in COST_TOLERANCES), (COST_TOLERANCES[-1], True)]:
        groups = _place(old, stay, new, shard, part, may_move)
        if _misalignment(groups, shard) <= limit:
            return groups
    return shard.deal([*(pack.members() for pack in stay), *new])


def _place(
    old: list[list[int]], stay: list[LastPack], new: list[list[int]], shard: Shard, part: int, may_move: bool
) -> list[list[list[int]]]:
    """Row groups: packs at their old places, freed places filled by cost, what is left in the tail.

    part: of the mean cost by which a pack may be off its layer. may_move: whether packs that did not change leave their
    place too when they are further off.
    """
    at = {pack.place: pack for pack in stay}
    tail = _tail(old)
    while True:
        groups = [g for g in range(len(old)) if g not in tail]
        freed, homeless = _freed(old, groups, at, shard, part, may_move)
        in_tail = [at[place].members() for place in _places(old, sorted(tail)) if place in at]
        loose = [*new, *homeless]
        if len(loose) + len(in_tail) >= len(freed):
            break
        tail.add(min(groups, key=lambda g: (len(old[g]), -g)))  # the last of the smallest gives up its packs
    chosen = _choose(freed, old, shard.costs([*loose, *in_tail]).tolist())
    pool = dict(enumerate([*loose, *in_tail]))
    members_at = {place: pack.members() for place, pack in at.items()}
    members_at |= {place: pool.pop(i) for place, i in chosen.items()}

    def row_group(g: int) -> list[list[int]]:
        return [members_at[place] for place in _places(old, [g])]

    body = list(map(row_group, groups))
    rest_of_tail = [members for i, members in pool.items() if i >= len(loose)]
    came = [members for i, members in pool.items() if i < len(loose)]
    if not came and rest_of_tail == in_tail and all(place in at for place in _places(old, sorted(tail))):
        return body + list(map(row_group, sorted(tail)))
    rest = [*rest_of_tail, *came]
    if len(tail) <= 1 and len(rest) <= shard.most:
        return body + ([rest] if rest else [])
    return body + shard.deal(rest)


def _places(old: list[list[int]], groups: Iterable[int]) -> list[Place]:
    return [(g, p) for g in groups for p in range(len(old[g]))]


def _choose(freed: list[Place], old: list[list[int]], costs: list[int]) -> dict[Place, int]:
    """For each freed place the pack that is nearest in cost to what was there, costliest places first."""
    left, chosen = list(range(len(costs))), {}
    for g, p in sorted(freed, key=lambda place: (-old[place[0]][place[1]], place)):
        nearest = min(left, key=lambda i: (abs(costs[i] - old[g][p]), i))
        left.remove(nearest)
        chosen[g, p] = nearest
    return chosen


def _freed(
    old: list[list[int]],
    groups: list[int],
    at: dict[Place, LastPack],
    shard: Shard,
    part: int,
    may_move: bool,
) -> tuple[list[Place], list[list[int]]]:
    """(places of these row groups to be filled, packs that are out of the layer of the place they had)"""
    mean = sum(map(sum, old)) // max(1, sum(map(len, old)))
    layers, freed, homeless = _layers(old, groups), [], []
    for g, p in _places(old, groups):
        pack, usual = at.get((g, p)), layers[len(old[g]), p]
        if pack is None:
            freed.append((g, p))
        elif (pack.is_changed or may_move) and abs(shard.cost(pack.members()) - usual) > mean // part:
            homeless.append(pack.members())
            freed.append((g, p))
    return freed, homeless


def _tail(sizes: list[list[int]]) -> set[int]:
    """Row groups smaller by more than one than the largest: `balance.row_groups` makes none such."""
    most = max(map(len, sizes), default=0)
    return {g for g, group in enumerate(sizes) if len(group) < most - 1}


def _layers(costs: list[list[int]], groups: list[int]) -> dict[tuple[int, int], int]:
    """(size of the row group, position) → the median cost there."""
    layers: dict[tuple[int, int], list[int]] = {}
    for g in groups:
        for p, cost in enumerate(costs[g]):
            layers.setdefault((len(costs[g]), p), []).append(cost)
    return {layer: sorted(found)[len(found) // 2] for layer, found in layers.items()}


def _misalignment(groups: list[list[list[int]]], shard: Shard) -> float:
    """Mean over positions of (largest cost / mean cost) − 1 among row groups of one size, by packs."""
    of_size: dict[int, list[list[int]]] = {}
    for group in groups:
        of_size.setdefault(len(group), []).append([shard.cost(members) for members in group])
    total = num = 0
    for size, costs in sorted(of_size.items()):
        table = np.asarray(costs, np.int64)
        sums = table.sum(axis=0)
        over = np.where(sums > 0, table.max(axis=0) * len(costs) / np.maximum(sums, 1) - 1, 0)
        total += float(over.sum()) * len(costs)
        num += size * len(costs)
    return total / num if num else 0.0
