"""Memory that ranges reuse: a row group comes every few milliseconds, and all are about as large.

    slabs = Slabs()
    data = slabs.take(13_000_000)   # a pyarrow.Buffer; its memory is free again when nothing refers to it

An allocator returns memory of this size to the kernel between two row groups, and the kernel zeroes new pages: a third
to a half of the processor time of a range. A slab stays. `take` tries the one that became free last, which may still be
in the processor's caches, and drops it if it is too small or far too large. So there are never more slabs than were in
use at one time. They end with their owner, a source.

Rejected: huge pages (a twentieth of the page faults, but half as much kernel time again); jemalloc, which keeps memory
for a second (a fifth more kernel time).
"""

import mmap
import weakref
from contextlib import suppress

import numpy as np
import pyarrow as pa

__all__ = ["Slabs"]

MIB = 1 << 20
_OWN = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}


class Slabs:
    """Slabs of memory. Threads may share them."""

    def __init__(self):
        self._free: list[mmap.mmap] = []  # the last one became free last; append and pop need no lock

    def __reduce__(self) -> tuple:
        return Slabs, ()  # memory stays with its process

    def take(self, num_bytes: int) -> pa.Buffer:
        """A buffer of `num_bytes` bytes, at least one, with any content."""
        slab = self._fitting(num_bytes) or mmap.mmap(-1, -(-num_bytes * 9 // 8 // MIB) * MIB, **_OWN)
        holder = np.frombuffer(slab, np.uint8, num_bytes)
        weakref.finalize(holder, self._free.append, slab).atexit = False
        return pa.py_buffer(holder)

    def _fitting(self, num_bytes: int) -> mmap.mmap | None:
        with suppress(IndexError):
            slab = self._free.pop()
            return slab if num_bytes <= len(slab) <= 2 * num_bytes + MIB else None
        return None
