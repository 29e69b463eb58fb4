"""One shard a task: keys that Spark's hash partitioner sends to partitions of our choice.

With few keys `groupBy(key)` clumps: 16 keys land in about 10 of 16 partitions, and six tasks are idle. Spark places an
int by `pmod(murmur3(int, seed 42), n)`, which is cheap to compute here. So for each shard we look for an int that lands
in the shard's own partition, and group by it. Cost: about n ln n hashes. Rejected: `repartitionById`, which does the
same but exists only since Spark 4.1.
"""

import numpy as np

__all__ = ["partition_keys", "spark_hash"]


def spark_hash(values: np.ndarray) -> np.ndarray:
    """Spark SQL's `hash()` of ints: murmur3 (x86, 32 bits) of one 4-byte block with seed 42. int32 in, int32 out."""

    def rotate(x: np.ndarray, bits: int) -> np.ndarray:
        return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))

    with np.errstate(over="ignore"):
        k = np.asarray(values, np.int32).astype(np.uint32) * np.uint32(0xCC9E2D51)
        h = np.uint32(42) ^ (rotate(k, 15) * np.uint32(0x1B873593))
        h = rotate(h, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        h ^= np.uint32(4)
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return (h ^ (h >> np.uint32(16))).astype(np.int32)


def partition_keys(num_partitions: int) -> list[int]:
    """For each partition, the smallest non-negative int that hash partitioning into `num_partitions` sends there."""
    first, size = np.full(num_partitions, -1, np.int64), 4 * num_partitions
    while (first < 0).any():
        candidates = np.arange(size, dtype=np.int64)
        targets, at = np.unique(np.mod(spark_hash(candidates).astype(np.int64), num_partitions), return_index=True)
        first[targets] = candidates[at]
        size *= 2
    return first.tolist()
