"""An oversized shard as several files: where to cut its samples, from their bytes alone.

A shard's number of bytes follows from a hash, so one with many large images, or with images that a source's own files
had compressed, can hold more than was planned. Its samples, in the shard's order, are cut into runs of at most
`max_bytes`, as few as can be and among those with the smallest largest run:

    bytes 3 3 3 3, at most 10     (3 3 3) (3) has two runs, and (3 3) (3 3) too, of 6 at most: this one

The order is by hash, so runs are alike in what they hold. A sample larger than `max_bytes` is a run of its own. Cost:
some thirty passes over the runs by bisection. Rejected: equal numbers of samples (a few large images overfill a file),
filling each run up to `max_bytes` (the last may be a stub, with row groups too small to deal).
"""

from collections.abc import Sequence

import numpy as np


def runs(sizes: Sequence[int], max_bytes: int) -> list[slice]:
    """Consecutive runs, in order, that together are all of `sizes`: bytes of each sample. No samples, no runs."""
    ends = np.cumsum(np.asarray(sizes, np.int64))
    if not len(ends):
        return []
    least = _starts(ends, max_bytes)
    low, high = 1, max_bytes
    while low < high:
        middle = (low + high) // 2
        if len(_starts(ends, middle, len(least))) <= len(least):
            high = middle
        else:
            low = middle + 1
    starts = _starts(ends, low)
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(ends)], strict=True)]


def _starts(ends: np.ndarray, capacity: int, enough: int | None = None) -> list[int]:
    """Where runs start that are filled from the front; stops when there are more than `enough`."""
    starts = [0]
    while enough is None or len(starts) <= enough:
        before = ends[starts[-1] - 1] if starts[-1] else 0
        end = max(int(np.searchsorted(ends, before + capacity, "right")), starts[-1] + 1)
        if end == len(ends):
            break
        starts.append(end)
    return starts
