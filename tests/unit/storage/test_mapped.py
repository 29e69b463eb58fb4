"""A range of a local file as memory: the file's own pages, read when the call returns, errors and no crash."""

import ctypes
import mmap
import os
import platform
import sys
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packing_udfs.storage import byte_source, mapped
from packing_udfs.storage.byte_source import AbandonedError, AbsentError, Stop
from packing_udfs.storage.hub import open_source
from packing_udfs.storage.mapped import map_range

DATA = np.random.default_rng(0).bytes(5 * mmap.PAGESIZE + 77)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("mapped") / "file"
    path.write_bytes(DATA)
    return path


@pytest.fixture(autouse=True)
def _needs_a_system_that_can(file):
    if sys.platform != "linux" or tuple(map(int, platform.release().split(".")[:2])) < (5, 14):
        pytest.skip("this system reads into memory")
    if not hasattr(os, "RWF_NOWAIT"):
        pytest.skip("this Python cannot ask what is in memory")
    with open(file, "rb") as opened:
        try:
            os.preadv(opened.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError:
            pytest.skip("this file system does not say what is in memory")


@given(st.integers(0, len(DATA) - 1), st.integers(1, len(DATA)), st.integers(1, 3 * mmap.PAGESIZE))
def test_any_range_is_the_files(file, offset, length, block_size):
    length, calls = min(length, len(DATA) - offset), []
    view = map_range(str(file), offset, length, block_size, lambda: calls.append(1))
    assert view.to_pybytes() == DATA[offset : offset + length]
    assert not view.is_mutable
    num_pages = -(-(offset % mmap.PAGESIZE + length) // mmap.PAGESIZE)
    assert len(calls) == -(-num_pages // -(-block_size // mmap.PAGESIZE))


def test_it_is_the_files_own_memory_until_somebody_writes_to_it(file):
    view = map_range(str(file), 5000, 5000, 1 << 20, lambda: None)
    ((start, end),) = spans(file)
    assert start + 5000 - mmap.PAGESIZE == view.address
    assert view.address + view.size <= end
    (ctypes.c_char * 3).from_address(view.address).raw = b"new"  # as torch does, which knows no read-only memory
    assert view[:5].to_pybytes() == b"new" + DATA[5003:5005]
    assert file.read_bytes() == DATA
    del view
    assert spans(file) == []


def spans(file) -> list[tuple[int, int]]:
    """Where a file is mapped."""
    with open("/proc/self/maps") as maps:
        found = [line.split()[0].split("-") for line in maps if line.rstrip().endswith(str(file))]
    return [(int(start, 16), int(end, 16)) for start, end in found]


def test_it_holds_no_file_descriptor(file):
    num_before = len(os.listdir("/proc/self/fd"))
    views = [map_range(str(file), 0, 10, 1, lambda: None) for _ in range(20)]
    assert len(spans(file)) >= 1
    assert len(os.listdir("/proc/self/fd")) == num_before
    assert all(view == DATA[:10] for view in views)


def test_a_file_that_cannot_be_read_is_an_error_and_no_crash(tmp_path, monkeypatch):
    """Pages behind the end of a file fail as those of a broken disk do: who looks at one is killed."""
    path, num_bytes = tmp_path / "file", 8 * mmap.PAGESIZE
    path.write_bytes(bytes(num_bytes))
    monkeypatch.setattr(mapped.os, "preadv", lambda *args: 1)
    with pytest.raises(OSError, match="Bad address"):
        map_range(str(path), 0, num_bytes, mmap.PAGESIZE, lambda: os.truncate(path, mmap.PAGESIZE))
    assert spans(path) == []


def test_what_is_not_in_memory_is_read(tmp_path):
    """From the disk, reading is faster than looking; it is in memory then."""
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with suppress(BlockingIOError):
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
            pytest.skip("this file system keeps its files in memory")
    source = open_source(str(tmp_path), retry_seconds=600)
    first, then = (source.view("file", 1, len(DATA) - 1, Stop()) for _ in range(2))
    assert first == then == DATA[1:]
    assert first.is_mutable
    assert not then.is_mutable, "a view"


@pytest.mark.parametrize(("name", "said"), [("short", "ends 3 bytes before"), ("absent", "FileNotFoundError")])
def test_what_cannot_be_mapped_is_said_by_reading(tmp_path, name, said):
    (tmp_path / "short").write_bytes(b"12345")
    source = open_source(str(tmp_path), retry_seconds=600)
    assert source.view("short", 1, 3, Stop()) == b"234"
    with pytest.raises(AbsentError, match=f"{name}: .*{said}"):
        source.view(name, 2, 6, Stop())


@pytest.mark.parametrize("system", ["that does not know it", "that is another", "with an old Python"])
def test_another_system_reads(file, monkeypatch, system):
    if system == "that is another":
        monkeypatch.setattr(mapped, "_LIBC", None)
    elif system == "with an old Python":
        monkeypatch.delattr(os, "RWF_NOWAIT")
    else:
        monkeypatch.setattr(mapped, "_POPULATE_READ", 999)
    with pytest.raises(OSError, match="Invalid argument" if system == "that does not know it" else "cannot tell"):
        map_range(str(file), 0, 5, 5, lambda: None)
    view = open_source(str(file.parent), retry_seconds=600).view("file", 100, 10_000, Stop())
    assert view == DATA[100:10_100]
    assert view.is_mutable, "memory of its own"


def test_a_reader_that_was_left_does_not_wait_for_all_of_it(file, monkeypatch):
    stop, calls, real = Stop(), [], byte_source.map_range

    def counted(*args):
        return real(*args[:-1], lambda: (calls.append(1), len(calls) == 2 and stop.set(), args[-1]()))

    monkeypatch.setattr(byte_source, "map_range", counted)
    with pytest.raises(AbandonedError):
        open_source(str(file.parent), retry_seconds=600, block_size=1).view("file", 0, len(DATA), stop)
    assert len(calls) == 2
