"""What a model family says of an image: its tokens and its cost in the vision encoder."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

Size = tuple[int, int]  # height, width in pixels


@dataclass(frozen=True)
class ImageTokens:
    """What stands for one image in a sample."""

    ids: np.ndarray  # int32 [num_tokens], in place of the placeholder
    num_placeholders: int  # of them, those that become the image's features
    vision_cost: int  # tiles or patches


class Family(Protocol):
    """The pixel-free part of a processor. `vision_unit` names what `vision_cost` counts."""

    vision_unit: str

    def expand(self, sizes: tuple[Size, ...]) -> list[ImageTokens]:
        """What stands for each image of one sample, in order. Raises ValueError for a size the processor refuses."""
        ...
