"""Pack a shard again so that what did not change stays where it is, and Xet uploads only the rest.

A packed file is compared with its last version byte by byte, in chunks of 64 KiB or so: a pack that stays at its place
costs nothing, a whole pack that moves costs its edges, a sample that moves costs itself, its edges and those of the
hole that it leaves. So the last version's packs seed the new ones (`replan`):

1. **match** every pack's samples with those that are there now, as a multiset. A pack that has all of them is kept.
2. An edited sample (new, of the images of one that is gone) takes its place if the pack still holds it.
3. A pack that lost samples is a bin with holes. New samples go into the holes, best fit in all budgets and near to what
   the pack cost before; what fits nowhere makes new packs.
4. Where that takes more packs than packing afresh may (`limit`), the emptiest packs are dissolved, as few as will do.
5. **places**: each place of a row group is one of a layer of packs alike in image work (`packing_udfs.balance`). A
   freed place gets the pack nearest in cost, of those that have none or stand in the *tail*: the row groups that are
   smaller than the others, which shrink and grow and are laid out anew. When the layers have worn out, packs are dealt
   to row groups anew, whole.

    kept [a b c]   lost one [d _ f]   gone [_ _]      new: x, y
    best fit       [d x f]                            y makes a pack, which takes the freed place

Integers and stable sorts only; the order in which samples arrive plays no part. Cost: O(samples), and for each loose
sample a look at the packs with holes. Rejected: dissolving every pack that lost a sample (ten samples move for one that
is gone), and moving packs up behind a pack that is gone (every position behind it loses its layer).
"""

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from packing_udfs import balance
from packing_udfs.knapsack import Budgets

MAX_DISSOLVED = 64
COST_TOLERANCE = 32  # a changed pack may leave its layer's median by a 32nd of the mean cost
MAX_MISALIGNMENT = 0.015  # how much a step's largest cost over its mean may be above that of packing afresh


class Key(NamedTuple):
    """What makes a stored sample the same as one that is there now."""

    sample_id: int
    source: str
    num_tokens: int
    num_images: int
    tokens: int = 0  # checksum of its tokens, where parts of one sample would be equal without it


def checksum(input_ids: np.ndarray) -> int:
    """CRC-32 of int32 tokens, little-endian: `Key.tokens`."""
    return zlib.crc32(np.ascontiguousarray(input_ids, "<i4").tobytes())


@dataclass(frozen=True)
class Previous:
    """A shard's packs as they were: for each row group its packs, in stored order, as the keys of their samples."""

    row_groups: list[list[list[Key]]]
    vision_costs: list[list[int]]
    """What each pack cost."""


@dataclass
class _Pack:
    """A pack of the last version: the sample in each slot, None where it is gone."""

    place: tuple[int, int]
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


@dataclass(frozen=True)
class Plan:
    """Row groups of packs of samples (their indices, in order), and what became of the packs of the last version."""

    row_groups: list[list[list[int]]]
    num_kept: int = 0
    """Packs that are as they were, where they were."""
    num_moved: int = 0
    """Packs that are as they were, elsewhere."""
    num_changed: int = 0
    """Packs with holes or with other samples in their holes, wherever they are."""
    why_afresh: str = ""
    """Why the last version's packs were given up, if they were."""


@dataclass
class _Shard:
    """The samples to pack: `sizes` int64 [tokens, vision cost, images; samples], `caps` of each in a pack."""

    sizes: np.ndarray
    caps: np.ndarray
    pack: Callable[[list[int]], list[list[int]]]
    most: int
    """Packs in a row group."""
    seed: int
    loose: list[int] = field(default_factory=list)

    def size(self, members: Sequence[int]) -> np.ndarray:
        return self.sizes[:, list(members)].sum(axis=1)

    def cost(self, members: Sequence[int]) -> int:
        return int(self.sizes[1, list(members)].sum())


def replan(
    previous: Previous,
    keys: Sequence[Key],
    sizes: np.ndarray,
    budgets: Budgets,
    pack: Callable[[list[int]], list[list[int]]],
    *,
    num_packs_per_group: int,
    seed: int,
    max_drift: float,
) -> Plan:
    """Packs and their places, as near to the last version's as `max_drift` allows.

    keys: of each sample that is there now, in the shard's order. sizes: int64 [3, samples], their tokens, vision cost
    and images. pack: what makes packs of samples afresh (indices in, packs
    out). max_drift: the share of packs that there may be more than `pack` makes of all samples.
    """
    unlimited = np.iinfo(np.int64).max // 1000  # a share of it is still an integer
    caps = [budgets.seq_len, budgets.vision_cost or unlimited, budgets.num_images or unlimited]
    shard = _Shard(np.asarray(sizes, np.int64), np.asarray(caps, np.int64), pack, num_packs_per_group, seed)
    bins = pack(list(range(len(keys))))
    fresh = [[bins[i] for i in g] for g in balance.row_groups(_costs(shard, bins), num_packs_per_group, seed)]
    packs, shard.loose = _match(previous, keys, shard)
    kept = int(shard.sizes[0, [i for old in packs for i in old.members()]].sum())
    if 2 * kept < shard.sizes[0].sum():
        return Plan(fresh, why_afresh="more than half of its tokens are new")
    limit = int(len(bins) * (1 + max_drift))
    found = _fit(packs, shard, limit)
    if found is None:
        return Plan(fresh, why_afresh=f"it would take more than {limit} packs, and {len(bins)} do")
    groups = _align(previous, *found, shard, _misalignment(fresh, shard) + MAX_MISALIGNMENT)
    return _counted(previous, packs, groups)


def _costs(shard: _Shard, bins: list[list[int]]) -> np.ndarray:
    return np.asarray([shard.cost(members) for members in bins], np.int64)


def _match(previous: Previous, keys: Sequence[Key], shard: _Shard) -> tuple[list[_Pack], list[int]]:
    """The packs of the last version with what is left in them or edited at its place, and the samples in none."""
    there: dict[Key, deque[int]] = {}
    for i, key in enumerate(keys):
        there.setdefault(key, deque()).append(i)
    packs = [
        _Pack((g, p), [there[key].popleft() if there.get(key) else None for key in pack])
        for g, group in enumerate(previous.row_groups)
        for p, pack in enumerate(group)
    ]
    taken = {i for pack in packs for i in pack.members()}
    loose = [i for i in range(len(keys)) if i not in taken]
    edited: dict[tuple[int, str], list[int]] = {}
    for i in loose:
        edited.setdefault(_images_of(keys[i]), []).append(i)
    for pack in packs:
        if None not in pack.slots:
            continue
        pack.is_changed = True
        room = shard.caps - shard.size(pack.members())
        old = previous.row_groups[pack.place[0]][pack.place[1]]
        for slot, key in enumerate(old):
            if pack.slots[slot] is not None:
                continue
            like = edited.get(_images_of(key), [])
            fits = next((i for i in like if (shard.sizes[:, i] <= room).all()), None)
            if fits is not None:
                like.remove(fits)
                pack.slots[slot] = fits
                room = room - shard.sizes[:, fits]
                taken.add(fits)
    return packs, [i for i in loose if i not in taken]


def _images_of(key: Key) -> tuple[int, str]:
    """The upper half of an id, which samples of the same images share (jobs.adapters.sample_id), and the source."""
    return key.sample_id >> 32, key.source


def _fit(packs: list[_Pack], shard: _Shard, limit: int) -> tuple[list[_Pack], list[list[int]]] | None:
    """(the packs that stay, new packs) with every sample in one, at most `limit` in all; None when that can't be."""
    free = [int(shard.caps[0] - shard.sizes[0, pack.members()].sum()) for pack in packs]
    emptiest = sorted((i for i in range(len(packs)) if free[i]), key=lambda i: (-free[i], i))
    for num_dissolved in _steps(min(len(emptiest), MAX_DISSOLVED)):
        gone = set(emptiest[:num_dissolved])
        stay = [_Pack(p.place, list(p.slots), p.is_changed) for i, p in enumerate(packs) if i not in gone]
        loose = sorted(shard.loose + [i for at in gone for i in packs[at].members()])
        rest = _fill_holes([p for p in stay if p.is_changed], loose, shard)
        stay = [p for p in stay if p.members()]
        new = shard.pack(rest) if rest else []
        if len(stay) + len(new) <= limit:
            return stay, new
    return None


def _steps(most: int) -> list[int]:
    """0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12 … most: near enough to the least that will do."""
    steps, step = [0], 0
    while step < most:
        step += max(1, step // 4)
        steps.append(min(step, most))
    return steps


def _fill_holes(holes: list[_Pack], loose: list[int], shard: _Shard) -> list[int]:
    """Put loose samples into packs with holes, largest first, each where it leaves least; return those that fit none.

    What it leaves is counted in tokens, and in vision cost against what the pack had before, both by their averages.
    """
    if not holes or not loose:
        return loose
    members = [p.members() for p in holes]
    room = shard.caps[:, None] - np.stack([shard.size(m) for m in members], axis=1)
    mean = max(1, int(shard.sizes[1].sum()) * int(shard.caps[0]) // max(1, int(shard.sizes[0].sum())))
    share = (shard.sizes[:, loose] * 1000 // shard.caps[:, None]).max(axis=0)
    rest = []
    for at in np.argsort(-share, kind="stable").tolist():
        i = loose[at]
        size = shard.sizes[:, i]
        fits = (room >= size[:, None]).all(axis=0)
        if not fits.any():
            rest.append(i)
            continue
        left = (room[0] - size[0]) * mean
        worst = int(left.max()) + 1
        best = int(np.where(fits, left, worst + np.abs(left)).argmin())
        holes[best].add(i)
        room[:, best] -= size
    return sorted(rest)


def _align(
    previous: Previous, stay: list[_Pack], new: list[list[int]], shard: _Shard, limit: float
) -> list[list[list[int]]]:
    """Row groups whose places are alike in cost up to `limit`, by the least of three means that does it.

    Only changed packs leave their place; all that are out of their layer; all packs are dealt anew, as they are.
    """
    for may_move in (False, True):
        groups = _place(previous, stay, new, shard, may_move)
        if _misalignment(groups, shard) <= limit:
            return groups
    packs = [*(pack.members() for pack in stay), *new]
    return [[packs[i] for i in group] for group in balance.row_groups(_costs(shard, packs), shard.most, shard.seed)]


def _place(
    previous: Previous, stay: list[_Pack], new: list[list[int]], shard: _Shard, may_move: bool
) -> list[list[list[int]]]:
    """Row groups: packs at their old places, freed places filled by cost, what is left in the tail.

    may_move: whether packs that did not change leave their place too when they are out of its layer.
    """
    old = previous.vision_costs
    mean = sum(map(sum, old)) // max(1, sum(map(len, old)))
    at = {pack.place: pack for pack in stay}
    tail = _tail(old)
    while True:
        groups = [g for g in range(len(old)) if g not in tail]
        layers = _layers(old, groups)
        slack = mean // COST_TOLERANCE
        homeless, freed = [], []
        for g in groups:
            for p in range(len(old[g])):
                pack, usual = at.get((g, p)), layers[len(old[g]), p]
                if pack is None:
                    freed.append((g, p))
                elif (pack.is_changed or may_move) and abs(shard.cost(pack.members()) - usual) > slack:
                    homeless.append(pack.members())
                    freed.append((g, p))
        in_tail = [at[g, p].members() for g in sorted(tail) for p in range(len(old[g])) if (g, p) in at]
        pool = [*new, *homeless, *in_tail]
        if len(pool) >= len(freed):
            break
        tail |= {min(groups, key=lambda g: (len(old[g]), -g))}  # the last of the smallest gives up its packs
    costs = [shard.cost(members) for members in pool]
    chosen: dict[tuple[int, int], int] = {}
    left = list(range(len(pool)))
    for g, p in sorted(freed, key=lambda place: (-old[place[0]][place[1]], place)):
        nearest = min(left, key=lambda i: (abs(costs[i] - old[g][p]), i))
        left.remove(nearest)
        chosen[g, p] = nearest
    result = [
        [pool[chosen[g, p]] if (g, p) in chosen else at[g, p].members() for p in range(len(old[g]))] for g in groups
    ]
    is_whole = {(g, p) for g in tail for p in range(len(old[g]))} <= set(at)
    if is_whole and left == list(range(len(pool) - len(in_tail), len(pool))):  # nobody came or went
        return result + [[at[g, p].members() for p in range(len(old[g]))] for g in sorted(tail)]
    rest = [pool[i] for i in left]
    laid = balance.row_groups(_costs(shard, rest), shard.most, shard.seed)
    return result + [[rest[i] for i in group] for group in laid]


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


def _misalignment(groups: list[list[list[int]]], shard: _Shard) -> float:
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


def _counted(previous: Previous, packs: list[_Pack], groups: list[list[list[int]]]) -> Plan:
    """The plan with what became of the packs of the last version."""
    whole = {tuple(pack.slots): pack.place for pack in packs if not pack.is_changed}
    touched = {i for pack in packs if pack.is_changed for i in pack.members()}
    places = {tuple(members): (g, p) for g, group in enumerate(groups) for p, members in enumerate(group)}
    num_kept = sum(places.get(members) == place for members, place in whole.items())
    num_same = sum(members in places for members in whole)
    num_changed = sum(not touched.isdisjoint(members) for members in places)
    return Plan(groups, num_kept=num_kept, num_moved=num_same - num_kept, num_changed=num_changed)
