"""Which samples share a pack: vector bin packing on lengths and costs; no bytes are touched.

All algorithms take lengths and costs and return packs as arrays of sample indices. They are deterministic, and
equal samples are interchangeable. `balanced`, the default, fills packs one at a time
(`packing_udfs.knapsack.fill_by_score`) or by patterns of vision cost (`packing_udfs.knapsack.fill_by_kind`), keeps
the better of two results and evens out image work (`packing_udfs.knapsack.even_out`). The others are here for
comparison: `greedy` is what training loops do, the decreasing ones what trainers' packing does with one budget.

Cost: `balanced` is linear in samples but for sorting; `first_fit_decreasing` and `best_fit_decreasing` look at all
open packs for each sample. `tests/bench` measures all of them against lower bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from packing_udfs.knapsack.even_out import even_out
from packing_udfs.knapsack.fill_by_kind import fill_patterns
from packing_udfs.knapsack.fill_by_score import fill_bins
from packing_udfs.knapsack.lower_bound import one_budget


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """What one pack may hold. Raises ValueError on a budget below 1."""

    seq_len: int
    """Tokens."""
    vision_cost: int | None = None
    """Tiles or patches; None is no limit."""
    num_images: int | None = None
    """Images; None is no limit."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: a pack's budget must be at least 1")


def too_large(
    lengths: np.ndarray,
    budgets: Budgets,
    *,
    vision_costs: np.ndarray | None = None,
    num_images: np.ndarray | None = None,
) -> np.ndarray:
    """bool [samples]: those over a budget on their own. Set them aside: the algorithms refuse them.

    lengths in tokens, vision_costs in the budget's unit. A budget that is set needs its costs (ValueError).
    """
    sizes, caps, _ = _demands(lengths, budgets, vision_costs, num_images)
    return np.any(sizes > caps[:, None], axis=0)


def bound(
    lengths: np.ndarray,
    budgets: Budgets,
    *,
    vision_costs: np.ndarray | None = None,
    num_images: np.ndarray | None = None,
) -> int:
    """A number of packs that no algorithm goes below: the largest over the budgets of `bounds.one_budget`."""
    sizes, caps = _checked(lengths, budgets, vision_costs, num_images)
    return max(min(1, sizes.shape[1]), *(one_budget(size, int(cap)) for size, cap in zip(sizes, caps, strict=True)))


def greedy(
    lengths: np.ndarray,
    budgets: Budgets,
    *,
    vision_costs: np.ndarray | None = None,
    num_images: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Samples in order; a pack closes at the first sample that doesn't fit. Next fit."""
    sizes, caps = _checked(lengths, budgets, vision_costs, num_images)
    bins: list[list[int]] = []
    room = [-1] * len(caps)
    for i, size in enumerate(sizes.T.tolist()):
        if any(s > r for s, r in zip(size, room, strict=True)):
            bins.append([])
            room = caps.tolist()
        bins[-1].append(i)
        room = [r - s for s, r in zip(size, room, strict=True)]
    return _arrays(bins)


def first_fit_decreasing(
    lengths: np.ndarray,
    budgets: Budgets,
    *,
    vision_costs: np.ndarray | None = None,
    num_images: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Longest sample first, each into the first pack where it fits."""
    sizes, caps = _checked(lengths, budgets, vision_costs, num_images)
    return _place(np.lexsort(-sizes[::-1]), sizes, caps, lambda room, fits: int(fits.argmax()))


def best_fit_decreasing(
    lengths: np.ndarray,
    budgets: Budgets,
    *,
    vision_costs: np.ndarray | None = None,
    num_images: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Largest share of any budget first, each into the pack that has the least room, summed over the budgets."""
    sizes, caps = _checked(lengths, budgets, vision_costs, num_images)
    share = (sizes / caps[:, None]).max(axis=0, initial=0)

    def fullest(room: np.ndarray, fits: np.ndarray) -> int:
        return int(np.where(fits, (room / caps[:, None]).sum(axis=0), np.inf).argmin())

    return _place(np.lexsort((*-sizes[::-1], -share)), sizes, caps, fullest)


def balanced(
    lengths: np.ndarray,
    budgets: Budgets,
    *,
    vision_costs: np.ndarray | None = None,
    num_images: np.ndarray | None = None,
    attention_weight: float = 0.0,
) -> list[np.ndarray]:
    """Few packs under all budgets, alike in image work. Packs list their samples in ascending order.

    With tokens as the only budget never more packs than `best_fit_decreasing`.

    attention_weight: how much the attention work of a pack, Σ length², counts beside its vision cost when packs
    are made alike; 1 weighs the averages of both equally, 0 leaves attention out. Vision costs are evened out
    whether or not they have a budget.
    """
    _checked(lengths, budgets, vision_costs, num_images)
    lengths = np.asarray(lengths, dtype=np.int64)
    if not len(lengths):
        return []
    zeros = np.zeros_like(lengths)
    vision = zeros if vision_costs is None else np.asarray(vision_costs, dtype=np.int64)
    images = zeros if budgets.num_images is None else np.asarray(num_images, dtype=np.int64)
    sizes = np.stack([lengths, vision, images])
    caps = [
        budgets.seq_len,
        budgets.vision_cost or max(1, int(vision.sum())),
        budgets.num_images or 1,
    ]
    attention = attention_weight * _relative(lengths**2)
    work = _relative(vision) + attention
    least = bound(lengths, budgets, vision_costs=vision_costs, num_images=num_images)
    # A vision cost without a budget is evened out, but limits nothing.
    limited = sizes if budgets.vision_cost else np.stack([lengths, zeros, images])
    best: list[list[int]] = []
    for way in _ways(limited, caps):
        if best and len(best) <= least + (0 if way is PATTERNS else max(1, least // 500)):
            break
        if way is None:  # PATTERNS
            bins = fill_patterns(limited, caps)
        else:
            weight, complete = way
            bins = fill_bins(sizes, caps, work=work, attention=attention, weight=weight, complete=complete)
            bins = _refilled(bins, sizes, caps) if complete and len(bins) > least else bins
        best = bins if not best or len(bins) < len(best) else best
    bin_of = np.empty(len(lengths), dtype=np.int64)
    bin_of[np.concatenate(best)] = np.repeat(np.arange(len(best)), [len(b) for b in best])
    bin_of = even_out(bin_of, sizes, np.array(caps), work)
    ranked, ends = np.argsort(bin_of, kind="stable"), np.cumsum(np.bincount(bin_of)).tolist()
    return [ranked[start:end] for start, end in zip([0, *ends], ends, strict=False)]


ALGORITHMS: dict[str, Callable[..., list[np.ndarray]]] = {
    function.__name__: function for function in (balanced, best_fit_decreasing, first_fit_decreasing, greedy)
}


PATTERNS = None
MAX_KINDS = 64  # distinct costs that patterns are tried with
WHOLE = 1 << 32  # a pack's budget, so that a third of it is an integer


def _ways(sizes: np.ndarray, caps: list[int]) -> list[tuple[float, bool] | None]:
    """What to fill with, in turn: PATTERNS, or (weight of work against tokens, whether to fill to the token).

    Filling to the token costs some vision cost, which is only spare where tokens bind. Few distinct vision costs
    count by how many a pack takes: of 40 tiles, 13 are a third. Without images, patterns are best-fit decreasing.
    """
    lengths, vision, images = sizes
    if not sizes[1:].any():
        return [(2.0, True), PATTERNS]
    few = len(np.unique(vision * (int(images.max()) + 1) + images)) <= MAX_KINDS
    tokens, cost = int(lengths.sum()) * caps[1], int(vision.sum()) * caps[0]
    if few:
        share = np.where(vision > 0, WHOLE // (caps[1] // np.maximum(vision, 1)), 0)
        tokens, cost = int(lengths.sum()) * WHOLE, int(share.sum()) * caps[0]
    if tokens > cost * (1 if few else 1.03):
        return [(2.0, True), (1.0, False)]
    return [PATTERNS, (1.0, False)] if few else [(4.0, False), (0.25, False)]


def _refilled(bins: list[list[int]], sizes: np.ndarray, caps: list[int]) -> list[list[int]]:
    """The packs, those that end short filled anew by patterns if they are fewer then: the last ones had little choice.

    Tried with the packs that miss more than a 64th of their tokens, then with all that miss a 512th: the former
    disturb fewer. None gets more than half above their average of vision cost, so that packs stay alike.
    """
    free = caps[0] - np.array([sizes[0, members].sum() for members in bins])
    for part in (64, 512):
        short = np.flatnonzero(free > caps[0] // part).tolist()
        if not short:
            continue
        items = np.array([i for at in short for i in bins[at]], dtype=np.int64)
        vision = sizes[1, items]
        most = min(caps[1], max(1, int(vision.max()), 3 * int(vision.sum()) // (2 * len(short))))
        again = fill_patterns(sizes[:, items], [caps[0], most, caps[2]])
        if len(again) < len(short):
            kept = np.flatnonzero(free <= caps[0] // part).tolist()
            return [bins[at] for at in kept] + [items[members].tolist() for members in again]
    return bins


def _relative(values: np.ndarray) -> np.ndarray:
    """Values over their mean (float64); all zero if they are."""
    return values * (len(values) / max(int(values.sum()), 1))


def _demands(lengths, budgets, vision_costs, num_images) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """(int64 [budgets that are set, samples], int64 [budgets that are set], their names); tokens first."""
    given = {"seq_len": lengths, "vision_cost": vision_costs, "num_images": num_images}
    names = [name for name in given if getattr(budgets, name) is not None]
    for name in names:
        if given[name] is None:
            raise ValueError(f"{name}={getattr(budgets, name)} is set, but the samples' costs are not: pass them")
    for name, values in given.items():
        if values is not None and len(values) != len(lengths):
            raise ValueError(f"{len(values)} costs for {name} and {len(lengths)} lengths: one a sample is needed")
        if values is not None and len(values) and np.min(values) < 0:
            raise ValueError(f"sample {np.argmin(values)} has {name} {np.min(values)}: costs must not be negative")
    sizes = np.stack([np.asarray(given[name], dtype=np.int64) for name in names])
    return sizes, np.array([getattr(budgets, name) for name in names], dtype=np.int64), names


def _checked(lengths, budgets, vision_costs, num_images) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and caps as `_demands`; ValueError naming the first sample over a budget."""
    sizes, caps, names = _demands(lengths, budgets, vision_costs, num_images)
    over = (sizes > caps[:, None]).any(axis=0)
    if over.any():
        i = int(over.argmax())
        at = int((sizes[:, i] > caps).argmax())
        raise ValueError(
            f"sample {i} has {names[at]} {sizes[at, i]}, over the budget of {caps[at]}: "
            "set aside what `too_large` marks"
        )
    return sizes, caps


def _place(
    order: np.ndarray, sizes: np.ndarray, caps: np.ndarray, choose: Callable[[np.ndarray, np.ndarray], int]
) -> list[np.ndarray]:
    """Samples in `order`, each into the pack that `choose(room, fits)` names among those it fits, else a new one."""
    room = np.empty((len(caps), sizes.shape[1]), dtype=np.int64)
    bins: list[list[int]] = []
    for i in order.tolist():
        fits = np.asarray((room[:, : len(bins)] >= sizes[:, i, None]).all(axis=0))
        if fits.any():
            at = choose(room[:, : len(bins)], fits)
        else:
            at = len(bins)
            room[:, at] = caps
            bins.append([])
        bins[at].append(i)
        room[:, at] -= sizes[:, i]
    return _arrays(bins)


def _arrays(bins: list[list[int]]) -> list[np.ndarray]:
    return [np.array(members, dtype=np.int64) for members in bins]
