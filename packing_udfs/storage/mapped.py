"""Ranges of local files as memory, without a copy: the kernel's own pages of them, where it has them already.

Reading a row group into memory costs two or three times what mapping it does. But a mapping reads from the disk later,
where somebody looks, with the interpreter's lock held, in pieces of 128 kB, and a disk that fails ends the process. So
a range is mapped when its pages are there, and they are put in place now; otherwise it is read, as ever, and is there
the next time. Whoever writes to it writes to a page of his own.

Cost: 30 µs for 1 MB. Rejected: `mmap.mmap` (it holds a file descriptor for each mapping, and `madvise` the
interpreter's lock), mapping what is not there (a half to a quarter of what reading gets from a slow disk).
Source: madvise(2), MADV_POPULATE_READ, since Linux 5.14; preadv2(2), RWF_NOWAIT.
"""

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Callable

import pyarrow as pa

_POPULATE_READ = 22  # MADV_POPULATE_READ
_FAILED = ctypes.c_void_p(-1).value

if sys.platform == "linux":
    _LIBC = ctypes.CDLL(None, use_errno=True)  # which lets go of the interpreter's lock
    _LIBC.mmap.restype = ctypes.c_void_p
    _LIBC.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long
    _LIBC.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    _LIBC.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
else:
    _LIBC = None


class _Pages:
    """Pages of a file, for as long as somebody holds this."""

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
    """`length` bytes of a file from `offset` on. `progress` is called after each `block_size` bytes. Raises OSError
    when they are not in memory yet, when the file is too short, or when the system cannot say or do it."""
    if _LIBC is None or not hasattr(os, "RWF_NOWAIT"):  # which a Python built for an old libc does not have
        raise OSError("this system or this Python does not say what is in memory")
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
