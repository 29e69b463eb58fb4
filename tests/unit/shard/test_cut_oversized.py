"""Where an oversized shard is cut: worked examples, and what holds for any sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing_udfs.shard.cut_oversized import runs


def cut(sizes: list[int], max_bytes: int) -> list[list[int]]:
    return [sizes[run] for run in runs(sizes, max_bytes)]


@pytest.mark.parametrize(
    ("sizes", "max_bytes", "expected"),
    [
        ([3, 3, 3, 3], 12, [[3, 3, 3, 3]]),
        ([3, 3, 3, 3], 11, [[3, 3], [3, 3]]),  # not three and one
        ([3, 3, 3, 3], 3, [[3], [3], [3], [3]]),
        ([1, 1, 100, 1], 10, [[1, 1], [100], [1]]),  # one that fits nowhere is alone
        ([5, 1, 1, 1, 1, 1], 6, [[5], [1, 1, 1, 1, 1]]),  # by bytes, not by number
        ([0, 0, 0], 1, [[0, 0, 0]]),
        ([7], 1, [[7]]),
        ([], 1, []),
    ],
)
def test_worked_examples(sizes, max_bytes, expected):
    assert cut(sizes, max_bytes) == expected


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 120))
def test_few_and_even_runs_within_the_limit(sizes, max_bytes):
    found = cut(sizes, max_bytes)
    assert [size for run in found for size in run] == sizes
    assert all(len(run) == 1 or sum(run) <= max_bytes for run in found)
    num_greedy, room = 0, -1
    for size in sizes:  # filled from the front, which no other way beats in number
        num_greedy, room = (num_greedy, room - size) if size <= room else (num_greedy + 1, max_bytes - size)
    assert len(found) == num_greedy


@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(20, 60))
def test_no_other_cut_of_as_many_runs_has_a_smaller_largest(sizes, max_bytes):
    found = cut(sizes, max_bytes)
    best = min(
        max(part.sum() for part in np.split(np.asarray(sizes), places))
        for places in _places(len(sizes), len(found) - 1)
    )
    assert max(sum(run) for run in found) == best


def _places(length: int, count: int, start: int = 1) -> list[list[int]]:
    if count == 0:
        return [[]]
    return [[at, *rest] for at in range(start, length) for rest in _places(length, count - 1, at + 1)]
