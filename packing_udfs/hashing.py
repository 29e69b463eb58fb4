"""Pseudo-random numbers that are a hash of integers: the same on any machine, in any release of anything."""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hashes(n: int, *key: int) -> np.ndarray:
    """`n` pseudo-random uint64 that depend on the integers `key` alone; on any machine, in any release.

    splitmix64 (Steele, Lea, Flood 2014), the key folded in one integer at a time.
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in key:
        state = _mix(state + _GOLDEN + np.uint64(part & 0xFFFFFFFFFFFFFFFF))
    return _mix(state + _GOLDEN * np.arange(1, n + 1, dtype=np.uint64))


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def permutation(n: int, *key: int) -> np.ndarray:
    """A permutation of range(n) as int64 that depends on the integers `key` alone."""
    return np.argsort(hashes(n, *key), kind="stable")
