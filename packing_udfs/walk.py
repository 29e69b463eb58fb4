"""From a pack to its samples: the one walk over what a pack stores end to end.

Columns of a pack are lists with a value for each token, sample or image (`contract.PACK_COLUMNS`), one sample behind
the other. `sample_lengths` says how many tokens are a sample's, `sample_num_images` how many images.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from packing_udfs import contract

__all__ = ["offsets", "packs", "samples", "segment_sums", "slices"]


def offsets(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Where each run starts and the last one ends, int64 [runs + 1]: offsets([2, 0, 1]) == [0, 2, 2, 3]."""
    return np.concatenate([[0], np.cumsum(np.asarray(counts), dtype=np.int64)])


def slices(counts: Sequence[int] | np.ndarray) -> list[slice]:
    """Each run as a slice: slices([2, 1]) == [slice(0, 2), slice(2, 3)]."""
    return [slice(start, end) for start, end in pairwise(offsets(counts).tolist())]


def segment_sums(values: Sequence[int] | np.ndarray, counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Sums of neighbouring values, `counts` of them at a time: segment_sums([1, 2, 3], [2, 0, 1]) == [3, 0, 3]."""
    return np.diff(offsets(values)[offsets(counts)])


def packs(row_group: pa.Table) -> Iterator[dict[str, Any]]:
    """Packs one by one: what is stored for each token as a NumPy view, all else as Python values."""
    for pack in row_group.to_batches(max_chunksize=1):
        values = ((name, pack[name][0]) for name in pack.schema.names)
        yield {name: v.values.to_numpy() if _level(name) == "token" else v.as_py() for name, v in values}


def samples(pack: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A pack's samples, in order: of each column that the pack has, the values of that sample.

    A slice of what is stored for tokens and images, one value of what is stored for samples; totals of the pack are
    left out. The pack needs a column of samples, and the counts for the levels that it has columns of.
    """
    levels = {name: _level(name) for name in pack if name in contract.PACK_COLUMNS}
    num_samples = next(len(pack[name]) for name, level in levels.items() if level == "sample")
    at: dict[str, Sequence[slice | int]] = {"sample": range(num_samples)}
    for level, counts in (("token", "sample_lengths"), ("image", "sample_num_images")):
        if level in levels.values():
            at[level] = slices(pack[counts])
    for i in range(num_samples):
        yield {name: pack[name][at[level][i]] for name, level in levels.items() if level != "pack"}


def _level(name: str) -> contract.Level:
    return contract.PACK_COLUMNS[name].level
