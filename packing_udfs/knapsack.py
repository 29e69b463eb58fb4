"""Which samples share a pack: vector bin packing on lengths and costs, no bytes touched."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


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


def _demands(lengths, budgets, vision_costs, num_images):
    """(int64 [budgets in force, samples], int64 [budgets in force], their names)."""
    given = {"seq_len": lengths, "vision_cost": vision_costs, "num_images": num_images}
    names = [name for name in given if getattr(budgets, name) is not None]
    for name in names:
        if given[name] is None:
            raise ValueError(f"budgets.{name}={getattr(budgets, name)}, but its costs are not given: pass them")
    sizes = np.stack([np.asarray(given[name], dtype=np.int64) for name in names])
    return sizes, np.array([getattr(budgets, name) for name in names], dtype=np.int64), names


def too_large(lengths, budgets, *, vision_costs=None, num_images=None) -> np.ndarray:
    """bool mask of the samples that fit no pack; quarantine them before packing."""
    sizes, caps, _ = _demands(lengths, budgets, vision_costs, num_images)
    return (sizes > caps[:, None]).any(axis=0)


def _checked(lengths, budgets, vision_costs, num_images):
    sizes, caps, names = _demands(lengths, budgets, vision_costs, num_images)
    for name, size, cap in zip(names, sizes, caps, strict=True):
        if len(size) and size.max() > cap:
            raise ValueError(f"sample {size.argmax()} has {name} {size.max()}, over the budget of {cap}: set it aside")
    return sizes, caps


def _place(order, sizes, caps, choose) -> list[np.ndarray]:
    """Put samples, in `order`, in the open bin that `choose(residuals, fits)` names, else in a new one."""
    residual = np.empty((len(caps), sizes.shape[1]), dtype=np.int64)
    bins: list[list[int]] = []
    for i in order.tolist():
        left = residual[:, : len(bins)]
        fits = (left >= sizes[:, i, None]).all(axis=0)
        if fits.any():
            at = choose(left, fits)
        else:
            at = len(bins)
            residual[:, at] = caps
            bins.append([])
        bins[at].append(i)
        residual[:, at] -= sizes[:, i]
    return [np.array(b, dtype=np.int64) for b in bins]


def greedy(lengths, budgets, *, vision_costs=None, num_images=None) -> list[np.ndarray]:
    """Samples in order; a pack closes when the next doesn't fit."""
    sizes, caps = _checked(lengths, budgets, vision_costs, num_images)
    bins: list[list[int]] = []
    left = caps * 0 - 1
    for i, size in enumerate(sizes.T):
        if (size > left).any():
            bins.append([])
            left = caps.copy()
        bins[-1].append(i)
        left = left - size
    return [np.array(b, dtype=np.int64) for b in bins]


def first_fit_decreasing(lengths, budgets, *, vision_costs=None, num_images=None) -> list[np.ndarray]:
    """Longest first, each into the first pack where it fits."""
    sizes, caps = _checked(lengths, budgets, vision_costs, num_images)
    return _place(np.argsort(-sizes[0], kind="stable"), sizes, caps, lambda left, fits: int(fits.argmax()))


def best_fit_decreasing(lengths, budgets, *, vision_costs=None, num_images=None) -> list[np.ndarray]:
    """Largest share of any budget first, each into the pack with the least room left over all budgets."""
    sizes, caps = _checked(lengths, budgets, vision_costs, num_images)
    share = (sizes / caps[:, None]).max(axis=0)

    def choose(left, fits):
        return int(np.where(fits, (left / caps[:, None]).sum(axis=0), np.inf).argmin())

    return _place(np.argsort(-share, kind="stable"), sizes, caps, choose)


def balanced(
    lengths, budgets, *, vision_costs=None, num_images=None, attention_weight: float = 0.0
) -> list[np.ndarray]:
    """Near the bound in every budget."""
    return best_fit_decreasing(lengths, budgets, vision_costs=vision_costs, num_images=num_images)


def bound(lengths, budgets, *, vision_costs=None, num_images=None) -> int:
    """A lower bound on the number of packs: the largest over budgets of ⌈sum / budget⌉."""
    sizes, caps, _ = _demands(lengths, budgets, vision_costs, num_images)
    return int((-(-sizes.sum(axis=1) // caps)).max())


ALGORITHMS: dict[str, Callable[..., list[np.ndarray]]] = {
    f.__name__: f for f in (greedy, first_fit_decreasing, best_fit_decreasing, balanced)
}
