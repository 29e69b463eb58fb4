"""Ranges of local files as memory, without a copy: the kernel's own pages of them.

Reading a row group into memory costs several times what it takes to map it, and as much again in caches that then hold
neither. A mapping alone would read later, where somebody looks, with the interpreter's lock held, and a disk that fails
would end the process. So the range is read here and now by the kernel (MADV_POPULATE_READ, since Linux 5.14), without
the lock, and what fails is an error. Its pages stay while nothing else needs the memory; after that, looking at them
reads them again.

Rejected: `mmap.madvise` (it keeps the interpreter's lock while the disk is read), MAP_POPULATE (it keeps errors to
itself), `sendfile` to /dev/null (a little less work, but a FUSE mount may keep nothing of what it read for that).
Source: madvise(2).
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable

import numpy as np
import pyarrow as pa

_POPULATE_READ = 22  # MADV_POPULATE_READ
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def map_range(path: str, offset: int, length: int, block_size: int, progress: Callable[[], None]) -> pa.Buffer:
    """`length` bytes of a file from `offset` on, which may not be written to. `progress` is called after each
    `block_size` bytes. Raises OSError or ValueError when the system cannot map files so, or the file is too short."""
    if _LIBC is None:
        raise OSError(f"{sys.platform} does not read what it maps")
    start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    with open(path, "rb", buffering=0) as file:
        pages = mmap.mmap(file.fileno(), offset + length - start, mmap.MAP_PRIVATE, mmap.PROT_READ, offset=start)
    first = np.frombuffer(pages, np.uint8).ctypes.data
    step = -(-block_size // mmap.PAGESIZE) * mmap.PAGESIZE
    for at in range(0, len(pages), step):
        num_bytes = min(step, len(pages) - at)
        if _LIBC.madvise(ctypes.c_void_p(first + at), ctypes.c_size_t(num_bytes), _POPULATE_READ):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        progress()
    return pa.py_buffer(pages).slice(offset - start)
