"""Ranges of local files as memory, without a copy: the pages that the kernel has cached.

Reading a row group costs two or three times what mapping it does. But a mapping reads from the disk later, on access,
with the interpreter's lock held, in pieces of 128 kB, and a disk error ends the process. So only a range whose pages
are cached is mapped, and its page tables are filled at once. Another range is read, and its pages are cached the next
time. The mapping is private: a write goes to a copy of the page.

Cost: 30 µs for 1 MB. Rejected: `mmap.mmap` (a file descriptor per mapping, and its `madvise` holds the interpreter's
lock), mapping pages that are not cached (a half to a quarter of the rate of reading from a slow disk).
Source: madvise(2), MADV_POPULATE_READ, since Linux 5.14; preadv2(2), RWF_NOWAIT.
"""

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Callable

import pyarrow as pa

__all__ = ["map_range"]

_POPULATE_READ = 22  # MADV_POPULATE_READ
_FAILED = ctypes.c_void_p(-1).value

if sys.platform == "linux":
    _LIBC = ctypes.CDLL(None, use_errno=True)  # calls release the interpreter's lock
    _LIBC.mmap.restype = ctypes.c_void_p
    _LIBC.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long
    _LIBC.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    _LIBC.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
else:
    _LIBC = None


class _Pages:
    """Pages of a file, mapped as long as this object lives."""

    def __init__(self, file: int, offset: int, length: int):
        access = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE
        self.address, self.length = _LIBC.mmap(None, length, *access, file, offset), length
        if self.address == _FAILED:
            raise _error()
        weakref.finalize(self, _LIBC.munmap, self.address, length).atexit = False

    def read(self, start: int, length: int) -> None:
        if _LIBC.madvise(self.address + start, length, _POPULATE_READ):
            raise _error()


def map_range(path: str, offset: int, length: int, block_size: int, progress: Callable[[], None]) -> pa.Buffer:
    """`length` bytes of a file from `offset` on. Calls `progress` after each `block_size` bytes. Raises OSError if they
    are not cached, if the file is too short, or if the system does not support this."""
    if _LIBC is None or not hasattr(os, "RWF_NOWAIT"):  # a Python built for an old libc lacks it
        raise OSError("this system or this Python cannot tell what is cached")
    start, step = offset // mmap.PAGESIZE * mmap.PAGESIZE, -(-block_size // mmap.PAGESIZE) * mmap.PAGESIZE
    with open(path, "rb", buffering=0) as file:
        pages, byte = _Pages(file.fileno(), start, offset + length - start), bytearray(1)
        for at in range(0, pages.length, step):
            num_bytes = min(step, pages.length - at)
            for place in (at, at + num_bytes - 1):
                if not os.preadv(file.fileno(), [byte], start + place, os.RWF_NOWAIT):
                    raise OSError(f"{path}: ends before byte {start + place}")
            pages.read(at, num_bytes)
            progress()
    return pa.foreign_buffer(pages.address + offset - start, length, pages)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
