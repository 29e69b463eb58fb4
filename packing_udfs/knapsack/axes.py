"""The axes of a budget: the one definition of what a pack has limits for.

An axis is an amount that samples add up to in a pack: tokens, vision cost, images. Everything that treats all axes
alike derives from `AXES`: the knapsack, the check of single samples, histograms, what validation and forecasts compare.
A pack's total is the column of the contract that has the axis' name. CONTRIBUTING.md shows how to add an axis.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

__all__ = ["AXES", "TOKENS", "VISION", "Amounts", "Axis", "Budgets", "amounts_of", "budgets_of", "loosest", "over"]

TOKENS, VISION = "num_tokens", "vision_cost"  # the two axes that the algorithms treat apart


class Encoded(Protocol):
    """What an axis measures: a sample as `packing_udfs.encode.encoder` makes it."""

    @property
    def input_ids(self) -> np.ndarray: ...
    @property
    def image_num_tokens(self) -> np.ndarray: ...
    @property
    def vision_cost(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One amount that a pack has a limit for."""

    name: str
    """Also the pack's column in `contract.PACK_COLUMNS`, which holds the sum over its samples."""
    of: Callable[[Encoded], int]
    """A sample's amount."""
    limit: str
    """The field of `config.Pack` that limits a pack."""
    sample_limit: str | None = None
    """The field of `config.Pack` that limits one sample further."""
    reason: str
    """Why a sample over the limit goes to quarantine, of `contract.REASONS`."""
    told: str
    """An amount in a message."""
    label: str
    """In the names of histograms: sample_{label}, pack_{label}."""


AXES = (
    Axis(
        name=TOKENS,
        of=lambda sample: len(sample.input_ids),
        limit="seq_len",
        reason="too_long",
        told="{} tokens",
        label="tokens",
    ),
    Axis(
        name=VISION,
        of=lambda sample: sample.vision_cost,
        limit="max_vision_cost",
        reason="too_much_vision",
        told="vision cost {}",
        label="vision",
    ),
    Axis(
        name="num_images",
        of=lambda sample: len(sample.image_num_tokens),
        limit="max_images_per_pack",
        sample_limit="max_images_per_sample",
        reason="too_many_images",
        told="{} images",
        label="images",
    ),
)


class Amounts:
    """What samples take of each axis: int64 [num_samples] by the axis' name, tokens always among them."""

    def __init__(self, **by_axis: np.ndarray | Sequence[int] | None):
        """Raises ValueError for arrays of different lengths and for negative amounts."""
        self.by_axis = {name: np.asarray(values, np.int64) for name, values in by_axis.items() if values is not None}
        for name, values in self.by_axis.items():
            if len(values) != len(self):
                raise ValueError(f"{len(values)} amounts of {name} for {len(self)} samples: give one a sample")
            if len(values) and values.min() < 0:
                raise ValueError(f"sample {values.argmin()} has {name} {values.min()}: amounts must not be negative")

    @classmethod
    def concatenated(cls, parts: Sequence["Amounts"]) -> "Amounts":
        """Those of several lists of samples, at least one, which have the same axes."""
        names = parts[0].by_axis
        stacked = np.concatenate([part.matrix(names) for part in parts], axis=1)
        return cls(**dict(zip(names, stacked, strict=True)))

    def __len__(self) -> int:
        return len(self.by_axis[TOKENS])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.by_axis[name]

    def get(self, name: str) -> np.ndarray:
        """An axis' amounts, zeros where they are not known."""
        return self.by_axis[name] if name in self.by_axis else np.zeros(len(self), np.int64)

    def take(self, members: Sequence[int] | np.ndarray) -> "Amounts":
        """Those of some samples, in this order."""
        at = np.asarray(members, np.int64)
        return Amounts(**{name: values[at] for name, values in self.by_axis.items()})

    def matrix(self, names: Iterable[str]) -> np.ndarray:
        """int64 [axes, num_samples], for arithmetic that treats all axes alike."""
        return np.stack([self.by_axis[name] for name in names])

    def of_packs(self, name: str, packs: Iterable[Sequence[int] | np.ndarray]) -> np.ndarray:
        """An axis' sum in each pack, int64 [num_packs]. packs: the samples of each."""
        amounts = self.get(name)
        return np.asarray([amounts[np.asarray(members, np.int64)].sum() for members in packs], np.int64)


class Budgets(dict[str, int]):
    """What one pack may hold, by axis in the order of `AXES`; an axis without an entry has no limit."""

    def __init__(self, **limits: int | None):
        """Raises ValueError on a budget below 1, on one of no axis, and without a budget of tokens."""
        unknown = sorted(set(limits) - {axis.name for axis in AXES})
        if unknown or limits.get(TOKENS) is None:
            raise ValueError(f"{unknown or TOKENS}: name axes of {[axis.name for axis in AXES]}, {TOKENS} among them")
        super().__init__()
        for axis in AXES:
            limit = limits.get(axis.name)
            if limit is not None and limit < 1:
                raise ValueError(f"{axis.name}={limit}: a pack's budget must be at least 1")
            if limit is not None:
                self[axis.name] = limit


def budgets_of(pack: object) -> Budgets:
    """The budgets of a `config.Pack`."""
    return Budgets(**{axis.name: getattr(pack, axis.limit) for axis in AXES})


def amounts_of(samples: Sequence[Encoded]) -> Amounts:
    """What encoded samples take of every axis."""
    return Amounts(**{axis.name: np.asarray(list(map(axis.of, samples)), np.int64) for axis in AXES})


def over(sample: Encoded, pack: object) -> tuple[str, str] | None:
    """(reason, detail) of a sample that fits in no pack of a `config.Pack`; None when it fits in one.

    Axes with a limit for single samples come first: their messages say most.
    """
    for axis in sorted(AXES, key=lambda axis: axis.sample_limit is None):
        of_sample = getattr(pack, axis.sample_limit) if axis.sample_limit else None
        limits = [limit for limit in (getattr(pack, axis.limit), of_sample) if limit is not None]
        amount = axis.of(sample)
        if limits and amount > min(limits):
            return axis.reason, f"{axis.told.format(amount)}, at most {min(limits)}"
    return None


def loosest(packs: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """The largest value of each limit among `pack` sections of configurations; None where one has no such limit."""
    found: dict[str, int | None] = {}
    for field in [field for axis in AXES for field in (axis.limit, axis.sample_limit) if field]:
        known = [pack[field] for pack in packs if pack.get(field) is not None]
        found[field] = max(known) if len(known) == len(packs) else None
    return found
