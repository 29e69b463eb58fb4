"""Who shares a pack: bin packing over every axis of a budget, and bounds to hold it against."""

from packing_udfs.knapsack.algorithms import (
    ALGORITHMS,
    balanced,
    best_fit_decreasing,
    bound,
    first_fit_decreasing,
    greedy,
    too_large,
)
from packing_udfs.knapsack.axes import Amounts, Budgets

__all__ = [
    "ALGORITHMS",
    "Amounts",
    "Budgets",
    "balanced",
    "best_fit_decreasing",
    "bound",
    "first_fit_decreasing",
    "greedy",
    "too_large",
]
