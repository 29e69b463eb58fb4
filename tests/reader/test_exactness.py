"""Every pack once an epoch, the same global batches whatever reads them, and resuming as if nothing had happened."""

import math
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packing_udfs.reader import PackedDataset
from packing_udfs.stream import resume
from tests.reader.conftest import packs_of, write_dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

NUM_PACKS, GLOBAL_BATCH_SIZE = 50, 8


def open_packed(folder, rank=0, world_size=1, micro_batch_size=1, **options) -> PackedDataset:
    options = {"global_batch_size": GLOBAL_BATCH_SIZE, "decode": None, "prefetch": 1} | options
    return PackedDataset(
        str(folder), rank=rank, world_size=world_size, micro_batch_size=micro_batch_size, seed=7, **options
    )


def read(dataset, **options) -> list[list[int]]:
    return [packs_of(batch) for batch in DataLoader(dataset, batch_size=None, **options)]


def global_batches(folder, world_size: int, **options) -> list[list[int]]:
    """The packs of each step, over all ranks in order."""
    ranks = [read(open_packed(folder, rank, world_size, None, **options)) for rank in range(world_size)]
    return [[pack for part in step for pack in part] for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("num_workers", [0, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_an_epoch_has_each_pack_once(packed, world_size, num_workers):
    datasets = [open_packed(packed, rank, world_size) for rank in range(world_size)]
    ranks = [read(dataset, num_workers=num_workers) for dataset in datasets]
    assert [len(batches) for batches in ranks] == [48 // world_size] * world_size == [len(d) for d in datasets]
    seen = Counter(pack for batches in ranks for batch in batches for pack in batch)
    assert set(seen.values()) == {1}
    dropped = {(file, group, row) for file, group, row in datasets[0].dropped}
    rows = datasets[0].manifest.row_groups.to_pylist()
    first = dict(zip([(row["file"], row["row_group"]) for row in rows], range(0, NUM_PACKS, 4), strict=True))
    assert {first[file, group] + row for file, group, row in dropped} == set(range(NUM_PACKS)) - set(seen)
    assert len(dropped) == 2
    assert all(dataset.dropped == datasets[0].dropped for dataset in datasets)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=3),
    lanes=st.sampled_from([1, 2, 3]),
    world_size=st.sampled_from([1, 2]),
    shuffle=st.booleans(),
    prefetch=st.integers(0, 3),
)
def test_any_shape_of_files_is_read_once(tmp_path_factory, files, lanes, world_size, shuffle, prefetch):
    folder = write_dataset(tmp_path_factory.mktemp("shape"), files)
    num_packs, size = sum(map(sum, files)), lanes * world_size
    options = {"global_batch_size": size, "end": "pad", "shuffle": shuffle, "prefetch": prefetch}
    ranks = [list(open_packed(folder, rank, world_size, None, **options)) for rank in range(world_size)]
    assert [len(batches) for batches in ranks] == [math.ceil(num_packs / size)] * world_size
    batches = [batch for batches in ranks for batch in batches]
    real = [p for b in batches for p, padding in zip(packs_of(b), b["is_padding"].tolist(), strict=True) if not padding]
    assert sorted(real) == list(range(num_packs))


def test_without_balance_the_packs_of_a_step_are_at_places_of_their_own(packed):
    plain, mixed = open_packed(packed, balance=False), open_packed(packed)
    places = [[dataset._order(0).step(i)[1].tolist() for i in range(4)] for dataset in (plain, mixed)]
    assert all(len(set(rows)) == 1 for rows in places[1]), "balanced lanes are at one place of their row groups"
    assert any(len(set(rows)) > 1 for rows in places[0])
    assert len({pack for (pack,) in read(plain)}) == 48


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_global_batch_is_the_same_for_every_world_size(packed, shuffle):
    expected = global_batches(packed, 1, shuffle=shuffle)
    assert len(expected) == 6
    assert all(len(step) == GLOBAL_BATCH_SIZE for step in expected)
    for world_size in (2, 4, 8):
        assert global_batches(packed, world_size, shuffle=shuffle) == expected


def test_stored_order_without_shuffle_and_another_one_by_seed_and_epoch(packed):
    dataset = open_packed(packed, shuffle=False, global_batch_size=2)
    assert read(dataset)[:4] == [[0], [4], [1], [5]]  # two lanes, each in its row group of four
    assert read(open_packed(packed)) == read(open_packed(packed))
    other_epoch = open_packed(packed)
    other_epoch.set_epoch(1)
    assert read(other_epoch) != read(open_packed(packed))


@pytest.mark.parametrize("micro_batch_size", [1, 2, 4])
def test_workers_do_not_change_the_order_of_batches(packed, micro_batch_size):
    expected = read(open_packed(packed, 1, 2, micro_batch_size))
    for num_workers in (1, 2, 3):
        assert read(open_packed(packed, 1, 2, micro_batch_size), num_workers=num_workers) == expected


def test_spawned_workers_read_the_same(packed):
    expected = read(open_packed(packed, 0, 2))
    dataset = open_packed(packed, 0, 2)
    assert read(dataset, num_workers=2, multiprocessing_context="spawn") == expected


def test_idle_workers_say_so(packed, caplog, monkeypatch):
    worker = type("Worker", (), {"id": 0, "num_workers": 3, "seed": 1})
    monkeypatch.setattr("packing_udfs.stream.resume.get_worker_info", lambda: worker)
    iter(open_packed(packed, 0, 2, 1))
    assert "1 of 3 DataLoader workers are idle: a step has 4 micro-batches" in caplog.text


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_after_any_batch_gives_the_batches_that_were_to_come(packed, num_workers):
    batches = list(DataLoader(open_packed(packed, 0, 2, 2), batch_size=None, num_workers=num_workers))
    expected = [packs_of(batch) for batch in batches]
    assert len(expected) == 12
    for done in range(1, 13) if num_workers == 0 else (1, 2, 5, 12):
        resumed = open_packed(packed, 0, 2, 2)
        resumed.load_state_dict(batches[done - 1]["state"])
        assert read(resumed, num_workers=2 - num_workers) == expected[done:]


def test_the_state_is_the_same_on_every_rank_and_small(packed):
    states = [[batch["state"] for batch in open_packed(packed, rank, 4, None)] for rank in range(4)]
    assert states[0] == states[1] == states[2] == states[3]
    assert [(state["epoch"], state["step"], state["lane"]) for state in states[0]] == [(0, i, 0) for i in range(1, 7)]
    assert all(isinstance(value, int | str) for value in states[0][0].values())


@pytest.mark.parametrize("world_size", [1, 4])
def test_another_world_size_goes_on_with_the_same_global_batches(packed, world_size):
    expected = global_batches(packed, 2)
    state = [batch["state"] for batch in open_packed(packed, 1, 2, None)][2]
    ranks = []
    for rank in range(world_size):
        dataset = open_packed(packed, rank, world_size, None, prefetch=3)
        dataset.load_state_dict(state)
        ranks.append(read(dataset, num_workers=rank % 2))
    assert [[p for part in step for p in part] for step in zip(*ranks, strict=True)] == expected[3:]


def test_set_epoch_reaches_persistent_workers(packed):
    dataset = open_packed(packed)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    for epoch in (0, 1, 5, 0):
        dataset.set_epoch(epoch)
        inline = open_packed(packed)
        inline.set_epoch(epoch)
        batches = list(loader)
        assert [packs_of(batch) for batch in batches] == read(inline)
        assert {batch["state"]["epoch"] for batch in batches} == {epoch}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loaded_position_is_used_for_one_epoch_and_survives_a_look(packed, num_workers, persistent):
    expected = read(open_packed(packed))
    dataset = open_packed(packed)
    dataset.load_state_dict(list(open_packed(packed))[9]["state"])
    options = {"num_workers": num_workers, "persistent_workers": persistent and num_workers > 0}
    loader = DataLoader(dataset, batch_size=None, **options)
    assert packs_of(next(iter(loader))) == expected[10]
    dataset.set_epoch(0)  # the epoch of the state: it keeps the position
    assert [packs_of(batch) for batch in loader] == expected[10:]
    assert [packs_of(batch) for batch in loader] == expected
    dataset.load_state_dict(list(open_packed(packed))[-1]["state"])
    assert list(loader) == []
    assert len(list(loader)) == len(expected)


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_that_seed_torch_alike_are_epochs_of_their_own(packed, persistent):
    """DataLoader's base seed, which its workers have in common, is then the same in each."""
    expected = read(open_packed(packed))
    dataset = open_packed(packed)
    dataset.load_state_dict(list(open_packed(packed))[9]["state"])
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
    epochs = []
    for _ in range(3):
        torch.manual_seed(42)
        epochs.append([packs_of(batch) for batch in loader])
    assert epochs == [expected[10:], expected, expected]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iteration_that_ends_late_does_not_end_the_next(packed, num_workers):
    expected = read(open_packed(packed))
    dataset = open_packed(packed)
    older = iter(DataLoader(dataset, batch_size=None, num_workers=num_workers))
    next(older)
    dataset.load_state_dict(list(open_packed(packed))[9]["state"])
    assert len(list(older)) == len(expected) - 1
    assert [packs_of(b) for b in DataLoader(dataset, batch_size=None, num_workers=num_workers)] == expected[10:]


def test_pad_fills_the_last_step_with_packs_that_teach_nothing(packed):
    datasets = [open_packed(packed, rank, 2, None, end="pad") for rank in range(2)]
    ranks = [list(dataset) for dataset in datasets]
    assert [len(batches) for batches in ranks] == [7, 7]
    assert [dataset.dropped for dataset in datasets] == [[], []]
    last = [batches[-1] for batches in ranks]
    padding = [flag for batch in last for flag in batch["is_padding"].tolist()]
    assert padding == [False] * 2 + [True] * 6
    for batch in last:
        for i, is_padding in enumerate(batch["is_padding"].tolist()):
            assert (batch["labels"][i] != -100).sum() == batch["num_label_tokens"][i]
            assert (batch["num_label_tokens"][i] == 0) == is_padding
            assert batch["input_ids"][i].any()
    assert not any(batch["is_padding"].any() for batches in ranks for batch in batches[:-1])


def test_workers_that_are_given_positions_side_by_side_each_keep_their_own(packed, monkeypatch):
    """StatefulDataLoader tells each of its workers, at a time of its own."""
    workers = [SimpleNamespace(id=i, num_workers=2, seed=7 + i) for i in range(2)]
    datasets = [open_packed(packed) for _ in workers]
    datasets[1]._shared._values = datasets[0]._shared._values  # as forked from one dataset
    batches = list(open_packed(packed))

    def as_worker(i: int, call):
        monkeypatch.setattr(resume, "get_worker_info", lambda: workers[i])
        return call()

    for i, dataset in enumerate(datasets):
        as_worker(i, partial(dataset.load_state_dict, batches[8 * i]["state"]))
    seen = [as_worker(i, lambda dataset=dataset: packs_of(next(iter(dataset)))) for i, dataset in enumerate(datasets)]
    assert seen == [packs_of(batches[1]), packs_of(batches[9 + 1])]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # what torchdata 0.11 does to torch 2.13
@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_stateful_dataloader_resumes(packed, num_workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    expected = read(open_packed(packed, 0, 2))
    for done in (1, 3, 6, 23):
        loader = stateful(open_packed(packed, 0, 2), batch_size=None, num_workers=num_workers)
        batches = iter(loader)
        assert [packs_of(next(batches)) for _ in range(done)] == expected[:done]
        state = loader.state_dict()
        resumed = stateful(open_packed(packed, 0, 2), batch_size=None, num_workers=num_workers)
        resumed.load_state_dict(state)
        assert [packs_of(batch) for batch in resumed] == expected[done:]
