"""Several datasets as one: shares, exactness, resuming."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packing_udfs.mixed import MixedDataset
from packing_udfs.reader import PackedDataset
from packing_udfs.stream.resume import StateError
from tests.reader.conftest import packs_of, write_dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict:
    """24, 12 and 8 packs: 6, 3 and 2 steps of 4."""
    sizes = {"photos": [[4] * 6], "charts": [[4] * 3], "text": [[4] * 2]}
    return {
        name: write_dataset(tmp_path_factory.mktemp(name), files, seed=i)
        for i, (name, files) in enumerate(sizes.items())
    }


def open_mixed(folders, weights=None, num_steps=None, rank=0, world_size=1, micro_batch_size=1) -> MixedDataset:
    datasets = {
        name: PackedDataset(
            str(folder),
            global_batch_size=4,
            micro_batch_size=micro_batch_size,
            rank=rank,
            world_size=world_size,
            decode=None,
        )
        for name, folder in folders.items()
    }
    return MixedDataset(datasets, weights, num_steps)


def read(dataset, **options) -> list[tuple[str, list[int]]]:
    return [(batch["dataset"], packs_of(batch)) for batch in DataLoader(dataset, batch_size=None, **options)]


def test_steps_stand_evenly_and_ties_go_to_the_first(folders):
    two = {name: folders[name] for name in ("photos", "text")}
    mixed = open_mixed(two, {"photos": 3, "text": 1}, num_steps=8, micro_batch_size=4)
    assert [name[0] for name, _ in read(mixed)] == list("pptpppt" + "p")


def test_by_default_an_epoch_has_each_pack_once(folders):
    mixed = open_mixed(folders)
    assert mixed.num_steps == 11
    seen = read(mixed)
    assert Counter(name for name, _ in seen) == {"photos": 24, "charts": 12, "text": 8}
    assert set(Counter((name, pack) for name, packs in seen for pack in packs).values()) == {1}


@settings(max_examples=40, deadline=None)
@given(weights=st.lists(st.floats(0.01, 100), min_size=3, max_size=3), step=st.integers(0, 400))
def test_the_schedule_can_be_entered_anywhere_and_keeps_to_the_weights(folders, weights, step):
    mixed = open_mixed(folders, dict(zip(folders, weights, strict=True)))
    from_start, entered = mixed._schedule(0), mixed._schedule(step)
    taken = Counter()
    for _ in range(step):
        name, before = next(from_start)
        assert before == taken[name]
        taken[name] += 1
    assert [next(from_start) for _ in range(20)] == [next(entered) for _ in range(20)]
    for name, weight in zip(folders, weights, strict=True):
        assert abs(taken[name] - step * weight / sum(weights)) < 2


def test_each_dataset_goes_on_as_alone_and_into_its_next_epochs(folders):
    mixed = open_mixed(folders, {"photos": 1, "charts": 1, "text": 2}, num_steps=16, micro_batch_size=4)
    by_name = {name: [packs for of, packs in read(mixed) if of == name] for name in folders}
    assert [len(steps) for steps in by_name.values()] == [4, 4, 8]
    alone = PackedDataset(str(folders["text"]), global_batch_size=4, decode=None)
    expected = []
    for epoch in range(4):
        alone.set_epoch(epoch)
        expected += [packs_of(batch) for batch in alone]
    assert by_name["text"] == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_anywhere_with_other_workers_gives_what_was_to_come(folders, num_workers):
    weights = {"photos": 2, "charts": 1, "text": 2}
    batches = list(DataLoader(open_mixed(folders, weights), batch_size=None, num_workers=num_workers))
    expected = [(batch["dataset"], packs_of(batch)) for batch in batches]
    assert len(expected) == 44
    for done in (1, 2, 7, 18, 30, 43):
        resumed = open_mixed(folders, weights)
        resumed.load_state_dict(batches[done - 1]["state"])
        assert read(resumed, num_workers=2 - num_workers) == expected[done:]


def test_every_world_size_takes_the_same_steps_and_epochs_follow_one_another(folders):
    def steps(world_size, epoch):
        ranks = []
        for rank in range(world_size):
            mixed = open_mixed(folders, num_steps=7, rank=rank, world_size=world_size, micro_batch_size=4 // world_size)
            mixed.set_epoch(epoch)
            ranks.append(read(mixed))
        return [
            ({name for name, _ in step}, [p for _, packs in step for p in packs]) for step in zip(*ranks, strict=True)
        ]

    assert steps(1, 1) == steps(2, 1) == steps(4, 1)
    assert all(len(names) == 1 for names, _ in steps(4, 1)), "a step is from one dataset on all ranks"
    long = open_mixed(folders, num_steps=14, micro_batch_size=4)
    assert [packs for _, packs in read(long)] == [packs for epoch in (0, 1) for _, packs in steps(1, epoch)]


def test_what_differs_is_named(folders):
    state = open_mixed(folders).state_dict()
    with pytest.raises(StateError, match=r"weights is \[\['photos', '6'\], .*, this dataset has \[\['photos', '1'\], "):
        open_mixed(folders, {"photos": 1, "charts": 1, "text": 2}).load_state_dict(state)
    other = folders | {"text": folders["charts"]}
    with pytest.raises(StateError, match=r"text.fingerprint is '\w{64}', the manifest here is"):
        open_mixed(other, {"photos": 6, "charts": 3, "text": 2}, num_steps=11).load_state_dict(state)


def test_a_state_of_the_same_datasets_in_another_order_is_refused(folders):
    """Of steps that stand at one place the first dataset's comes first."""
    state = open_mixed(folders, dict.fromkeys(folders, 1)).state_dict()
    with pytest.raises(StateError, match="weights is"):
        open_mixed(dict(reversed(folders.items())), dict.fromkeys(folders, 1)).load_state_dict(state)


def test_weights_may_be_of_numpy(folders):
    weights = {"photos": np.float32(3), "charts": np.int64(1), "text": Fraction(1, 2)}
    exact = {"photos": 3, "charts": 1, "text": 0.5}
    assert open_mixed(folders, weights).state_dict() == open_mixed(folders, exact).state_dict()


@pytest.mark.parametrize(
    "weights",
    [{"photos": 1}, {"photos": 1, "charts": 0, "text": 1}, {}, {"photos": "1", "charts": 1, "text": 1},
     {"photos": None, "charts": 1, "text": 1}, {"photos": float("nan"), "charts": 1, "text": 1}],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(folders, weights):
    with pytest.raises(ValueError, match="weights="):
        open_mixed(folders, weights)


def test_datasets_that_do_not_fit_are_refused(folders):
    options = {"global_batch_size": 4, "decode": None}
    one = PackedDataset(str(folders["text"]), **options)
    other = PackedDataset(str(folders["text"]), micro_batch_size=1, **options)
    with pytest.raises(ValueError, match=r"must agree on micro_batch_size, which is \{'one': 4, 'other': 1\}"):
        MixedDataset({"one": one, "other": other})
    wide = PackedDataset(str(folders["text"]), rank=0, world_size=2, **options | {"global_batch_size": 8})
    with pytest.raises(ValueError, match=r"must agree on world_size, which is \{'one': 1, 'wide': 2\}"):
        MixedDataset({"one": one, "wide": wide})
    with pytest.raises(ValueError, match="datasets: at least one"):
        MixedDataset({})
    with pytest.raises(ValueError, match="num_steps=0"):
        MixedDataset({"one": one}, num_steps=0)
