"""Samples as FineVision's 185 subsets have them: tokens, tiles or patches, images and subset of each sample.

`finevision_subsets.csv` holds each subset's public totals (images, samples, turns, tokens). A subset is drawn by its
share of samples, then, independently for each sample:

    images   the subset's mean m: Bernoulli(m) up to 1, else 1 + Poisson(m − 1)
    turns    1 + geometric with the subset's mean
    text     for questions and answers a log-normal (σ 0.5 and 0.8) with the subset's mean per turn, times turns;
             plus 8 tokens of chat template a turn
    size     of an image: long side log-normal around its category's median (σ 0.4); four in five have a usual format
             (FORMATS), the rest an aspect ratio log-normal around the square (σ 0.3)
    tiles    as SmolVLM and nanoVLM cut an image: scaled until its long side is 2,048, then 4 × r tiles in
             r = ⌈short side / 512⌉ rows, and one overview; 66 tokens a tile, 1 a row and 67 for the overview
    patches  sides of 28 pixels, four 14-pixel patches each, at most 1,280 such squares an image; one token a square

The formats' shares, the medians of image sizes and the σ are guesses; all else follows the table. Nothing is fitted
to a result.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packing_udfs.knapsack import Amounts

TABLE = Path(__file__).with_name("finevision_subsets.csv")
LONG_SIDE = {"Captioning & Knowledge": 800, "Chart & Table": 900, "General VQA": 640, "Grounding & Counting": 800,
             "Mathematics": 500, "Naive OCR": 700, "OCR QA": 1300, "Science": 700, "Text-only": 512}  # fmt: skip
FORMATS = {3 / 4: 0.4, 2 / 3: 0.2, 0.7071: 0.15, 1.0: 0.15, 9 / 16: 0.1}  # short / long side: share; 0.7071 is A4


@dataclass(frozen=True, kw_only=True)
class Samples:
    """One entry a sample, int64."""

    lengths: np.ndarray
    vision_costs: np.ndarray
    num_images: np.ndarray
    sources: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, indices: np.ndarray) -> "Samples":
        return Samples(**{name: values[indices] for name, values in vars(self).items()})

    @property
    def amounts(self) -> Amounts:
        """What the packing functions take."""
        return Amounts(num_tokens=self.lengths, vision_cost=self.vision_costs, num_images=self.num_images)


def draw(num_samples: int, *, seed: int = 0, unit: str = "tiles") -> Samples:
    """`num_samples` in random order; `unit` of vision cost: "tiles" or "patches"."""
    rng = np.random.default_rng(seed)
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    column = {name: np.array([float(row[name]) for row in rows]) for name in
              ("samples", "images_per_sample", "turns_per_sample", "qtok_per_turn", "atok_per_turn")}  # fmt: skip
    of = rng.choice(len(rows), size=num_samples, p=column["samples"] / column["samples"].sum())
    mean_images = column["images_per_sample"][of]
    images = np.where(
        mean_images <= 1, rng.random(num_samples) < mean_images, 1 + rng.poisson(np.maximum(mean_images - 1, 0))
    )
    turns = rng.geometric(1 / column["turns_per_sample"][of])
    text = 8 * turns
    for name, sigma in (("qtok_per_turn", 0.5), ("atok_per_turn", 0.8)):
        text = text + np.rint(turns * column[name][of] * rng.lognormal(-(sigma**2) / 2, sigma, num_samples)).astype(
            np.int64
        )
    owner = np.repeat(np.arange(num_samples), images)
    median = np.array([LONG_SIDE[row["category"]] for row in rows])[of[owner]]
    long = median * rng.lognormal(0, 0.4, len(owner))
    usual = rng.choice(list(FORMATS), len(owner), p=list(FORMATS.values()))
    short = long * np.where(rng.random(len(owner)) < 0.8, usual, np.exp(-np.abs(rng.normal(0, 0.3, len(owner)))))
    if unit == "tiles":
        num_rows = np.ceil(4 * short / long)
        cost = 4 * num_rows + 1
        tokens = (4 * 66 + 1) * num_rows + 67
    else:
        scale = np.minimum(1, np.sqrt(1280 * 28**2 / (long * short)))
        tokens = np.maximum(1, np.floor(long * scale / 28)) * np.maximum(1, np.floor(short * scale / 28))
        cost = 4 * tokens
    add = lambda values: np.bincount(owner, weights=values, minlength=num_samples).astype(np.int64)  # noqa: E731
    return Samples(
        lengths=text + add(tokens),
        vision_costs=add(cost),
        num_images=images.astype(np.int64),
        sources=of.astype(np.int64),
    )
