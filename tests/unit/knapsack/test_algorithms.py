"""Packing: worked examples, the exact optimum of small cases, invariants over generated ones."""

import tracemalloc
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing_udfs import knapsack
from packing_udfs.knapsack import ALGORITHMS, Amounts, Budgets, fill_by_score
from packing_udfs.knapsack.even_out import even_out
from packing_udfs.knapsack.fill_by_kind import fill_patterns
from packing_udfs.knapsack.lower_bound import one_budget
from tests.bench import finevision
from tests.bench.column_generation import lower_bound

ALL = sorted(ALGORITHMS)


def check(bins, lengths, budgets, vision_cost=None, num_images=None):
    """Every sample in exactly one pack, no pack empty or over a budget."""
    assert all(len(members) and members.dtype == np.int64 for members in bins)
    placed = np.concatenate(bins) if bins else np.array([], dtype=np.int64)
    assert np.sort(placed).tolist() == list(range(len(lengths)))
    for values, cap in (
        (lengths, budgets["num_tokens"]),
        (vision_cost, budgets.get("vision_cost")),
        (num_images, budgets.get("num_images")),
    ):
        if cap is not None:
            assert all(np.asarray(values)[members].sum() <= cap for members in bins)


def optimum(sizes: list[tuple[int, ...]], caps: tuple[int, ...]) -> int:
    """The fewest packs, by trying every set of samples that fits."""
    n = len(sizes)
    fits = [
        all(sum(sizes[i][d] for i in range(n) if mask >> i & 1) <= cap for d, cap in enumerate(caps))
        for mask in range(1 << n)
    ]

    @cache
    def packs(left: int) -> int:
        if not left:
            return 0
        first = left & -left
        rest, best, part = left ^ first, n, left ^ first
        while True:
            if fits[part | first]:
                best = min(best, 1 + packs(rest ^ part))
            if not part:
                return best
            part = (part - 1) & rest

    return packs((1 << n) - 1)


@st.composite
def problems(draw, max_samples=60):
    """(lengths, budgets, costs): some budgets are off, and the sizes are of kinds that packers stumble on."""
    seq_len = draw(st.sampled_from([1, 7, 64, 100, 1000]))
    power = 1 << draw(st.integers(0, 9))
    kind = draw(st.sampled_from(["any", "equal", "near a power of two", "one giant", "zeros"]))
    length = {
        "any": st.integers(0, seq_len),
        "equal": st.just(min(seq_len, power)),
        "near a power of two": st.integers(power - 1, power + 1).map(lambda x: min(x, seq_len)),
        "one giant": st.integers(0, max(1, seq_len // 20)),
        "zeros": st.sampled_from([0, 0, seq_len]),
    }[kind]
    lengths = draw(st.lists(length, max_size=max_samples))
    if kind == "one giant" and lengths:
        lengths[draw(st.integers(0, len(lengths) - 1))] = seq_len
    vision_cap = draw(st.sampled_from([None, 1, 5, 40, 5000]))
    image_cap = draw(st.sampled_from([None, 1, 3]))
    pictures = draw(st.sampled_from(["none", "all", "mixed"]))
    least = {"none": 0, "all": 1, "mixed": 0}[pictures]
    most = 0 if pictures == "none" else 10_000

    def costs(cap):
        top = max(least, min(most, 100 if cap is None else cap))
        return np.array(draw(st.lists(st.integers(least, top), min_size=len(lengths), max_size=len(lengths))), int)

    budgets = Budgets(num_tokens=seq_len, vision_cost=vision_cap, num_images=image_cap)
    return np.array(lengths, int), budgets, {"vision_cost": costs(vision_cap), "num_images": costs(image_cap)}


def test_integers_to_24_by_hand():
    lengths, budgets = np.arange(1, 25), Budgets(num_tokens=100)
    packs = [lengths[members].tolist() for members in knapsack.greedy(Amounts(num_tokens=lengths), budgets)]
    assert packs == [list(range(1, 14)), list(range(14, 20)), list(range(20, 24)), [24]]
    packs = [
        lengths[members].tolist() for members in knapsack.first_fit_decreasing(Amounts(num_tokens=lengths), budgets)
    ]
    assert packs == [[24, 23, 22, 21, 10], [20, 19, 18, 17, 16, 9, 1], [15, 14, 13, 12, 11, 8, 7, 6, 5, 4, 3, 2]]
    assert (
        len(knapsack.balanced(Amounts(num_tokens=lengths), budgets))
        == 3
        == knapsack.bound(Amounts(num_tokens=lengths), budgets)
    )


def test_best_fit_takes_the_pack_with_the_least_room():
    # 60 and 70 open packs with 40 and 30 left; 30 fits both and belongs in the second, so that 40 still fits.
    packs = knapsack.best_fit_decreasing(Amounts(num_tokens=np.array([60, 70, 30, 40])), Budgets(num_tokens=100))
    assert sorted(sorted(members.tolist()) for members in packs) == [[0, 3], [1, 2]]


@pytest.mark.parametrize("name", ALL)
def test_long_tokens_go_with_costly_images(name):
    # Two of text and two of images fill exactly two packs; two alike in one pack never fit.
    lengths, costs = np.array([70, 70, 30, 30]), np.array([3, 3, 7, 7])
    if name == "greedy":
        lengths, costs = lengths[[0, 2, 1, 3]], costs[[0, 2, 1, 3]]
    budgets = Budgets(num_tokens=100, vision_cost=10)
    packs = ALGORITHMS[name](Amounts(num_tokens=lengths, vision_cost=costs), budgets)
    check(packs, lengths, budgets, costs)
    assert len(packs) == 2


@pytest.mark.parametrize("name", ALL)
@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_invariants(name, problem):
    lengths, budgets, costs = problem
    bins = ALGORITHMS[name](Amounts(num_tokens=lengths, **costs), budgets)
    check(bins, lengths, budgets, **costs)
    assert len(bins) >= knapsack.bound(Amounts(num_tokens=lengths, **costs), budgets)
    again = ALGORITHMS[name](Amounts(num_tokens=lengths.copy(), **costs), budgets)
    assert [members.tolist() for members in again] == [members.tolist() for members in bins]


@pytest.mark.parametrize("name", sorted(set(ALL) - {"greedy"}))
@given(problem=problems(), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_order_of_samples_changes_nothing_but_their_names(name, problem, seed):
    lengths, budgets, costs = problem
    shuffled = np.random.default_rng(seed).permutation(len(lengths))
    loads = []
    for order in (np.arange(len(lengths)), shuffled):
        vision = costs["vision_cost"][order]
        images = costs["num_images"][order]
        if budgets.get("num_images") is None:  # then samples that differ in images only are equal
            images = np.zeros_like(images)
        if budgets.get("vision_cost") is None and name != "balanced":
            vision = np.zeros_like(vision)
        bins = ALGORITHMS[name](Amounts(num_tokens=lengths[order], vision_cost=vision, num_images=images), budgets)
        loads.append(sorted((lengths[order][b].sum(), vision[b].sum(), images[b].sum()) for b in bins))
    assert loads[0] == loads[1]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("exponent", [5, 8, 11])
def test_every_length_around_a_power_of_two_is_packed(name, exponent):
    seq_len = 2**exponent + 1
    lengths = np.array([seq_len, 2**exponent, 2**exponent - 1, 1, 1, 1] * 3)
    bins = ALGORITHMS[name](Amounts(num_tokens=lengths), Budgets(num_tokens=seq_len))
    check(bins, lengths, Budgets(num_tokens=seq_len))
    if name != "greedy":
        assert len(bins) == 9  # each long one needs its own; the ones beside the others


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=9))
@settings(max_examples=60, deadline=None)
def test_small_cases_against_the_optimum(samples):
    lengths, costs = np.array(samples).T
    budgets = Budgets(num_tokens=12, vision_cost=5)
    best = optimum(samples, (12, 5))
    assert knapsack.bound(Amounts(num_tokens=lengths, vision_cost=costs), budgets) <= best
    assert best <= len(knapsack.balanced(Amounts(num_tokens=lengths, vision_cost=costs), budgets)) <= best + 1


@given(st.lists(st.integers(0, 20), max_size=10))
@settings(max_examples=60, deadline=None)
def test_one_budget_bound_is_never_above_the_optimum(sizes):
    assert one_budget(np.array(sizes), 20) <= optimum([(size,) for size in sizes], (20,))


def test_bounds_by_hand():
    assert one_budget(np.array([6, 6, 6]), 10) == 3  # L1 says 2
    assert one_budget(np.array([7, 7, 4, 4]), 10) == 3  # 4 fits beside no 7: L1 says 3 too
    assert one_budget(np.array([8, 8, 5, 5, 3]), 10) == 4  # L1 says 3; 8 and 5 leave 3 no room, yet L2 sees only α
    assert one_budget(np.array([], dtype=int), 10) == 0
    costs = np.array([1, 1, 1, 1])
    assert (
        knapsack.bound(
            Amounts(num_tokens=np.array([1, 1, 1, 1]), vision_cost=costs), Budgets(num_tokens=10, vision_cost=2)
        )
        == 2
    )
    assert knapsack.bound(Amounts(num_tokens=np.array([0, 0])), Budgets(num_tokens=10)) == 1


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5)), min_size=1, max_size=8))
@settings(max_examples=15, deadline=None)
def test_column_generation_is_between_the_simple_bound_and_the_optimum(samples):
    lengths, costs = np.array(samples).T
    budgets = Budgets(num_tokens=12, vision_cost=5)
    bound = lower_bound(Amounts(num_tokens=lengths, vision_cost=costs), budgets)
    assert knapsack.bound(Amounts(num_tokens=lengths, vision_cost=costs), budgets) <= bound <= optimum(samples, (12, 5))


def shard(num_samples, budgets, seed):
    samples = finevision.draw(num_samples, seed=seed)
    fits = ~knapsack.too_large(samples.amounts, budgets)
    assert 0 < fits.sum() < num_samples  # the generator draws samples over the budget, too
    return samples.take(np.flatnonzero(fits))


def test_at_the_bound_where_tokens_bind():
    budgets = Budgets(num_tokens=4096, vision_cost=64)
    samples = shard(1_000, budgets, seed=3)
    bins = knapsack.balanced(samples.amounts, budgets)
    check(bins, samples.lengths, budgets, samples.vision_costs, samples.num_images)
    assert len(bins) <= knapsack.bound(samples.amounts, budgets) + 1


@pytest.mark.parametrize(("max_tiles", "seed"), [(24, 3), (40, 3), (40, 4)])
def test_near_the_bound_where_both_budgets_bind(max_tiles, seed):
    budgets = Budgets(num_tokens=4096, vision_cost=max_tiles)
    samples = shard(1_000, budgets, seed=seed)
    bins = knapsack.balanced(samples.amounts, budgets)
    check(bins, samples.lengths, budgets, samples.vision_costs, samples.num_images)
    best = lower_bound(samples.amounts, budgets, packs=bins, max_rounds=40)
    assert knapsack.bound(samples.amounts, budgets) <= best <= len(bins) <= 1.02 * best


@given(problem=problems(max_samples=200))
@settings(max_examples=60, deadline=None)
def test_with_tokens_alone_never_more_packs_than_best_fit_decreasing(problem):
    lengths, budgets, costs = problem
    budgets = Budgets(num_tokens=budgets["num_tokens"])
    ours = knapsack.balanced(Amounts(num_tokens=lengths, **costs), budgets)
    check(ours, lengths, budgets)
    assert len(ours) <= len(knapsack.best_fit_decreasing(Amounts(num_tokens=lengths), budgets))


@pytest.mark.parametrize("seed", [33, 241, 277])
def test_best_fit_is_tried_where_filling_takes_a_pack_more(seed):
    lengths = np.random.default_rng(seed).integers(20, 60, size=40)
    assert len(knapsack.balanced(Amounts(num_tokens=lengths), Budgets(num_tokens=100))) == 16


@given(lengths=st.lists(st.integers(0, 60), max_size=200))
@settings(max_examples=60, deadline=None)
def test_patterns_without_images_are_best_fit_decreasing(lengths):
    lengths = np.array(lengths, dtype=np.int64)
    ours = fill_patterns(Amounts(num_tokens=lengths, vision_cost=0 * lengths), Budgets(num_tokens=60, vision_cost=1))
    theirs = knapsack.best_fit_decreasing(Amounts(num_tokens=lengths), Budgets(num_tokens=60))
    loads = [sorted(sorted(lengths[members].tolist()) for members in bins) for bins in (ours, theirs)]
    assert loads[0] == loads[1]


def patterns(lengths, vision, caps):
    """The packs of `fill_patterns` as sorted lists of lengths."""
    budgets = Budgets(num_tokens=caps[0], vision_cost=caps[1])
    packs = fill_patterns(Amounts(num_tokens=lengths, vision_cost=vision), budgets)
    return sorted(sorted(lengths[i] for i in members) for members in packs)


def test_long_samples_meet_short_ones():
    # Longest first, 5 + 4 leave no room for a third of three; evenly, all six take two packs.
    assert patterns([5, 4, 3, 3, 2, 1], [13] * 6, (10, 40)) == [[1, 2, 5], [3, 3, 4]]


def test_costs_that_waste_the_budget_do_not_meet():
    # Of 40 tiles 17 + 13 wastes 10: two 17s and three 13s it is, though 6 + 4 tokens would fill a pack.
    assert patterns([6, 4, 4, 3, 3], [17, 17, 13, 13, 13], (10, 40)) == [[3, 3, 4], [4, 6]]


def test_an_outlier_goes_with_the_costliest_that_fits_beside_it():
    # 7 and the two shortest 13s are more than 10 tokens; of what fits beside it, the 17-tile sample is worth more.
    lengths, vision = [7, 2, 2, 2, 2, 3, 5], [13, 13, 13, 13, 13, 17, 17]
    assert patterns(lengths, vision, (10, 40)) == [[2, 2, 2], [2, 5], [3, 7]]


def test_text_takes_the_room_that_images_leave():
    # Rooms 1 and 4: 4 and 1 fill both.
    assert patterns([9, 6, 4, 1], [40, 40, 0, 0], (10, 40)) == [[1, 9], [4, 6]]


def test_many_distinct_costs_share_classes_and_keep_the_budget():
    budgets = Budgets(num_tokens=4096, vision_cost=9000)
    samples = finevision.draw(1_000, seed=6, unit="patches")
    samples = samples.take(np.flatnonzero(~knapsack.too_large(samples.amounts, budgets)))
    assert len(np.unique(samples.vision_costs)) > fill_by_score.NUM_CLASSES
    bins = knapsack.balanced(samples.amounts, budgets)
    check(bins, samples.lengths, budgets, samples.vision_costs, samples.num_images)
    assert len(bins) <= 1.05 * knapsack.bound(samples.amounts, budgets)


def spread(bins, costs):
    loads = np.array([costs[members].sum() for members in bins])
    return loads.std() / loads.mean()


def test_packs_come_out_alike_in_image_work():
    budgets = Budgets(num_tokens=4096, vision_cost=64)
    samples = shard(2_000, budgets, seed=4)
    ours = knapsack.balanced(samples.amounts, budgets)
    others = knapsack.first_fit_decreasing(samples.amounts, budgets)
    assert spread(ours, samples.vision_costs) < 0.6 * spread(others, samples.vision_costs)
    # The same without a budget for it: costs that are given are evened out.
    ours = knapsack.balanced(samples.amounts, Budgets(num_tokens=4096))
    assert spread(ours, samples.vision_costs) < 0.6 * spread(others, samples.vision_costs)


def test_attention_weight_evens_out_attention():
    lengths = np.array([512] * 40 + [32] * 640)
    budgets, attention = Budgets(num_tokens=1024), lengths**2
    without = knapsack.balanced(Amounts(num_tokens=lengths), budgets)
    weighted = knapsack.balanced(Amounts(num_tokens=lengths), budgets, attention_weight=1.0)
    check(weighted, lengths, budgets)
    assert spread(weighted, attention) < 0.5 * spread(without, attention)
    assert len(weighted) == len(without) == knapsack.bound(Amounts(num_tokens=lengths), budgets)


@given(problem=problems(), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_evening_out_keeps_budgets_and_never_spreads(problem, seed):
    lengths, budgets, costs = problem
    if not len(lengths):
        return
    budgets = Budgets(num_tokens=budgets["num_tokens"], vision_cost=budgets.get("vision_cost"))
    bins = knapsack.first_fit_decreasing(Amounts(num_tokens=lengths, **costs), budgets)
    bin_of = np.empty(len(lengths), dtype=np.int64)
    for number, members in enumerate(bins):
        bin_of[members] = number
    amounts = Amounts(num_tokens=lengths, **costs)
    work = np.random.default_rng(seed).random(len(lengths))
    after = even_out(bin_of, amounts, budgets, work)
    assert all((np.bincount(after, weights=amounts[name]) <= cap).all() for name, cap in budgets.items())
    assert np.bincount(after).tolist() == np.bincount(bin_of).tolist()
    before_, after_ = (np.bincount(which, weights=work) for which in (bin_of, after))
    assert (after_**2).sum() <= (before_**2).sum() + 1e-6


def test_evening_out_swaps_equal_lengths():
    # Packs (5, 5) and (5, 5), all the image work in the first.
    after = even_out(
        np.array([0, 0, 1, 1]), Amounts(num_tokens=[5] * 4), Budgets(num_tokens=10), np.array([3.0, 3.0, 0, 0])
    )
    assert np.bincount(after, weights=[3, 3, 0, 0]).tolist() == [3, 3]


def test_a_short_pack_is_completed():
    # Room 10: the longest that fits, 9, leaves 1. It goes back for 4 + 6, and all of it takes two packs less.
    lengths = np.array([90, 9, 4, 6])
    bins = knapsack.balanced(Amounts(num_tokens=lengths), Budgets(num_tokens=100))
    assert sorted(sorted(lengths[members].tolist()) for members in bins) == [[4, 6, 90], [9]]


def test_a_filling_that_ignores_vision_cost_is_caught():
    """The check of `check` bites: without the vision budget in the hot loop, packs break it."""
    budgets = Budgets(num_tokens=4096, vision_cost=17)
    samples = shard(500, budgets, seed=5)
    work, attention = samples.vision_costs.astype(float), np.zeros(len(samples))
    options = {"work": work, "attention": attention, "weight": 1.0, "complete": True}
    sound = fill_by_score.fill_bins(samples.amounts, budgets, **options)
    check([np.array(members) for members in sound], samples.lengths, budgets, samples.vision_costs)
    mutant = fill_by_score.fill_bins(samples.amounts, Budgets(num_tokens=4096, vision_cost=10**9), **options)
    with pytest.raises(AssertionError):
        check([np.array(members) for members in mutant], samples.lengths, budgets, samples.vision_costs)


def test_too_large_marks_each_budget():
    budgets = Budgets(num_tokens=10, vision_cost=4, num_images=2)
    lengths, vision, images = np.array([10, 11, 1, 1]), np.array([4, 0, 5, 0]), np.array([2, 0, 0, 3])
    mask = knapsack.too_large(Amounts(num_tokens=lengths, vision_cost=vision, num_images=images), budgets)
    assert mask.tolist() == [False, True, True, True]


@pytest.mark.parametrize("name", ALL)
def test_a_sample_over_a_budget_is_named(name):
    budgets = Budgets(num_tokens=10, vision_cost=4)
    with pytest.raises(ValueError, match=r"sample 1 has num_tokens 11, over the budget of 10"):
        ALGORITHMS[name](Amounts(num_tokens=np.array([1, 11]), vision_cost=np.array([0, 9])), budgets)
    with pytest.raises(ValueError, match=r"sample 0 has vision_cost 5, over the budget of 4"):
        ALGORITHMS[name](Amounts(num_tokens=np.array([1, 1]), vision_cost=np.array([5, 0])), budgets)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="vision_cost=0"):
        Budgets(num_tokens=10, vision_cost=0)
    with pytest.raises(ValueError, match="vision_cost=4 is set"):
        knapsack.balanced(Amounts(num_tokens=np.array([1])), Budgets(num_tokens=10, vision_cost=4))
    with pytest.raises(ValueError, match="2 amounts of vision_cost for 1 samples"):
        knapsack.balanced(Amounts(num_tokens=np.array([1]), vision_cost=np.array([1, 2])), Budgets(num_tokens=10))
    with pytest.raises(ValueError, match="sample 1 has num_tokens -3"):
        knapsack.balanced(Amounts(num_tokens=np.array([1, -3])), Budgets(num_tokens=10))


@pytest.mark.parametrize("name", ALL)
def test_nothing_to_pack(name):
    empty = np.array([], dtype=np.int64)
    nothing = Amounts(num_tokens=empty, vision_cost=empty)
    assert ALGORITHMS[name](nothing, Budgets(num_tokens=10, vision_cost=4)) == []
    assert knapsack.bound(Amounts(num_tokens=empty), Budgets(num_tokens=10)) == 0


@pytest.mark.parametrize("algorithm", ALL)
@pytest.mark.parametrize("with_images", [False, True])
def test_memory_is_that_of_the_samples_and_not_of_the_budget(algorithm, with_images):
    """A pack of 2²⁴ tokens asked for a list of so many numbers, and one of 2³¹ − 1 for more than there is."""
    lengths = np.arange(1, 201)
    costs = {"vision_cost": lengths % 7, "num_images": np.minimum(lengths % 7, 1)} if with_images else {}
    budgets = Budgets(num_tokens=1 << 24, vision_cost=60 if with_images else None)
    tracemalloc.start()
    try:
        bins = ALGORITHMS[algorithm](Amounts(num_tokens=lengths, **costs), budgets)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    check(bins, lengths, budgets, costs.get("vision_cost"))
    assert len(bins) >= (-(-int(costs["vision_cost"].sum()) // 60) if with_images else 1)
    assert peak < 1 << 21
