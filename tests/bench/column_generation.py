"""A lower bound on packs under tokens and vision cost together, near the optimum: an oracle for tests and benches.

Bin packing as covering by all packs that fit (Gilmore and Gomory, 1961). Any values y of the samples bound the
packs from below by Σ y / (the value of the most valuable pack that fits) (Farley, 1990); the best y are the duals
of the covering program, found by generating packs that are worth more than 1.

Thousands of distinct samples make that slow to converge, so y is a function of a sample's size: bilinear between
the nodes of a grid over (tokens, vision cost). The program then has a row for each node, where samples and packs
count by their weights. With few distinct sizes every size is a node and nothing is lost.

The most valuable pack is found by dynamic programming over used tokens and vision cost, in cells to which sizes are
rounded down, never up: what fits, fits in cells, so the bound holds however coarse they are. The last step repeats
it with finer cells. Seconds for 4,000 samples; needs highspy.
"""

import contextlib
import os
import sys

import highspy
import numpy as np

from packing_udfs.knapsack import Amounts, Budgets, bound, first_fit_decreasing
from packing_udfs.knapsack.axes import TOKENS, VISION

MAX_NODES = (48, 24)
TOLERANCE = 5e-4  # between the program's optimum and the bound
EPSILON = 1e-9


def lower_bound(
    amounts: Amounts,
    budgets: Budgets,
    *,
    packs: list[np.ndarray] | None = None,
    max_rounds: int = 300,
    num_cells: int = 16_384,
    num_fine_cells: int = 500_000,
) -> int:
    """Packs that no algorithm can do without; at least `knapsack.bound`. The image budget is left out of it.

    packs: known packs to start from; good ones save rounds. num_cells: of the dynamic program, num_fine_cells: of
    its last run.
    """
    simple = bound(amounts, budgets)
    if not len(amounts):
        return 0
    vision = amounts[VISION] if VISION in budgets else np.zeros(len(amounts), np.int64)
    sizes = np.stack([amounts[TOKENS], vision])
    caps = np.array([budgets[TOKENS], budgets.get(VISION, 0)])
    kinds, kind_of, demand = np.unique(sizes, axis=1, return_inverse=True, return_counts=True)
    nodes, weights = _nodes(kinds, caps)
    if packs is None:
        packs = first_fit_decreasing(amounts, budgets)
    program = _Covering(nodes, weights, demand)
    for pack in packs:
        program.add(kind_of.ravel()[pack])
    best, values = 0.0, None
    for _ in range(max_rounds):
        optimum, duals = program.solve()
        # Duals jump from corner to corner; near the best seen so far they move less (Wentges, 1997). At the corner
        # itself only when that finds nothing new.
        for near in (0.8, 0.0):
            tried = duals if values is None else near * values + (1 - near) * duals
            worth, found = _most_valuable(kinds, demand, tried, caps, num_cells)
            if values is None or tried @ demand / worth > best:
                best, values = max(best, tried @ demand / worth), tried / worth
            new = [members for members in found if duals[members].sum() > 1 + EPSILON]
            if new:
                break
        if not new or optimum <= best * (1 + TOLERANCE):
            break
        for members in new:
            program.add(members)
    worth, _ = _most_valuable(kinds, demand, values, caps, num_fine_cells, packs=False)
    return max(simple, int(np.ceil(max(best, values @ demand / worth) - 1e-6)))


def _nodes(kinds: np.ndarray, caps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int64 [kinds, 4], float64 [kinds, 4]): the four nodes around each kind, and how much it counts at each."""
    below, share, width = [], [], []
    for values, cap, most in zip(kinds, caps, MAX_NODES, strict=True):
        axis = np.unique(values)
        if len(axis) > most:  # where values are dense, and at the fractions of the cap that packs turn on
            dense = np.quantile(values, np.linspace(0, 1, most), method="nearest")
            axis = np.unique(np.concatenate([[0, cap], cap // np.arange(2, 7), dense]))
        at = np.clip(np.searchsorted(axis, values, side="right") - 1, 0, max(len(axis) - 2, 0))
        gap = np.diff(axis, append=axis[-1] + 1)[at]
        below.append(at)
        share.append((values - axis[at]) / gap)
        width.append(len(axis) + 1)
    corners = [(t, v) for t in (0, 1) for v in (0, 1)]
    nodes = np.stack([(below[0] + t) * width[1] + below[1] + v for t, v in corners], axis=1)
    weights = np.stack([np.abs(1 - t - share[0]) * np.abs(1 - v - share[1]) for t, v in corners], axis=1)
    return nodes, weights


class _Covering:
    """The linear program: cover what the samples count at each node, with as few packs as can be."""

    def __init__(self, nodes: np.ndarray, weights: np.ndarray, demand: np.ndarray):
        used, rows = np.unique(np.where(weights > 0, nodes, nodes[:, :1]), return_inverse=True)
        self.rows, self.weights = rows.reshape(weights.shape), weights
        counts = np.bincount(self.rows.ravel(), weights=(weights * demand[:, None]).ravel(), minlength=len(used))
        with _no_banner():
            self.model = highspy.Highs()
        self.model.silent()
        none = np.array([], dtype=np.int32), np.array([])
        for count in counts.tolist():
            self.model.addRow(count, highspy.kHighsInf, 0, *none)

    def add(self, members: np.ndarray) -> None:
        """A pack of samples of these kinds."""
        rows, at = np.unique(self.rows[members].ravel(), return_inverse=True)
        counts = np.bincount(at, weights=self.weights[members].ravel())
        self.model.addCol(1.0, 0.0, highspy.kHighsInf, len(rows), rows.astype(np.int32), counts)

    def solve(self) -> tuple[float, np.ndarray]:
        """(the optimum, the value of each kind)."""
        self.model.run()
        duals = np.maximum(np.array(self.model.getSolution().row_dual), 0)
        return self.model.getObjectiveValue(), (duals[self.rows] * self.weights).sum(axis=1)


@contextlib.contextmanager
def _no_banner():
    """Keep what the solver prints when it is made out of standard output, which carries the bench's lines."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _most_valuable(kinds, demand, values, caps, num_cells, *, packs=True) -> tuple[float, list[np.ndarray]]:
    """(an upper bound on the value of a pack, valuable packs as arrays of kinds)."""
    units = np.maximum(np.gcd.reduce(kinds, axis=1), 1)
    vision_cells = min(int(caps[1] // units[1]) + 1, max(64, num_cells // int(caps[0] // units[0] + 1)))
    token_cells = max(1, num_cells // vision_cells)
    step = [
        max(int(u), -(-int(cap + 1) // cells))
        for u, cap, cells in zip(units, caps, (token_cells, vision_cells), strict=True)
    ]
    sizes, (tokens, vision) = (
        kinds // np.array(step)[:, None],
        (int(cap // s) for cap, s in zip(caps, step, strict=True)),
    )
    table = np.zeros((tokens + 1, vision + 1))
    taken = []
    # Kinds that share a cell pass for the most valuable of them.
    _, cell_of = np.unique(sizes, axis=1, return_inverse=True)
    ranked = np.lexsort((-values, cell_of.ravel()))
    heads = ranked[np.flatnonzero(np.diff(cell_of.ravel()[ranked], prepend=-1))]
    counts = np.bincount(cell_of.ravel(), weights=demand)
    for kind, count in zip(heads.tolist(), counts.tolist(), strict=True):
        if values[kind] <= EPSILON:
            continue
        t, v = sizes[:, kind].tolist()
        left = min([int(count), *(cap // size for cap, size in ((tokens, t), (vision, v)) if size)])
        copies = 1  # 1, 2, 4 …: any number of them up to `left` is a sum
        while left > 0:
            copies = min(copies, left)
            shift = copies * t, copies * v
            with_it = table[: tokens + 1 - shift[0], : vision + 1 - shift[1]] + copies * values[kind]
            without = table[shift[0] :, shift[1] :]
            if packs:
                taken.append((kind, copies, shift, with_it > without))
            np.maximum(without, with_it, out=without)
            left, copies = left - copies, 2 * copies
    worth = max(float(table[-1, -1]), EPSILON)
    ends = [(tokens, vision)]
    ends += [(tokens * k // 16, vision) for k in range(8, 16)] + [(tokens, vision * k // 16) for k in range(8, 16)]
    return worth, [_trace(taken, end) for end in dict.fromkeys(ends)] if packs else []


def _trace(taken, end: tuple[int, int]) -> np.ndarray:
    """The kinds of the most valuable pack that uses at most the cells `end`."""
    members: list[int] = []
    t, v = end
    for kind, copies, shift, is_taken in reversed(taken):
        if t >= shift[0] and v >= shift[1] and is_taken[t - shift[0], v - shift[1]]:
            members += [kind] * copies
            t, v = t - shift[0], v - shift[1]
    return np.array(members, dtype=np.int64)
