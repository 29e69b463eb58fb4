"""Figures worked out by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packing_udfs import metrics
from packing_udfs.knapsack import Amounts

# 18 samples: a batch of 16 whose longest has 40 tokens, and one of two, 10 and 5.
AMOUNTS = Amounts(num_tokens=[40, *[4] * 15, 10, 5], vision_cost=[3, *[0] * 15, 2, 0])


def test_sums_of_a_shard():
    assert metrics.shard_sums(AMOUNTS, num_packs=3, bound=2) == {
        "num_samples": 18,
        "num_packs": 3,
        "bound": 2,
        "num_tokens": 40 + 60 + 15,
        "vision_cost": 5,
        "attention_cost": 1600 + 15 * 16 + 100 + 25,
        "naive_tokens": 16 * 40 + 2 * 10,
    }


def test_sums_are_integers_that_json_takes():
    """And squares of long samples do not overflow 32 bits: 100,000² is 10¹⁰."""
    sums = metrics.shard_sums(Amounts(num_tokens=np.asarray([100_000], np.int32)), 1, 1)
    assert {type(value) for value in sums.values()} == {int}
    assert sums["attention_cost"] == 10**10


def test_an_empty_shard():
    empty = np.empty(0, np.int64)
    sums = metrics.shard_sums(Amounts(num_tokens=empty), 0, 0)
    assert set(sums.values()) == {0}
    assert metrics.summarise(sums, 100) == {"fill": 0.0, "over_bound": 0.0, "naive_waste": 0.0}


def test_add():
    assert metrics.add([]) == {}
    assert metrics.add([{"a": 1, "b": 2}, {"a": 10}, {"b": 5, "c": 7}]) == {"a": 11, "b": 7, "c": 7}


def test_figures():
    """115 tokens in 3 packs of 50; 3 packs for a bound of 2; 660 tokens padded, of which 545 are pads."""
    figures = metrics.summarise(metrics.shard_sums(AMOUNTS, num_packs=3, bound=2), seq_len=50)
    assert figures == {"fill": 0.766667, "over_bound": 0.5, "naive_waste": 0.825758}


def test_figures_of_a_run_are_those_of_its_added_shards():
    """Shards add up to what one list of sums says, and not to a mean of fractions."""
    one = {"num_tokens": 90, "num_packs": 1, "bound": 1, "naive_tokens": 90}
    other = {"num_tokens": 10, "num_packs": 1, "bound": 1, "naive_tokens": 110}
    assert metrics.summarise(metrics.add([one, other, one]), 100)["fill"] == round(190 / 300, 6)


def test_histograms_of_a_shard():
    """Packs (40 4 4) and (10 5) of 50: 48 tokens are 96 %, 15 are 30 %. 40 ends its bin (36, 40]."""
    lengths, costs = np.asarray([40, 4, 4, 10, 5]), np.asarray([17, 0, 0, 2, 0])
    packs = [np.asarray([0, 1, 2]), np.asarray([3, 4])]
    amounts = Amounts(num_tokens=lengths, vision_cost=costs, num_images=np.minimum(costs, 1))
    assert metrics.histograms(amounts, packs, 50) == {
        "sample_tokens": {"4": 2, "5": 1, "10": 1, "40": 1},
        "sample_images": {"0": 3, "1": 2},
        "sample_vision": {"0": 3, "2": 1, "18": 1},
        "pack_fill": {"30": 1, "96": 1},
        "pack_images": {"1": 2},
        "pack_vision": {"2": 1, "18": 1},
    }


def test_bins_by_hand():
    assert metrics.bins(np.asarray([0, 1, 16, 17, 18, 19, 32, 33, 97, 104, 105, 4096, 4097])).tolist() == [
        0, 1, 16, 18, 18, 20, 32, 36, 104, 104, 112, 4096, 4608,
    ]  # fmt: skip


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50))
def test_bins_hold_their_values_and_are_narrow(values):
    found = metrics.bins(np.asarray(values))
    assert metrics.bins(found).tolist() == found.tolist()
    for value, end in zip(values, found.tolist(), strict=True):
        assert value <= end <= value + max(0, value - 1) // 8
        assert (metrics.bins(np.asarray([end + 1])) > end).all()


def test_histograms_of_shards_add_up():
    one, other = {"sums": 1, "histograms": {"a": {"1": 2, "4": 1}}}, {"sums": 2, "histograms": {"a": {"4": 5}, "b": {}}}
    assert metrics.add([one, other]) == {"sums": 3, "histograms": {"a": {"1": 2, "4": 6}, "b": {}}}
    assert one["histograms"] == {"a": {"1": 2, "4": 1}}
