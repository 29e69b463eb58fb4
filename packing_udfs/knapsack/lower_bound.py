"""Lower bounds on the number of packs: what no algorithm can go below."""

import numpy as np


def one_budget(sizes: np.ndarray, cap: int) -> int:
    """The bounds L1 and L2 of bin packing with one budget, whichever is larger.

    L1 = ⌈sum / cap⌉. L2 (Martello and Toth, 1990) knows that samples above half of the cap never share a pack, and
    that, for any α ≤ cap / 2, the samples in [α, cap / 2] fit only beside those of at most cap − α. O(n log n).

        sizes 6 6 6 4 4 4, cap 10: L1 = 3 and L2 = 3; sizes 6 6 6, cap 10: L1 = 2 and L2 = 3

    sizes: integers, each at most `cap`. No samples, no packs.
    """
    sizes = np.sort(np.asarray(sizes, dtype=np.int64))
    sums = np.concatenate([[0], np.cumsum(sizes)])
    simple = -(-int(sums[-1]) // cap)
    half = int(np.searchsorted(sizes, cap // 2, side="right"))  # from here on: above half
    alphas = np.unique(np.concatenate([[0], sizes[:half]]))
    alone = np.searchsorted(sizes, cap - alphas, side="right")  # from here on: beside nothing of α or more
    middle = sums[half] - sums[np.searchsorted(sizes[:half], alphas)]
    free = (np.maximum(alone, half) - half) * cap - (sums[np.maximum(alone, half)] - sums[half])
    return max(simple, int((len(sizes) - half + np.maximum(0, -(-(middle - free) // cap))).max()))
