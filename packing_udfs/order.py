"""The order in which a reader visits packs: a pure function of manifest, seed and epoch.

B = global_batch_size lanes run side by side; step i is one pack from each. The order is dealt in *cycles*: one row
group of the same size in every lane, every lane at the same position of its row group. Positions are aligned in
image work (`packing_udfs.balance.row_groups`), so the ranks of a step have equal work without knowing each other.

    B = 2, row groups a, b, c, d of 3 packs        step    0   1   2   3   4   5
    cycle 0 = (a, c), σ = (2, 0, 1)                lane 0  a2  a0  a1  b1  b0  b2
    cycle 1 = (b, d), σ = (1, 0, 2)                lane 1  c2  c0  c1  d1  d0  d2

Which row groups make a cycle: those of one size, from a block of neighbouring files, that are most alike in cost, laid
over the lanes by file, so that a rank stays in a few files. What fills no cycle of one size is dealt last: first in
cycles of nearly one size, aligned by cost rank and cut to the shortest; what is then left, packs of fewer than B row
groups and those cut off, is sorted by cost and cut into steps, laid over the lanes by row group. Fewer than B packs
remain.

Rank r of `world_size` reads lanes [r·B/world_size, (r+1)·B/world_size), so the global batch is the same for every
world size that divides B, and resuming is a call of `step`. Cost: O(row groups) to make, O(B) a step; nothing is
kept per pack but for the leftovers. Rejected: a permutation of all packs (no balance, one row group read per
pack); a shuffle buffer (state that a checkpoint would have to carry, and inexact resume).

Random numbers are a hash of integers (splitmix64), not `numpy.random`, whose streams may change between releases:
a checkpoint must find the same order years later. Any change of the order needs a new ORDER_VERSION.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from packing_udfs.hashing import hashes, permutation
from packing_udfs.walk import offsets

__all__ = ["ORDER_VERSION", "Order", "Packs", "Visit", "make_order", "manifest_order"]

ORDER_VERSION = 1

# What a hash is used for goes into it, so that no two uses see the same numbers.
_FILES, _GROUPS, _INTERLEAVE, _POSITIONS, _LEFTOVERS, _STEPS, _REMAINDER, _CYCLES = range(8)
BLOCK = 16  # cycles whose row groups are chosen together, from as many files as they take


class Visit(NamedTuple):
    """`row_group` is needed in steps [step, step + num_steps)."""

    step: int
    num_steps: int
    row_group: int


class Packs(NamedTuple):
    """Packs by their row group and their row in it, int64 arrays of one shape."""

    row_groups: np.ndarray
    rows: np.ndarray

    def take(self, at: np.ndarray | slice) -> "Packs":
        return Packs(self.row_groups[at], self.rows[at])


@dataclass(frozen=True, kw_only=True)
class _Dealing:
    """What decides how row groups are dealt, beside the manifest."""

    num_lanes: int
    seed: int
    epoch: int
    shuffle: bool
    balance: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Order:
    """One epoch. Made by `make_order`; row groups are numbered as the manifest's rows."""

    global_batch_size: int
    num_steps: int
    dropped: Packs
    """What this epoch leaves out: fewer than global_batch_size packs, none with end="pad"."""

    seed: int = field(repr=False)
    epoch: int = field(repr=False)
    shuffle: bool = field(repr=False)
    balance: bool = field(repr=False)
    cycles: np.ndarray = field(repr=False)
    """int64 [num_cycles, B]: the row group of each lane."""
    cycle_steps: np.ndarray = field(repr=False)
    """int64 [num_cycles + 1]: the first step of each cycle; the last entry is where the leftovers start."""
    leftovers: tuple[np.ndarray, np.ndarray, np.ndarray] = field(repr=False)
    """(row_groups, rows, is_padding) of the steps after the cycles, each [num_leftover_steps, B]."""

    def step(self, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row_groups int64 [B], rows int64 [B], is_padding bool [B]) of step `i`: one pack a lane, in O(B).

        `rows` count inside the row group. Raises IndexError outside [0, num_steps).
        """
        if not 0 <= i < self.num_steps:
            raise IndexError(f"step {i} of an epoch of {self.num_steps} steps")
        start = int(self.cycle_steps[-1])
        if i >= start:
            row_groups, rows, is_padding = (part[i - start] for part in self.leftovers)
            return row_groups, rows, is_padding
        cycle = int(np.searchsorted(self.cycle_steps, i, side="right")) - 1
        rows = self._positions(cycle)[i - int(self.cycle_steps[cycle])]
        return self.cycles[cycle], np.ascontiguousarray(rows), np.zeros(self.global_batch_size, dtype=bool)

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """All steps in order, many at a time: as `step`, each array [steps in the block, B]."""
        for cycle in range(len(self.cycles)):
            rows = self._positions(cycle)
            yield np.broadcast_to(self.cycles[cycle], rows.shape), rows, np.zeros(rows.shape, dtype=bool)
        if len(self.leftovers[0]):
            yield self.leftovers

    def visits(self, step: int, first_lane: int, num_lanes: int) -> Iterator[Visit]:
        """The row groups that lanes [first_lane, first_lane + num_lanes) need from `step` on, as they need them.

        Sorted by step; one already under way starts at `step`. Holding each for its `num_steps` takes `num_lanes`
        row groups in memory, and reads each once; among the leftovers, which small datasets consist of, it can be
        some more, and a row group can come a second time. Lazy: take as many as are to be prefetched.
        """
        lanes = slice(first_lane, first_lane + num_lanes)
        start = int(self.cycle_steps[-1])
        for cycle in range(max(int(np.searchsorted(self.cycle_steps, step, side="right")) - 1, 0), len(self.cycles)):
            begin, end = max(int(self.cycle_steps[cycle]), step), int(self.cycle_steps[cycle + 1])
            for row_group in self.cycles[cycle, lanes].tolist():
                yield Visit(begin, end - begin, row_group)
        begin = max(step, start)
        visited = self.leftovers[0][begin - start :, lanes].ravel()
        ids, first = np.unique(visited, return_index=True)
        last = len(visited) - 1 - np.unique(visited[::-1], return_index=True)[1]
        for at in np.argsort(first, kind="stable").tolist():
            first_step, last_step = int(first[at]) // num_lanes, int(last[at]) // num_lanes
            yield Visit(begin + first_step, last_step - first_step + 1, int(ids[at]))

    def _positions(self, cycle: int) -> np.ndarray:
        """int64 [steps, B]: the row that each lane visits at each step of a cycle."""
        num_rows = int(self.cycle_steps[cycle + 1] - self.cycle_steps[cycle])
        shape = (num_rows, self.global_batch_size)
        key = (self.seed, self.epoch, _POSITIONS, cycle)
        if not self.shuffle:
            return np.broadcast_to(np.arange(num_rows)[:, None], shape)
        if self.balance:
            return np.broadcast_to(permutation(num_rows, *key)[:, None], shape)
        keys = hashes(num_rows * self.global_batch_size, *key).reshape(shape)
        return np.argsort(keys, axis=0, kind="stable")


def make_order(
    num_rows: np.ndarray,
    vision_cost: np.ndarray | Sequence[np.ndarray],
    files: np.ndarray,
    *,
    global_batch_size: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    balance: bool = True,
    end: Literal["drop", "pad"] = "drop",
) -> Order:
    """The order of one epoch.

    num_rows: packs of each row group, as in the manifest. vision_cost: of each pack in stored order, one array a
    row group or all of them concatenated. files: the file of each row group, as any array `np.unique` can sort.
    shuffle=False: cycles and positions in stored order. balance=False: each lane visits its own permutation of
    positions and leftovers are dealt at random. end: the fewer than B packs that remain are listed as `dropped`,
    or fill one more step with repeats marked `is_padding`.

    Raises ValueError on a global_batch_size below 1 and on lengths that disagree.
    """
    num_rows = np.asarray(num_rows, dtype=np.int64)
    costs = np.asarray(vision_cost) if isinstance(vision_cost, np.ndarray) else np.concatenate([[], *vision_cost])
    if global_batch_size < 1:
        raise ValueError(f"global_batch_size={global_batch_size}: must be at least 1")
    if end not in ("drop", "pad"):
        raise ValueError(f"end={end!r}: must be 'drop' or 'pad'")
    if len(costs) != num_rows.sum() or len(files) != len(num_rows):
        raise ValueError(
            f"{len(num_rows)} row groups of {num_rows.sum()} packs, but vision_cost has {len(costs)} "
            f"and files {len(files)}: they must describe the same row groups"
        )
    group_of = np.repeat(np.arange(len(num_rows)), num_rows)
    mean_costs = np.bincount(group_of, weights=costs, minlength=len(num_rows)) / np.maximum(num_rows, 1)
    similar = mean_costs if balance else hashes(len(num_rows), seed, epoch, _GROUPS)
    how = _Dealing(num_lanes=global_batch_size, seed=seed, epoch=epoch, shuffle=shuffle, balance=balance)
    cycles, spare = _deal_cycles(num_rows, similar, np.asarray(files), how)
    cycle_steps = offsets(num_rows[cycles[:, 0]])
    steps, remainder = _deal_leftovers(num_rows, costs, spare, how)
    is_padding = np.zeros(steps.rows.shape, dtype=bool)
    num_over = len(remainder.rows)
    if end == "pad" and num_over:
        lanes = np.arange(global_batch_size)
        repeats = remainder.take(lanes[None] % num_over)
        steps = Packs(*(np.concatenate(parts) for parts in zip(steps, repeats, strict=True)))
        is_padding = np.concatenate([is_padding, lanes[None] >= num_over])
        remainder = remainder.take(slice(0))
    return Order(
        global_batch_size=global_batch_size,
        num_steps=int(cycle_steps[-1]) + len(steps.rows),
        dropped=remainder,
        seed=seed,
        epoch=epoch,
        shuffle=shuffle,
        balance=balance,
        cycles=cycles,
        cycle_steps=cycle_steps,
        leftovers=(steps.row_groups, steps.rows, is_padding),
    )


def manifest_order(manifest: pa.Table, **options) -> Order:
    """`make_order` of a manifest (contract.MANIFEST_SCHEMA); `options` are its keyword arguments."""
    costs = manifest["vision_cost"].combine_chunks()
    files = manifest["file"].combine_chunks().dictionary_encode()
    return make_order(manifest["num_rows"].to_numpy(), costs.flatten().to_numpy(), files.indices.to_numpy(), **options)


def _deal_cycles(
    num_rows: np.ndarray, similar: np.ndarray, files: np.ndarray, how: _Dealing
) -> tuple[np.ndarray, np.ndarray]:
    """Cycles [num_cycles, B] of row groups of one size, and the row groups that fill none, by size.

    Files come in random order, and so do the row groups of one file. Of each size, blocks of BLOCK · B row groups
    in that order are sorted by `similar` and cut into cycles; each is laid over the lanes in the order of files,
    so lane l reads from about the same place of it in every cycle. Then cycles are mixed inside their block.
    """
    num_lanes, key = how.num_lanes, (how.seed, how.epoch)
    ranked = np.arange(len(num_rows))
    if how.shuffle:
        file_ids, file_of = np.unique(files, return_inverse=True)
        file_keys = hashes(len(file_ids), *key, _FILES)[file_of]
        ranked = np.lexsort((hashes(len(num_rows), *key, _GROUPS), file_of, file_keys))
    cycles, spare = [np.empty((0, num_lanes), dtype=np.int64)], [ranked[:0]]
    for size in np.unique(num_rows[num_rows > 0]):
        of_size = ranked[num_rows[ranked] == size]
        full = len(of_size) // num_lanes * num_lanes
        if how.shuffle:
            num_cycles = full // num_lanes
            block = np.repeat(np.arange(num_cycles) // BLOCK, num_lanes)
            alike = np.lexsort((similar[of_size[:full]], block)).reshape(num_cycles, num_lanes)
            alike = np.sort(alike, axis=1)
            mixed = np.lexsort((hashes(num_cycles, *key, _CYCLES, int(size)), block[::num_lanes]))
            cycles.append(of_size[alike[mixed]])
        else:
            cycles.append(of_size[:full].reshape(-1, num_lanes))
        spare.append(of_size[full:])
    # Which size comes next is drawn; inside a size the cycles keep their order, so that lanes keep their files.
    size_of = np.repeat(np.arange(len(cycles)), [len(part) for part in cycles])
    cycles = np.concatenate(cycles)
    if how.shuffle:
        drawn = size_of[permutation(len(cycles), *key, _INTERLEAVE)]
        arrange = np.empty(len(cycles), dtype=np.int64)
        arrange[np.argsort(drawn, kind="stable")] = np.arange(len(cycles))
    else:
        arrange = np.argsort(cycles[:, 0], kind="stable")
    return cycles[arrange], np.concatenate(spare)


def _deal_leftovers(num_rows: np.ndarray, costs: np.ndarray, spare: np.ndarray, how: _Dealing) -> tuple[Packs, Packs]:
    """(packs of each step, [num_steps, B]; the fewer than B packs that remain) of the row groups `spare`."""
    sizes = num_rows[spare]
    seat = np.repeat(np.arange(len(spare)), sizes)  # place in `spare` of each pack's row group
    packs = Packs(spare[seat], np.arange(len(seat)) - offsets(sizes)[seat])
    if how.balance or not how.shuffle:
        worth = costs[offsets(num_rows)[packs.row_groups] + packs.rows]
    else:
        worth = hashes(len(seat), how.seed, how.epoch, _LEFTOVERS)
    in_cycles = _cut_cycles(sizes, seat, _rank_inside(seat, worth), how)
    rest = np.setdiff1d(np.arange(len(seat)), in_cycles)
    in_steps, over = _cut_steps(rest[np.argsort(worth[rest], kind="stable")], how)
    return packs.take(np.concatenate([in_cycles, in_steps])), packs.take(over)


def _cut_steps(ranked: np.ndarray, how: _Dealing) -> tuple[np.ndarray, np.ndarray]:
    """(steps [num_steps, B], the fewer than B that remain) of packs ranked by worth: neighbours share a step."""
    num_steps, num_over = divmod(len(ranked), how.num_lanes)
    # The packs that remain are neighbours in cost at a random place, so that no kind of pack is always dropped.
    step = num_steps
    if how.shuffle:
        step = int(hashes(1, how.seed, how.epoch, _REMAINDER)[0] % np.uint64(num_steps + 1))
    remain = np.s_[step * how.num_lanes : step * how.num_lanes + num_over]
    steps = np.delete(ranked, remain).reshape(num_steps, how.num_lanes)
    steps = np.sort(steps, axis=1)  # by row group
    return steps[permutation(num_steps, how.seed, how.epoch, _STEPS)] if how.shuffle else steps, ranked[remain]


def _cut_cycles(sizes: np.ndarray, seat: np.ndarray, rank: np.ndarray, how: _Dealing) -> np.ndarray:
    """Steps [num_steps, B] of packs from row groups that differ in size, in cycles.

    Row groups come by size, so B at a time differ little; all are cut to the shortest and visited by rank of cost.
    Packs are cut off from the middle of the costs, where the next one costs about the same.
    """
    cycles = [np.empty((0, how.num_lanes), dtype=np.int64)]
    by_rank = np.lexsort((rank, seat))
    for cycle in range(len(sizes) // how.num_lanes):
        shortest = int(sizes[cycle * how.num_lanes : (cycle + 1) * how.num_lanes].min())
        of_cycle = by_rank[seat[by_rank] // how.num_lanes == cycle]
        low, cut = shortest // 2, sizes[seat[of_cycle]] - shortest
        kept = of_cycle[(rank[of_cycle] < low) | (rank[of_cycle] >= low + cut)]
        steps = kept.reshape(how.num_lanes, shortest).T
        mixed = permutation(shortest, how.seed, how.epoch, _LEFTOVERS, cycle) if how.shuffle else slice(None)
        cycles.append(steps[mixed])
    return np.concatenate(cycles)


def _rank_inside(group: np.ndarray, worth: np.ndarray) -> np.ndarray:
    """Rank of each element by `worth` among those of its `group`; `group` is sorted."""
    ranked = np.lexsort((worth, group))
    rank = np.empty(len(group), dtype=np.int64)
    rank[ranked] = np.arange(len(group)) - np.searchsorted(group, group)
    return rank
