"""Memory for ranges that is used again: a row group comes every few milliseconds, and each is as large as the last.

    slabs = Slabs()
    data = slabs.take(13_000_000)   # a pyarrow.Buffer; its memory is free again once nothing looks at it any more

An allocator gives memory of this size back to the kernel between two row groups, or to another thread, and the kernel
zeroes its pages anew: a third to a half of the processor time of a range. A slab stays. The one that became free last
is taken first, as the processor's caches may hold it still. There are never more of them than were in use at one time:
where all that are free are too small or far too large, one gives way. Cost: a look at the free ones.

Rejected: huge pages (an eighth of the faults, and half as much time again in the kernel), jemalloc, which keeps memory
for a second (a quarter more processor time in the kernel).
"""

import mmap
import threading
import weakref

import numpy as np
import pyarrow as pa

MIB = 1 << 20
_OWN = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}


class Slabs:
    """Slabs of memory, the free ones in the order in which they became free. Threads may share them."""

    def __init__(self):
        self._free: list[mmap.mmap] = []
        self._lock = threading.Lock()
        self._is_open = True

    def take(self, num_bytes: int) -> pa.Buffer:
        """A buffer of `num_bytes` bytes, at least one, of any value."""
        slab = self._fitting(num_bytes) or mmap.mmap(-1, -(-num_bytes * 9 // 8 // MIB) * MIB, **_OWN)
        holder = np.frombuffer(slab, np.uint8, num_bytes)
        weakref.finalize(holder, self._give_back, slab).atexit = False
        return pa.py_buffer(holder)

    def close(self) -> None:
        """Let go of the free slabs, and of each other one as soon as nothing looks at it."""
        self._is_open = False
        self._free.clear()

    def _fitting(self, num_bytes: int) -> mmap.mmap | None:
        with self._lock:  # meanwhile others may add to the end (`_give_back`), and nobody takes
            for at in reversed(range(len(self._free))):
                if num_bytes <= len(self._free[at]) <= 2 * num_bytes + MIB:
                    return self._free.pop(at)
            if self._free:
                del self._free[0]
        return None

    def _give_back(self, slab: mmap.mmap) -> None:
        if self._is_open:  # without the lock: it is called wherever memory is freed, so also in `_fitting`
            self._free.append(slab)
