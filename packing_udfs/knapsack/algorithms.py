"""Which samples share a pack: vector bin packing on amounts (`packing_udfs.knapsack.axes`); no bytes are touched.

Every algorithm takes the samples' amounts and a pack's budgets, and returns packs as arrays of sample indices (int64).
They are deterministic, and equal samples are interchangeable. They raise ValueError for a sample that is over a budget
on its own: set aside what `too_large` marks.

`balanced`, the default, fills packs one at a time (`fill_by_score`) or by patterns of vision cost (`fill_by_kind`),
keeps the better of two results and evens out image work (`even_out`). The others are for comparison: `greedy` is what
training loops do, the decreasing ones are what trainers' packing does with one budget.

Cost: `balanced` is linear in samples except for sorting. `first_fit_decreasing` and `best_fit_decreasing` look at all
open packs for each sample. `tests/bench` measures all of them against lower bounds.
"""

from collections.abc import Callable

import numpy as np

from packing_udfs.knapsack.axes import TOKENS, VISION, Amounts, Budgets
from packing_udfs.knapsack.even_out import even_out
from packing_udfs.knapsack.fill_by_kind import fill_patterns, kinds
from packing_udfs.knapsack.fill_by_score import fill_bins
from packing_udfs.knapsack.lower_bound import one_budget

__all__ = ["ALGORITHMS", "balanced", "best_fit_decreasing", "bound", "first_fit_decreasing", "greedy", "too_large"]


def too_large(amounts: Amounts, budgets: Budgets) -> np.ndarray:
    """bool [num_samples]: those over a budget on their own."""
    sizes, caps = _limited(amounts, budgets)
    return np.any(sizes > caps[:, None], axis=0)


def bound(amounts: Amounts, budgets: Budgets) -> int:
    """A number of packs that no algorithm goes below: the largest `one_budget` of all axes."""
    sizes, caps = _checked(amounts, budgets)
    return max(min(1, len(amounts)), *(one_budget(size, int(cap)) for size, cap in zip(sizes, caps, strict=True)))


def greedy(amounts: Amounts, budgets: Budgets) -> list[np.ndarray]:
    """Samples in order; a pack closes at the first sample that doesn't fit. Next fit."""
    sizes, caps = _checked(amounts, budgets)
    bins: list[list[int]] = []
    room = [-1] * len(caps)
    for i, size in enumerate(sizes.T.tolist()):
        if any(s > r for s, r in zip(size, room, strict=True)):
            bins.append([])
            room = caps.tolist()
        bins[-1].append(i)
        room = [r - s for s, r in zip(size, room, strict=True)]
    return _arrays(bins)


def first_fit_decreasing(amounts: Amounts, budgets: Budgets) -> list[np.ndarray]:
    """Longest sample first, each into the first pack where it fits."""
    sizes, caps = _checked(amounts, budgets)
    return _place(np.lexsort(-sizes[::-1]), sizes, caps, lambda room, fits: int(fits.argmax()))


def best_fit_decreasing(amounts: Amounts, budgets: Budgets) -> list[np.ndarray]:
    """Largest share of any budget first, each into the pack that has the least room, summed over the budgets."""
    sizes, caps = _checked(amounts, budgets)
    share = (sizes / caps[:, None]).max(axis=0, initial=0.0)

    def fullest(room: np.ndarray, fits: np.ndarray) -> int:
        return int(np.where(fits, (room / caps[:, None]).sum(axis=0), np.inf).argmin())

    return _place(np.lexsort((*-sizes[::-1], -share)), sizes, caps, fullest)


def balanced(amounts: Amounts, budgets: Budgets, *, attention_weight: float = 0.0) -> list[np.ndarray]:
    """Few packs under all budgets, alike in image work. Packs list their samples in ascending order.

    With tokens as the only budget never more packs than `best_fit_decreasing`. Vision cost is evened out whether or
    not it has a budget.

    attention_weight: how much the attention work of a pack, Σ length², counts beside its vision cost when packs are
    made alike; 1 weighs the averages of both equally, 0 leaves attention out.
    """
    least = bound(amounts, budgets)
    if not len(amounts):
        return []
    vision = amounts.get(VISION)
    attention = attention_weight * _relative(amounts[TOKENS] ** 2)
    work = _relative(vision) + attention
    caps = Budgets(**{VISION: max(1, int(vision.sum()))} | budgets)
    amounts = Amounts(**{name: amounts.get(name) for name in caps})
    # Vision cost without a budget is evened out, but limits nothing.
    limited = amounts if VISION in budgets else Amounts(**amounts.by_axis | {VISION: np.zeros_like(vision)})
    best: list[list[int]] = []
    for way in _ways(limited, caps):
        if best and len(best) <= least + (0 if way is None else max(1, least // 500)):
            break
        if way is None:
            bins = fill_patterns(limited, caps)
        else:
            weight, complete = way
            bins = fill_bins(amounts, caps, work=work, attention=attention, weight=weight, complete=complete)
            bins = _refilled(bins, amounts, caps) if complete and len(bins) > least else bins
        best = bins if not best or len(bins) < len(best) else best
    bin_of = np.empty(len(amounts), dtype=np.int64)
    bin_of[np.concatenate(best)] = np.repeat(np.arange(len(best)), [len(b) for b in best])
    bin_of = even_out(bin_of, amounts, caps, work)
    ranked, ends = np.argsort(bin_of, kind="stable"), np.cumsum(np.bincount(bin_of)).tolist()
    return [ranked[start:end] for start, end in zip([0, *ends], ends, strict=False)]


ALGORITHMS: dict[str, Callable[..., list[np.ndarray]]] = {
    function.__name__: function for function in (balanced, best_fit_decreasing, first_fit_decreasing, greedy)
}

PATTERNS = None  # a way to fill, `fill_patterns`; others are told by their weight
MAX_KINDS = 64  # distinct costs that patterns are tried with
WHOLE = 1 << 32  # a pack's budget, so that a third of it is an integer


def _ways(amounts: Amounts, caps: Budgets) -> list[tuple[float, bool] | None]:
    """What to fill with, in turn: PATTERNS, or (weight of work against tokens, whether to fill to the token).

    Filling to the token costs some vision cost, which is only spare where tokens bind. Few distinct vision costs count
    by how many a pack takes: of 40 tiles, 13 are a third. Where only tokens count, patterns are best-fit decreasing.
    """
    kind_of = kinds(amounts, caps)
    if not any(amounts[name].any() for name in caps if name != TOKENS):
        return [(2.0, True), PATTERNS]
    few = int(kind_of.max()) < MAX_KINDS
    vision, num_tokens = amounts[VISION], int(amounts[TOKENS].sum())
    tokens, cost = num_tokens * caps[VISION], int(vision.sum()) * caps[TOKENS]
    if few:
        share = np.where(vision > 0, WHOLE // (caps[VISION] // np.maximum(vision, 1)), 0)
        tokens, cost = num_tokens * WHOLE, int(share.sum()) * caps[TOKENS]
    if tokens > cost * (1 if few else 1.03):
        return [(2.0, True), (1.0, False)]
    return [PATTERNS, (1.0, False)] if few else [(4.0, False), (0.25, False)]


def _refilled(bins: list[list[int]], amounts: Amounts, caps: Budgets) -> list[list[int]]:
    """The packs, those that end short filled anew by patterns if they are fewer then: the last ones had little choice.

    Tried with the packs that miss more than a 64th of their tokens, then with all that miss a 512th: the former
    disturb fewer. None gets more than half above their average of vision cost, so that packs stay alike.
    """
    free = caps[TOKENS] - amounts.of_packs(TOKENS, bins)
    for part in (64, 512):
        is_short = free > caps[TOKENS] // part
        short = [members for members, misses in zip(bins, is_short, strict=True) if misses]
        if not short:
            continue
        items = np.concatenate(short).astype(np.int64)
        some = amounts.take(items)
        most = max(1, int(some[VISION].max()), 3 * int(some[VISION].sum()) // (2 * len(short)))
        again = fill_patterns(some, Budgets(**caps | {VISION: min(caps[VISION], most)}))
        if len(again) < len(short):
            kept = [members for members, misses in zip(bins, is_short, strict=True) if not misses]
            return kept + [items[members].tolist() for members in again]
    return bins


def _relative(values: np.ndarray) -> np.ndarray:
    """Values over their mean (float64); all zero if they are."""
    return values * (len(values) / max(int(values.sum()), 1))


def _limited(amounts: Amounts, budgets: Budgets) -> tuple[np.ndarray, np.ndarray]:
    """Amounts of the axes that have a budget, int64 [axes, num_samples], and the budgets, int64 [axes]."""
    for name, limit in budgets.items():
        if name not in amounts.by_axis:
            raise ValueError(f"{name}={limit} is set, but the samples' amounts of it are not: pass them")
    return amounts.matrix(budgets), np.array(list(budgets.values()), dtype=np.int64)


def _checked(amounts: Amounts, budgets: Budgets) -> tuple[np.ndarray, np.ndarray]:
    """As `_limited`; raises ValueError that names the first sample over a budget."""
    sizes, caps = _limited(amounts, budgets)
    is_over = sizes > caps[:, None]
    if is_over.any():
        i = int(is_over.any(axis=0).argmax())
        name = list(budgets)[int(is_over[:, i].argmax())]
        raise ValueError(
            f"sample {i} has {name} {amounts[name][i]}, over the budget of {budgets[name]}: "
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
        fits: np.ndarray = np.all(room[:, : len(bins)] >= sizes[:, i, None], axis=0)
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
