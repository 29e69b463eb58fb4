"""Memory for ranges that is used again: a row group comes every few milliseconds, and each is as large as the last.

    slabs = Slabs()
    data = slabs.take(13_000_000)   # a pyarrow.Buffer; its memory is free again once nothing looks at it any more

An allocator gives memory of this size back to the kernel between two row groups, or to another thread, and the kernel
zeroes its pages anew: a third to a half of the processor time of a range. A slab stays. The one that became free last
is taken first, as the processor's caches may hold it still; if it is too small or far too large, it gives way. So there
are never more of them than were in use at one time, and they go with what owns them, a source.

Rejected: huge pages (a twentieth of the faults, and half as much time again in the kernel); jemalloc, which keeps
memory for a second (a fifth more time in the kernel).
"""

import mmap
import weakref
from contextlib import suppress

import numpy as np
import pyarrow as pa

MIB = 1 << 20
_OWN = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}


class Slabs:
    """Slabs of memory, the free ones in the order in which they became free. Threads may share them."""

    def __init__(self):
        self._free: list[mmap.mmap] = []  # threads and whatever frees memory add to its end and take from it: no lock

    def __reduce__(self) -> tuple:
        return Slabs, ()  # memory stays with its process

    def take(self, num_bytes: int) -> pa.Buffer:
        """A buffer of `num_bytes` bytes, at least one, of any value."""
        slab = self._fitting(num_bytes) or mmap.mmap(-1, -(-num_bytes * 9 // 8 // MIB) * MIB, **_OWN)
        holder = np.frombuffer(slab, np.uint8, num_bytes)
        weakref.finalize(holder, self._free.append, slab).atexit = False
        return pa.py_buffer(holder)

    def _fitting(self, num_bytes: int) -> mmap.mmap | None:
        with suppress(IndexError):
            slab = self._free.pop()
            return slab if num_bytes <= len(slab) <= 2 * num_bytes + MIB else None
        return None
