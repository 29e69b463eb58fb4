"""Memory that is used again: never while somebody looks at it, and never more of it than was in use at one time."""

import mmap
import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing_udfs.storage import slabs as module
from packing_udfs.storage.slabs import MIB, Slabs


@pytest.fixture
def mapped(monkeypatch) -> list[int]:
    """The size of each slab that is mapped."""
    sizes, new = [], mmap.mmap

    def counted(fileno: int, length: int, **flags) -> mmap.mmap:
        sizes.append(length)
        return new(fileno, length, **flags)

    monkeypatch.setattr(module.mmap, "mmap", counted)
    return sizes


def test_memory_is_used_again_when_nothing_looks_at_it(mapped):
    slabs = Slabs()
    data = slabs.take(10 * MIB)
    place, part = data.address, np.frombuffer(data.slice(MIB, 8), np.uint8)
    assert data.size == 10 * MIB
    del data
    other = slabs.take(10 * MIB)  # a view of eight bytes keeps the first
    assert other.address != place
    del part
    assert slabs.take(11 * MIB).address == place  # an eighth more than asked for is there
    assert mapped == [12 * MIB, 12 * MIB]


def test_what_became_free_last_is_taken_first():
    slabs = Slabs()
    first, second = slabs.take(MIB), slabs.take(MIB)
    places = [first.address, second.address]
    del second
    del first
    assert slabs.take(MIB).address == places[0]


@pytest.mark.parametrize("num_bytes", [1, 2 * MIB, 12 * MIB, 100 * MIB])
def test_slabs_of_another_size_give_way(mapped, num_bytes):
    slabs = Slabs()
    slabs.take(10 * MIB)
    slabs.take(num_bytes)
    assert len(mapped) == (2 if num_bytes != 12 * MIB else 1)
    assert len(slabs._free) == 1


def test_memory_stays_with_its_process():
    slabs = Slabs()
    slabs.take(MIB)
    assert len(slabs._free) == 1
    assert pickle.loads(pickle.dumps(slabs))._free == []


def test_slabs_go_with_their_owner(monkeypatch):
    slabs, freed, new = Slabs(), [], mmap.mmap

    class Watched(new):
        def __del__(self):
            freed.append(len(self))

    monkeypatch.setattr(module.mmap, "mmap", Watched)
    held, _ = slabs.take(MIB), slabs.take(MIB)
    del slabs, _
    del held  # the last that looks at one
    assert freed == [2 * MIB] * 2


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40 * MIB)), max_size=40))
def test_buffers_in_use_are_left_alone_and_slabs_are_no_more_than_were_in_use(steps):
    """Each step gives up what one of six places holds and takes something new, which is written at both ends."""
    slabs, held, most = Slabs(), {}, 0
    for number, (place, num_bytes) in enumerate(steps):
        held.pop(place, None)
        held[place] = number, np.frombuffer(slabs.take(num_bytes), np.uint8)
        held[place][1][[0, -1]] = number
        most = max(most, len(held))
        assert len(held) + len(slabs._free) <= most
        assert all((view[[0, -1]] == number).all() for number, view in held.values())
    spans = sorted((view.ctypes.data, view.ctypes.data + len(view)) for _, view in held.values())
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_threads_share_it(mapped):
    slabs = Slabs()

    def work(number: int) -> None:
        for _ in range(200):
            view = np.frombuffer(slabs.take(MIB), np.uint8)
            view[:] = number
            assert (view == number).all()
            del view

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert 1 <= len(mapped) <= 8


def test_it_is_a_buffer_that_can_be_filled():
    data = Slabs().take(3)
    memoryview(data).cast("B")[:] = b"abc"
    assert isinstance(data, pa.Buffer)
    assert data.to_pybytes() == b"abc"
