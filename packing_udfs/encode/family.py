"""What a model family knows of images without decoding them: the tokens that stand for each, and what it costs."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

__all__ = ["Family", "ImageTokens", "Size"]


class Size(NamedTuple):
    """Size of an upright image in pixels."""

    height: int
    width: int


@dataclass(frozen=True)
class ImageTokens:
    """What stands for one image in a sample."""

    ids: np.ndarray  # int32 [num_tokens], in place of the placeholder
    num_placeholders: int  # how many of them become the image's features
    vision_cost: int  # in the family's `vision_unit`


class Family(Protocol):
    """The pixel-free part of a processor. `families` has one for each known model, `blank_images` one for the rest."""

    vision_unit: str  # what `vision_cost` counts: "tiles", "patches" or "tokens"

    def expand(self, sizes: tuple[Size, ...]) -> list[ImageTokens]:
        """What stands for each image of one sample, in order. Raises ValueError for a size the processor refuses."""
        ...
