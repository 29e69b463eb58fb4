"""Even out work between finished packs by exchanging samples of equal or nearly equal length.

Samples are sorted by length and compared with their neighbours. Two of them change places if they sit in different
packs, both packs keep their budgets, and the difference in work between the packs shrinks. Many exchanges happen at
once, best first, each pack in at most one of them. A hash shuffles ties among equal lengths from round to round, so
that other samples meet. The number of packs stays as it is, and the tokens of each nearly so.

Cost: O(n log n) a round, all of it array arithmetic. Rejected: exchanging between the costliest and the cheapest
pack, one pair of packs at a time (a loop over packs for the same result).
"""

import numpy as np

from packing_udfs.hashing import hashes
from packing_udfs.knapsack.axes import TOKENS, Amounts, Budgets

__all__ = ["even_out"]

NUM_ROUNDS = 6
REACH = 3  # how many places further down the sorted samples to look


def even_out(bin_of: np.ndarray, amounts: Amounts, budgets: Budgets, work: np.ndarray) -> np.ndarray:
    """The pack of each sample (int64), with a spread of work between packs that is never larger than in `bin_of`.

    work: float64 [num_samples].
    """
    bin_of = bin_of.copy()
    num_bins = int(bin_of.max()) + 1 if len(bin_of) else 0
    sizes, caps = amounts.matrix(budgets), np.array(list(budgets.values()), dtype=np.int64)
    used = np.stack([np.bincount(bin_of, weights=size, minlength=num_bins) for size in sizes])
    room = caps[:, None] - used.astype(np.int64)
    load = np.bincount(bin_of, weights=work, minlength=num_bins)
    # The hash is of a sample's place among all by size and pack, so that the order of equal samples changes nothing.
    place_of = np.argsort(np.lexsort((bin_of, *sizes[::-1])))
    for round_ in range(NUM_ROUNDS):
        ranked = np.lexsort((hashes(len(bin_of), round_)[place_of], amounts[TOKENS]))
        step = 1 + round_ % REACH
        one, two = ranked[:-step], ranked[step:]
        a, b = bin_of[one], bin_of[two]
        moved = work[one] - work[two]  # from a to b
        gain = moved * (load[a] - load[b] - moved)
        growth = sizes[:, two] - sizes[:, one]  # of a; b shrinks by it
        fits = ((growth <= room[:, a]) & (-growth <= room[:, b])).all(axis=0)
        good = np.flatnonzero((a != b) & (gain > 1e-9) & fits)
        good = good[np.argsort(-gain[good], kind="stable")]
        # The best exchange of each pack; do those that are the best of both of theirs.
        place = np.arange(len(good))
        best = np.full(num_bins, len(good))
        np.minimum.at(best, a[good], place)
        np.minimum.at(best, b[good], place)
        good = good[(best[a[good]] == place) & (best[b[good]] == place)]
        one, two, a, b = one[good], two[good], a[good], b[good]
        bin_of[one], bin_of[two] = b, a
        room[:, a] -= growth[:, good]
        room[:, b] += growth[:, good]
        load[a] -= moved[good]
        load[b] += moved[good]
    return bin_of
