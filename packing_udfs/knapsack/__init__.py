"""Who shares a pack: bin packing over every axis of a budget, and bounds to hold it against."""

from packing_udfs.knapsack.algorithms import (
    ALGORITHMS,
    Budgets,
    balanced,
    best_fit_decreasing,
    bound,
    first_fit_decreasing,
    greedy,
    too_large,
)

__all__ = [
    "ALGORITHMS",
    "Budgets",
    "balanced",
    "best_fit_decreasing",
    "bound",
    "first_fit_decreasing",
    "greedy",
    "too_large",
]
