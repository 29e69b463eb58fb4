"""Packing again around what did not change: nothing is lost, kept packs stay, fill and balance stay."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing_udfs import knapsack
from packing_udfs.knapsack import Amounts, Budgets
from packing_udfs.shard import row_groups
from packing_udfs.shard.keep_packs import Key, Plan, Previous, replan

BUDGETS = Budgets(num_tokens=4096, vision_cost=64)
MOST = 8


class Shard:
    """Samples as keys and amounts, sorted by id as the job sorts them."""

    def __init__(self, samples: list[tuple[int, int, int]]):
        samples = sorted(samples)
        self.keys = [Key(sample_id, "s", tokens, 1) for sample_id, tokens, _ in samples]
        _, tokens, costs = zip(*samples, strict=True) if samples else ((), (), ())
        self.amounts = Amounts(num_tokens=tokens, vision_cost=costs, num_images=[1] * len(samples))
        self.samples = samples

    def pack(self, members: list[int]) -> list[list[int]]:
        at = np.asarray(members, np.int64)
        bins = knapsack.balanced(self.amounts.take(at), BUDGETS)
        return [at[np.sort(b)].tolist() for b in bins]

    def afresh(self) -> list[list[list[int]]]:
        bins = self.pack(list(range(len(self.keys))))
        costs = self.amounts.of_packs("vision_cost", bins)
        return [[bins[i] for i in group] for group in row_groups.row_groups(costs, MOST, 0)]

    def again(self, previous: Previous, max_drift: float = 0.003) -> Plan:
        options = {"num_packs_per_group": MOST, "seed": 0, "max_drift": max_drift}
        return replan(previous, self.keys, self.amounts, BUDGETS, self.pack, **options)

    def version(self, groups: list[list[list[int]]]) -> Previous:
        return Previous(
            [[[self.keys[i] for i in pack] for pack in group] for group in groups],
            [self.amounts.of_packs("vision_cost", group).tolist() for group in groups],
        )


def draw(n: int, seed: int) -> list[tuple[int, int, int]]:
    """Samples like photos with captions: (id, tokens, vision cost)."""
    rng = np.random.default_rng(seed)
    costs = rng.choice([1, 2, 4, 5], n)
    tokens = costs * 64 + np.maximum(20, rng.lognormal(4.3, 0.5, n)).astype(int)
    ids = rng.integers(-(1 << 62), 1 << 62, n)
    return list(zip(ids.tolist(), tokens.tolist(), costs.tolist(), strict=True))


def edited(sample: tuple[int, int, int], more: int) -> tuple[int, int, int]:
    """The sample with another text: the upper half of its id is of its images."""
    sample_id, tokens, cost = sample
    return sample_id ^ 0x5EED, max(cost * 64 + 1, tokens + more), cost


def packs(groups) -> list[list[int]]:
    return [pack for group in groups for pack in group]


def test_a_hole_is_filled_at_its_place_and_nothing_else_moves():
    """Packs of 10, two a row group: 4 (of the first pack) goes, 3 comes."""
    budgets = Budgets(num_tokens=10)
    old = [Key(i << 32, "s", n, 0) for i, n in enumerate([6, 4, 7, 3, 5, 5, 8, 2])]
    previous = Previous([[old[0:2], old[2:4]], [old[4:6], old[6:8]]], [[0, 0], [0, 0]])
    now = [key for i, key in enumerate(old) if i != 1] + [Key(9 << 32, "s", 3, 0)]
    amounts = Amounts(num_tokens=[key.num_tokens for key in now])

    def pack(members):
        found = knapsack.balanced(amounts.take(members), budgets)
        return [[members[i] for i in b] for b in found]

    plan = replan(previous, now, amounts, budgets, pack, num_packs_per_group=2, seed=0, max_drift=0.0)
    assert plan.row_groups == [[[0, 7], [1, 2]], [[3, 4], [5, 6]]]
    assert (plan.num_kept, plan.num_moved, plan.num_changed, plan.why_afresh) == (3, 0, 1, "")


def test_an_edited_sample_keeps_its_slot():
    shard = Shard(draw(400, 0))
    groups = shard.afresh()
    i = groups[1][2][3]
    changed = [*shard.samples[:i], edited(shard.samples[i], -5), *shard.samples[i + 1 :]]
    now = Shard(changed)
    plan = now.again(shard.version(groups))
    at = now.samples.index(edited(shard.samples[i], -5))
    assert plan.row_groups[1][2][3] == at
    assert plan.num_changed == 1
    assert plan.num_kept == len(packs(groups)) - 1


def test_an_edited_sample_that_does_not_fit_any_more_goes_elsewhere():
    shard = Shard(draw(400, 0))
    groups = shard.afresh()
    i = groups[1][2][3]
    room = 4096 - int(shard.amounts["num_tokens"][groups[1][2]].sum())
    longer = edited(shard.samples[i], room + 1)
    now = Shard([*shard.samples[:i], longer, *shard.samples[i + 1 :]])
    plan = now.again(shard.version(groups), max_drift=0.1)
    assert now.samples.index(longer) not in plan.row_groups[1][2]
    assert sorted(i for pack in packs(plan.row_groups) for i in pack) == list(range(400))


@pytest.mark.parametrize("seed", range(3))
def test_the_same_again_changes_nothing(seed):
    shard = Shard(draw(500, seed))
    groups = shard.afresh()
    plan = shard.again(shard.version(groups))
    assert plan.row_groups == groups
    assert plan.num_kept == len(packs(groups))


def test_another_dataset_is_packed_afresh():
    shard, other = Shard(draw(300, 0)), Shard(draw(300, 1))
    plan = other.again(shard.version(shard.afresh()))
    assert plan.row_groups == other.afresh()
    assert "tokens are new" in plan.why_afresh


def test_drift_over_the_limit_is_packed_afresh():
    """Half of each pack goes: without dissolving, twice the packs would be needed."""
    shard = Shard([(i << 32, 2048, 0) for i in range(400)])
    groups = shard.afresh()
    gone = {pack[0] for pack in packs(groups)}
    now = Shard([sample for i, sample in enumerate(shard.samples) if i not in gone])
    plan = now.again(shard.version(groups))
    assert plan.row_groups == now.afresh()
    assert plan.why_afresh == "it would take more than 100 packs, and 100 do"


TWELVE = [Key(i << 32, "s", 10, 1) for i in range(12)]


def again_of_twelve(groups: list[list[list[Key]]], costs: list[list[int]]) -> Plan:
    """Twelve samples of 10 tokens and cost 1, at most three in a pack, after packs like these."""

    def pack(members):
        return [members[i : i + 3] for i in range(0, len(members), 3)]

    amounts = Amounts(num_tokens=[10] * 12, vision_cost=[1] * 12, num_images=[1] * 12)
    budgets = Budgets(num_tokens=30)
    options = {"num_packs_per_group": 4, "seed": 0, "max_drift": 0.003}
    return replan(Previous(groups, costs), TWELVE, amounts, budgets, pack, **options)


@pytest.mark.parametrize("costs", [[[3], [3]], [[3, 3], [3]], [[3, 3, 3], [3, 3]], [[], []], [[3, 3]], []])
def test_costs_of_other_packs_than_there_are_give_the_packs_up(costs):
    groups = [[TWELVE[0:3], TWELVE[3:6]], [TWELVE[6:9], TWELVE[9:12]]]
    plan = again_of_twelve(groups, costs)
    assert plan.why_afresh == "its manifest names other numbers of packs than its row groups have"
    assert sorted(i for pack in packs(plan.row_groups) for i in pack) == list(range(12))


@pytest.mark.parametrize(
    ("groups", "costs", "num_kept"),
    [
        ([[TWELVE[0:6], TWELVE[6:9]], [TWELVE[9:12]]], [[6, 3], [3]], 2),
        ([[TWELVE]], [[12]], 0),
        ([[TWELVE[0:4], TWELVE[4:8], TWELVE[8:12]]], [[4, 4, 4]], 0),
    ],
)
def test_packs_over_the_budgets_are_emptied_and_the_others_stay(groups, costs, num_kept):
    plan = again_of_twelve(groups, costs)
    assert sorted(map(len, packs(plan.row_groups))) == [3, 3, 3, 3]
    assert sorted(i for pack in packs(plan.row_groups) for i in pack) == list(range(12))
    assert plan.num_kept + plan.num_moved == num_kept


EDITS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "edit", "duplicate"]), st.integers(0, 10**6), st.integers(-60, 60)),
    max_size=40,
)


def apply(samples: list[tuple[int, int, int]], script) -> list[tuple[int, int, int]]:
    samples = list(samples)
    for what, number, more in script:
        at = number % max(1, len(samples))
        if what == "add":
            samples += draw(1, number + 10)
        elif what == "duplicate" and samples:
            samples.append(samples[at])
        elif what == "remove" and samples:
            samples.pop(at)
        elif what == "edit" and samples:
            samples[at] = edited(samples[at], more)
    return samples


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), st.lists(EDITS, min_size=1, max_size=4))
def test_any_edits_keep_every_sample_every_budget_and_the_packs_they_do_not_touch(seed, scripts):
    samples = draw(300, seed)
    shard = Shard(samples)
    groups = shard.afresh()
    for script in scripts:
        samples = apply(samples, script)
        previous, shard = shard.version(groups), Shard(samples)
        plan = shard.again(previous)
        groups = plan.row_groups
        found = packs(groups)
        assert sorted(i for pack in found for i in pack) == list(range(len(samples)))
        for pack in found:
            assert pack
            assert shard.amounts["num_tokens"][pack].sum() <= 4096
            assert shard.amounts["vision_cost"][pack].sum() <= 64
        assert all(0 < len(group) <= MOST for group in groups)
        assert len(found) <= int(len(packs(shard.afresh())) * 1.003)
        if not plan.why_afresh:
            now = Counter(shard.keys)
            keys = [[[shard.keys[i] for i in pack] for pack in group] for group in groups]
            whole = [pack for pack in packs(previous.row_groups) if Counter(pack) <= now]
            there = Counter(tuple(pack) for pack in packs(keys))
            assert plan.num_kept + plan.num_moved <= sum((Counter(map(tuple, whole)) & there).values())
            same = sum(
                pack == keys[g][p]
                for g, group in enumerate(previous.row_groups[: len(keys)])
                for p, pack in enumerate(group[: len(keys[g])])
            )
            assert plan.num_kept <= same


@settings(max_examples=20, deadline=None)
@given(EDITS, st.randoms(use_true_random=False))
def test_the_order_of_arrival_plays_no_part(script, random):
    samples = draw(300, 3)
    shard = Shard(samples)
    previous = shard.version(shard.afresh())
    changed = apply(samples, script)
    mixed = list(changed)
    random.shuffle(mixed)
    assert Shard(changed).again(previous) == Shard(mixed).again(previous)


def test_few_edits_leave_most_packs_alone():
    """20 of 2,000 samples: 20 packs are touched, one or two dissolved, and packs of one row group move."""
    samples = draw(2000, 4)
    shard = Shard(samples)
    groups = shard.afresh()
    num = len(packs(groups))
    rng = np.random.default_rng(0)
    some = set(rng.choice(2000, 20, replace=False).tolist())
    shorter = Shard([edited(s, int(rng.integers(-20, 21))) if i in some else s for i, s in enumerate(samples)])
    fewer = Shard([s for i, s in enumerate(samples) if i not in some])
    more = Shard(samples + draw(20, 77))
    for now, others in ((shorter, 23), (fewer, 23 + MOST), (more, 2)):
        plan = now.again(shard.version(groups))
        assert not plan.why_afresh
        assert plan.num_kept >= num - others


def again(groups: list[list[int]], gone: set[int], costs: list[int], num_in_pack: int, most: int) -> list:
    """Pack anew, as the numbers that samples had, row groups of packs of `num_in_pack` samples each of which costs
    `costs[i]` and that are packed in order; `gone` are not there any more."""
    keys = [Key(i << 32, "s", 1, 1) for i in range(len(costs))]
    previous = Previous([[[keys[i] for i in pack] for pack in group] for group in groups],
                        [[sum(costs[i] for i in pack) for pack in group] for group in groups])  # fmt: skip
    stay = [i for i in range(len(costs)) if i not in gone]
    amounts = Amounts(num_tokens=[1] * len(stay), vision_cost=[costs[i] for i in stay], num_images=[1] * len(stay))

    def pack(members):
        return [members[i : i + num_in_pack] for i in range(0, len(members), num_in_pack)]

    options = {"num_packs_per_group": most, "seed": 0, "max_drift": 0.2}
    budgets = Budgets(num_tokens=num_in_pack, vision_cost=1000)
    plan = replan(previous, [keys[i] for i in stay], amounts, budgets, pack, **options)
    assert not plan.why_afresh
    return [[[stay[i] for i in members] for members in group] for group in plan.row_groups]


def test_what_is_left_of_the_last_row_group_keeps_its_order():
    """Packs of one sample, two row groups of 5. Pack 3 goes; the last row group's of that cost takes its place."""
    costs = [1, 2, 3, 4, 5, 5, 4, 3, 2, 1]
    found = again([[[0], [1], [2], [3], [4]], [[5], [6], [7], [8], [9]]], {3}, costs, 1, 5)
    assert found == [[[0], [1], [2], [6], [4]], [[5], [7], [8], [9]]]


def test_packs_that_are_a_little_out_of_their_layer_stay():
    """Packs of two cost 100. Two lose 20 and 10, less than a quarter: they stay, where the lesser loss would fit better
    in the first's place."""
    costs = [80, 20, 90, 10] * 4
    pairs = [[i, i + 1] for i in range(0, 16, 2)]
    found = again([pairs[i : i + 2] for i in (0, 2, 4, 6)], {5, 11}, costs, 2, 2)
    assert found == [[[0, 1], [2, 3]], [[4], [6, 7]], [[8, 9], [10]], [[12, 13], [14, 15]]]


def test_balance_stays_through_many_versions():
    """Twenty versions, each with 1 % edited, removed and added: as even as packing afresh, up to 0.015."""
    samples = draw(1500, 8)
    shard = Shard(samples)
    groups = shard.afresh()
    rng = np.random.default_rng(1)
    for version in range(20):
        some = rng.choice(len(samples), 30, replace=False).tolist()
        samples = [edited(s, int(rng.integers(-20, 21))) if i in some[:15] else s for i, s in enumerate(samples)]
        samples = [s for i, s in enumerate(samples) if i not in some[15:]] + draw(15, 1000 + version)
        previous, shard = shard.version(groups), Shard(samples)
        plan = shard.again(previous)
        assert not plan.why_afresh
        groups = plan.row_groups
        assert unevenness(shard, groups) <= unevenness(shard, shard.afresh()) + 0.016


def unevenness(shard: Shard, groups) -> float:
    """Mean over the places of row groups of one size of the largest cost over the mean, less 1."""
    over = []
    for size in {len(group) for group in groups}:
        costs = np.asarray([shard.amounts.of_packs("vision_cost", group) for group in groups if len(group) == size])
        over += (costs.max(axis=0) / costs.mean(axis=0) - 1).tolist() * len(costs)
    return float(np.mean(over))
