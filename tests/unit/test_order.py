"""The reader's order: every pack once, the same batch at any world size, resumable at any step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing_udfs.hashing import hashes, permutation
from packing_udfs.order import Order, make_order
from packing_udfs.shard.row_groups import row_groups


def order_of(groups: list[list[int]], files: list[int] | None = None, **options) -> Order:
    options = {"global_batch_size": 4, "seed": 0, "epoch": 0} | options
    sizes = np.array([len(costs) for costs in groups], dtype=np.int64)
    files = np.zeros(len(groups), dtype=np.int64) if files is None else np.array(files)
    return make_order(sizes, [np.array(costs) for costs in groups], files, **options)


def steps_of(order: Order) -> list[list[tuple[int, int, bool]]]:
    return [list(zip(*(part.tolist() for part in order.step(i)), strict=True)) for i in range(order.num_steps)]


@st.composite
def datasets(draw):
    """(costs of each row group, its file): a few shards as the job writes them, some row groups of any size."""
    groups, files = [], []
    for file in range(draw(st.integers(0, 5))):
        costs = np.array(draw(st.lists(st.integers(0, 20), max_size=60)), dtype=np.int64)
        if draw(st.booleans()):
            shard = [costs[group].tolist() for group in row_groups(costs, draw(st.integers(1, 9)), 0)]
        else:
            cuts = sorted(draw(st.lists(st.integers(0, len(costs)), max_size=5)))
            shard = [part.tolist() for part in np.split(costs, cuts)]
        groups += shard
        files += [file] * len(shard)
    return groups, files


options = st.fixed_dictionaries(
    {
        "global_batch_size": st.integers(1, 12),
        "seed": st.integers(0, 3),
        "epoch": st.integers(0, 3),
        "shuffle": st.booleans(),
        "balance": st.booleans(),
        "end": st.sampled_from(["drop", "pad"]),
    }
)


@given(dataset=datasets(), options=options)
@settings(max_examples=150, deadline=None)
def test_every_pack_exactly_once(dataset, options):
    groups, files = dataset
    order = order_of(groups, files, **options)
    everything = sorted((group, row) for group, costs in enumerate(groups) for row in range(len(costs)))
    dealt = [pack for step in steps_of(order) for pack in step]
    dropped = list(zip(*(part.tolist() for part in order.dropped), strict=True))
    real = [(group, row) for group, row, is_padding in dealt if not is_padding]
    assert sorted(real + dropped) == everything
    assert len(dropped) < options["global_batch_size"]
    padding = [(group, row) for group, row, is_padding in dealt if is_padding]
    assert set(padding) <= set(real)
    if options["end"] == "pad":
        assert not dropped
        assert order.num_steps == -(-len(everything) // options["global_batch_size"])
    else:
        assert not padding
        assert order.num_steps == len(everything) // options["global_batch_size"]


@given(dataset=datasets(), options=options)
@settings(max_examples=60, deadline=None)
def test_the_same_arguments_give_the_same_order(dataset, options):
    groups, files = dataset
    assert steps_of(order_of(groups, files, **options)) == steps_of(order_of(groups, files, **options))


@given(dataset=datasets(), options=options)
@settings(max_examples=60, deadline=None)
def test_blocks_are_the_steps(dataset, options):
    groups, files = dataset
    order = order_of(groups, files, **options)
    blocks = [
        list(zip(*(part[i].tolist() for part in block), strict=True))
        for block in order.blocks()
        for i in range(len(block[0]))
    ]
    assert blocks == steps_of(order)


@given(dataset=datasets(), options=options, start=st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_visits_cover_what_lanes_need_from_any_step_on(dataset, options, start):
    groups, files = dataset
    order = order_of(groups, files, **options)
    num_lanes = options["global_batch_size"]
    for first, count in {(0, num_lanes), (num_lanes // 2, max(1, num_lanes // 3))}:
        visits = list(order.visits(start, first, count))
        assert [visit.step for visit in visits] == sorted(visit.step for visit in visits)
        needed = {
            (i, group)
            for i in range(start, order.num_steps)
            for group in order.step(i)[0][first : first + count].tolist()
        }
        held = {(i, visit.row_group) for visit in visits for i in range(visit.step, visit.step + visit.num_steps)}
        assert needed <= held
        # Nothing is fetched early or kept late: both ends of each visit are needed.
        ends = {(i, visit.row_group) for visit in visits for i in (visit.step, visit.step + visit.num_steps - 1)}
        assert ends <= needed


def big(num_files=12, seed=0):
    """16 or 17 row groups a file, of 8 and 7 packs."""
    rng = np.random.default_rng(seed)
    groups, files = [], []
    for file in range(num_files):
        costs = rng.gamma(6, 4, 120 + int(rng.integers(0, 9))).astype(np.int64)
        shard = row_groups(costs, 8, 0)
        groups += [costs[group].tolist() for group in shard]
        files += [file] * len(shard)
    return groups, files


def test_the_global_batch_is_the_same_at_every_world_size():
    groups, files = big()
    order = order_of(groups, files, global_batch_size=12)
    for world_size in (1, 2, 3, 4, 6, 12):
        lanes = 12 // world_size
        for i in (0, 7, order.num_steps - 1):
            row_groups_, rows, _ = order.step(i)
            ranks = [
                list(zip(row_groups_[r * lanes : (r + 1) * lanes], rows[r * lanes : (r + 1) * lanes], strict=True))
                for r in range(world_size)
            ]
            assert [pack for rank in ranks for pack in rank] == list(zip(row_groups_, rows, strict=True))


def test_a_lane_reads_a_row_group_to_its_end_before_the_next():
    groups, files = big()
    order = order_of(groups, files, global_batch_size=8)
    assert len(order.cycles) > 10
    for start, end, cycle in zip(order.cycle_steps[:-1], order.cycle_steps[1:], order.cycles, strict=True):
        for i in range(start, end):
            row_groups_, rows, _ = order.step(i)
            assert row_groups_.tolist() == cycle.tolist()
            assert len(set(rows.tolist())) == 1  # the same position in all lanes: that is what is aligned
        assert {len(groups[group]) for group in cycle.tolist()} == {end - start}


def test_a_rank_reads_from_few_files():
    groups, files = big(num_files=64)
    order = order_of(groups, files, global_batch_size=32)
    shuffled = order_of(groups, list(range(len(groups))), global_batch_size=32)  # as if each had a file of its own

    def opened(order):
        return sum(len(np.unique(np.array(files)[order.cycles[:, lane : lane + 4]])) for lane in range(0, 32, 4))

    assert opened(order) < 0.6 * opened(shuffled)


def test_epoch_and_seed_change_the_order():
    groups, files = big()
    orders = [steps_of(order_of(groups, files, seed=seed, epoch=epoch)) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]
    assert orders[1] != orders[2]
    together = [{frozenset(pack[:2] for pack in step) for step in order} for order in orders]
    assert len(together[0] & together[1]) < 0.2 * len(together[0])  # batches are new, not only their order


def test_what_is_dropped_changes_with_the_epoch():
    groups, files = big()
    dropped = {
        tuple(sorted(zip(*(part.tolist() for part in order.dropped), strict=True)))
        for order in (order_of(groups, files, global_batch_size=64, epoch=epoch) for epoch in range(8))
    }
    assert len(dropped) > 4


def test_without_shuffle_rows_come_as_stored():
    groups = [[1, 1, 1]] * 4
    order = order_of(groups, global_batch_size=2, shuffle=False)
    packs = [[(group, row) for group, row, _ in step] for step in steps_of(order)]
    assert packs == [[(0, r), (1, r)] for r in range(3)] + [[(2, r), (3, r)] for r in range(3)]


def test_leftovers_are_dealt_by_cost():
    # Three row groups on four lanes: no cycle; nine packs by cost are two steps, and one remains.
    order = order_of([[1, 2, 3], [1, 2, 3], [1, 2, 3]], shuffle=False)
    costs = [[row + 1 for _, row, _ in step] for step in steps_of(order)]
    assert [sorted(step) for step in costs] == [[1, 1, 1, 2], [2, 2, 3, 3]]
    assert [part.tolist() for part in order.dropped] == [[2], [2]]


def test_cycles_of_nearly_one_size_lose_packs_from_the_middle():
    # Sizes 3 and 4 on two lanes: three steps by rank; the pack of cost 7, in the middle of its group, is left over.
    order = order_of([[1, 5, 9], [1, 5, 7, 9]], global_batch_size=2, shuffle=False)
    costs = [[1, 5, 9], [1, 5, 7, 9]]
    assert sorted([costs[group][row] for group, row, _ in step] for step in steps_of(order))[0] == [1, 1]
    assert order.num_steps == 3
    (group,), (row,) = (part.tolist() for part in order.dropped)
    assert (group, costs[group][row]) in {(1, 5), (1, 7)}


def test_padding_repeats_and_marks():
    order = order_of([[1, 2, 3]], global_batch_size=2, end="pad", shuffle=False)
    assert steps_of(order)[-1] == [(0, 2, False), (0, 2, True)]
    tiny = order_of([[5]], global_batch_size=3, end="pad")
    assert steps_of(tiny) == [[(0, 0, False), (0, 0, True), (0, 0, True)]]


def test_hashes_never_change():
    """A checkpoint finds its order years later. If these values change, ORDER_VERSION must, too."""
    assert hashes(2, 0).tolist() == [12035550249420947055, 12935080325729570654]
    assert permutation(8, 1, 2, 3).tolist() == [5, 0, 7, 3, 6, 1, 4, 2]
    assert sorted(permutation(1000, 5).tolist()) == list(range(1000))
    assert hashes(3, 1, 2).tolist() != hashes(3, 2, 1).tolist()
    assert hashes(1, -1).tolist() != hashes(1, 1).tolist()


def test_order_never_changes():
    groups, files = big(num_files=2)
    packs = np.array([pack[:2] for step in steps_of(order_of(groups, files)) for pack in step])
    assert int((packs[:, 0] * 100 + packs[:, 1]) @ np.arange(len(packs)) % 1_000_003) == 458571


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"end": "stop"}, "end='stop'"),
        ({"files": [0, 0]}, "must describe the same row groups"),
    ],
)
def test_bad_arguments_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        order_of([[1, 2]], **bad)


def test_steps_outside_the_epoch_are_refused():
    order = order_of([[1, 1, 1, 1]], global_batch_size=2)
    with pytest.raises(IndexError, match="step 2 of an epoch of 2 steps"):
        order.step(2)
    with pytest.raises(IndexError):
        order.step(-1)
