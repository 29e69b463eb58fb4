"""Pack a shard again so that what did not change stays where it is, and Xet uploads only the rest.

A packed file is compared with its last version byte by byte, in chunks of 64 KiB or so: a pack that stays at its place
costs nothing, a whole pack that moves costs its edges, a sample that moves costs itself, its edges and those of the
hole that it leaves. So the last version's packs seed the new ones (`replan`):

1. **match** every pack's samples with those that are there now, as a multiset. A pack that has all of them is kept,
   unless it is over the budgets.
2. An edited sample (new, of the images of one that is gone) takes its place if the pack still holds it.
3. A pack that lost samples is a bin with holes. New samples go into the holes, best fit in all budgets and near to what
   the pack cost before; what fits nowhere makes new packs.
4. Where that takes more packs than packing afresh may (`limit`), the emptiest packs are dissolved, as few as will do.
5. **places** in row groups (`packing_udfs.shard.keep_places`): a freed place gets the pack nearest in cost.

    kept [a b c]   lost one [d _ f]   gone [_ _]      new: x, y
    best fit       [d x f]                            y makes a pack, which takes the freed place

Integers and stable sorts only; the order in which samples arrive plays no part. Cost: O(samples), and for each loose
sample a look at the packs with holes. Rejected: dissolving every pack that lost a sample (ten samples move for one that
is gone).
"""

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from packing_udfs.knapsack import Amounts, Budgets
from packing_udfs.knapsack.axes import TOKENS, VISION
from packing_udfs.shard.keep_places import LastPack, Shard, align

MAX_DISSOLVED = 64


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


def replan(
    previous: Previous,
    keys: Sequence[Key],
    amounts: Amounts,
    budgets: Budgets,
    pack: Callable[[list[int]], list[list[int]]],
    *,
    num_packs_per_group: int,
    seed: int,
    max_drift: float,
) -> Plan:
    """Packs and their places, as near to the last version's as `max_drift` allows.

    keys: of each sample that is there now, in the shard's order, whose amounts these are. pack: what makes packs of
    samples afresh (indices in, packs out). max_drift: the share of packs that there may be more than `pack` makes of
    all samples.
    """
    shard = Shard(amounts, budgets, pack, num_packs_per_group, seed)
    bins = pack(list(range(len(keys))))
    fresh = shard.deal(bins)
    if [len(group) for group in previous.row_groups] != [len(costs) for costs in previous.vision_costs]:
        return Plan(fresh, why_afresh="its manifest names other numbers of packs than its row groups have")
    packs, shard.loose = _match(previous, keys, shard)
    tokens = amounts[TOKENS]
    kept = int(tokens[[i for old in packs for i in old.members()]].sum())
    if 2 * kept < tokens.sum():
        return Plan(fresh, why_afresh="more than half of its tokens are new")
    limit = int(len(bins) * (1 + max_drift))
    found = _fit(packs, shard, limit)
    if found is None:
        return Plan(fresh, why_afresh=f"it would take more than {limit} packs, and {len(bins)} do")
    groups = align(previous.vision_costs, *found, shard, fresh)
    return _counted(previous, packs, groups)


def _match(previous: Previous, keys: Sequence[Key], shard: Shard) -> tuple[list[LastPack], list[int]]:
    """The packs of the last version with what is left in them or edited at its place, and the samples in none.

    A pack over the budgets, which a packing by other budgets made, is emptied: its samples are placed like new ones.
    """
    there: dict[Key, deque[int]] = {}
    for i, key in enumerate(keys):
        there.setdefault(key, deque()).append(i)
    packs = []
    for g, group in enumerate(previous.row_groups):
        for p, pack in enumerate(group):
            packs.append(LastPack((g, p), [there[key].popleft() if there.get(key) else None for key in pack]))
    for pack in packs:
        if (shard.size(pack.members()) > shard.caps).any():
            pack.slots = [None] * len(pack.slots)
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


def _fit(packs: list[LastPack], shard: Shard, limit: int) -> tuple[list[LastPack], list[list[int]]] | None:
    """(the packs that stay, new packs) with every sample in one, at most `limit` in all; None when that can't be."""
    used = shard.amounts.of_packs(TOKENS, [pack.members() for pack in packs]).tolist()
    free = [shard.budgets[TOKENS] - num_tokens for num_tokens in used]
    emptiest = sorted((i for i in range(len(packs)) if free[i]), key=lambda i: (-free[i], i))
    for num_dissolved in _steps(min(len(emptiest), MAX_DISSOLVED)):
        gone = set(emptiest[:num_dissolved])
        stay = [LastPack(p.place, list(p.slots), p.is_changed) for i, p in enumerate(packs) if i not in gone]
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


def _fill_holes(holes: list[LastPack], loose: list[int], shard: Shard) -> list[int]:
    """Put loose samples into packs with holes, largest first, each where it leaves least; return those that fit none.

    What it leaves is counted in tokens, and in vision cost against what the pack had before, both by their averages.
    """
    if not holes or not loose:
        return loose
    members = [p.members() for p in holes]
    room = shard.caps[:, None] - np.stack([shard.size(m) for m in members], axis=1)
    tokens, seq_len = shard.amounts[TOKENS], shard.budgets[TOKENS]
    mean = max(1, int(shard.amounts.get(VISION).sum()) * seq_len // max(1, int(tokens.sum())))
    free = seq_len - shard.amounts.of_packs(TOKENS, members)
    share = (shard.sizes[:, loose] * 1000 // shard.caps[:, None]).max(axis=0)
    rest = []
    for at in np.argsort(-share, kind="stable").tolist():
        i = loose[at]
        size = shard.sizes[:, i]
        fits = (room >= size[:, None]).all(axis=0)
        if not fits.any():
            rest.append(i)
            continue
        left = (free - tokens[i]) * mean
        worst = int(left.max()) + 1
        best = int(np.where(fits, left, worst + np.abs(left)).argmin())
        holes[best].add(i)
        room[:, best] -= size
        free[best] -= tokens[i]
    return sorted(rest)


def _counted(previous: Previous, packs: list[LastPack], groups: list[list[list[int]]]) -> Plan:
    """The plan with what became of the packs of the last version."""
    whole = {tuple(pack.slots): pack.place for pack in packs if not pack.is_changed}
    touched = {i for pack in packs if pack.is_changed for i in pack.members()}
    places: dict[tuple[int | None, ...], tuple[int, int]] = {}
    for g, group in enumerate(groups):
        places |= {tuple(members): (g, p) for p, members in enumerate(group)}
    num_kept = sum(places.get(members) == place for members, place in whole.items())
    num_same = sum(members in places for members in whole)
    num_changed = sum(not touched.isdisjoint(members) for members in places)
    return Plan(groups, num_kept=num_kept, num_moved=num_same - num_kept, num_changed=num_changed)
