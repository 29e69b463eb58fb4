"""Row groups aligned in image work, and the figures that say what they are worth."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing_udfs.contract import MANIFEST_SCHEMA
from packing_udfs.published.straggler import step_cv, straggler
from packing_udfs.shard.row_groups import row_groups


def manifest(files: dict[str, list[list[int]]]) -> pa.Table:
    """A manifest of the vision costs of each row group of each file."""
    rows = [
        {"file": file, "row_group": index, "num_rows": len(costs), "vision_cost": costs}
        for file, groups in files.items()
        for index, costs in enumerate(groups)
    ]
    return pa.Table.from_pylist(rows, schema=MANIFEST_SCHEMA)


def written(shards: list[np.ndarray], num_packs_per_group: int) -> pa.Table:
    return manifest(
        {
            f"{number:03d}": [costs[group].tolist() for group in row_groups(costs, num_packs_per_group, 0)]
            for number, costs in enumerate(shards)
        }
    )


def test_by_hand():
    # Costs 10 … 90 in three row groups of three: layers (10 20 30) (40 50 60) (70 80 90), the g-th of each to group g.
    groups = row_groups(np.arange(90, 0, -10), 3, seed=0)
    assert [sorted((90 - 10 * group).tolist()) for group in groups] == [[10, 40, 70], [20, 50, 80], [30, 60, 90]]
    # One permutation of positions for all: the cheapest sits at the same place in each.
    assert len({int(np.argmax(group)) for group in groups}) == 1


@given(
    costs=st.lists(st.integers(0, 30), max_size=200),
    num_packs_per_group=st.integers(1, 40),
    seed=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_invariants(costs, num_packs_per_group, seed):
    costs = np.array(costs, dtype=np.int64)
    groups = row_groups(costs, num_packs_per_group, seed)
    assert len(groups) == -(-len(costs) // num_packs_per_group)
    if not groups:
        return
    assert np.sort(np.concatenate(groups)).tolist() == list(range(len(costs)))
    sizes = [len(group) for group in groups]
    assert max(sizes) <= num_packs_per_group
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    again = row_groups(costs, num_packs_per_group, seed)
    assert [group.tolist() for group in again] == [group.tolist() for group in groups]
    # The costs at one position of groups of one size come from fewer neighbouring ranks than there are groups.
    rank = np.empty(len(costs), dtype=np.int64)
    rank[np.argsort(costs, kind="stable")] = np.arange(len(costs))
    for size in set(sizes):
        at = np.stack([rank[group] for group in groups if len(group) == size])
        assert (at.max(axis=0) - at.min(axis=0) < len(groups)).all()


def test_positions_are_permuted_by_seed_and_equally_in_all_shards():
    one, two = np.arange(64), np.arange(64) * 3 % 64
    places = [[costs[group].argsort().tolist() for group in row_groups(costs, 16, 7)] for costs in (one, two)]
    assert all(place == places[0][0] for shard in places for place in shard)
    assert places[0][0] != list(range(16))
    assert row_groups(one, 16, 8)[0].tolist() != row_groups(one, 16, 7)[0].tolist()


def test_the_short_layer_is_in_the_middle():
    # 10 packs in 3 groups: layers (0 1 2) (3) (4 5 6) (7 8 9) would start with a short one at 3; sizes 4 3 3.
    groups = row_groups(np.arange(10), 4, seed=0)
    assert [sorted(group.tolist()) for group in groups] == [[0, 3, 4, 7], [1, 5, 8], [2, 6, 9]]


def test_straggler_by_hand():
    # Two files of one row group each, one pack a row group: step (2, 4) has max 4 and mean 3.
    assert straggler(manifest({"a": [[2]], "b": [[4]]}), 2) == pytest.approx(4 / 3)
    # All four lanes of one step, two a rank, in the order of files drawn: {1, 1, 1, 5} is 6 against 2 for two ranks.
    table = manifest({"a": [[1]], "b": [[1]], "c": [[1]], "d": [[5]]})
    assert straggler(table, 2, global_batch_size=4) == pytest.approx(6 / 4)
    assert straggler(table, 1, global_batch_size=4) == 1.0
    assert straggler(manifest({"a": [[0]], "b": [[0]]}), 2) == 1.0
    assert straggler(manifest({}), 4) == 1.0
    with pytest.raises(ValueError, match="global_batch_size=6: must be a multiple of world_size=4"):
        straggler(table, 4, global_batch_size=6)


def test_step_cv_by_hand():
    # Steps of one pack: costs 1 and 3 have mean 2 and standard deviation 1.
    assert step_cv(manifest({"a": [[1, 3]]}), 1) == pytest.approx(0.5)
    assert step_cv(manifest({"a": [[2, 2]]}), 1) == 0.0
    assert step_cv(manifest({}), 1) == 0.0


def test_alignment_makes_ranks_even_at_the_price_of_step_cv():
    rng = np.random.default_rng(0)
    shards = [np.minimum(rng.gamma(6, 4, 320 + int(rng.integers(-5, 6))), 60).astype(np.int64) for _ in range(16)]
    table = written(shards, 16)
    for world_size in (4, 16):
        even, uneven = (straggler(table, world_size, balance=balance) for balance in (True, False))
        assert 1 < even < 1.1
        assert uneven - 1 > 5 * (even - 1)
    assert step_cv(table, 16) > 2 * step_cv(table, 16, balance=False)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="num_packs_per_group=0"):
        row_groups(np.array([1]), 0, 0)


def test_straggler_of_attention():
    """Two ranks, two steps of attention 1 and 3, then 2 and 2: (3 / 2 + 2 / 2) / 2."""
    rows = [
        {"file": "a", "row_group": i, "num_rows": 2, "vision_cost": [1, 1], "attention_cost": costs}
        for i, costs in enumerate([[1, 2], [3, 2]])
    ]
    table = pa.Table.from_pylist(rows, schema=MANIFEST_SCHEMA)
    assert straggler(table, 2, cost="attention_cost") == 1.25
    assert straggler(table, 2) == 1.0
