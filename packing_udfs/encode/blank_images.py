"""The family of a processor that `families` does not know: run the real one on blank images of the right sizes.

How many tokens an image becomes depends on its size and not on its colours, so a black image can stand for any other.
The processor runs once for each distinct tuple of image sizes, on placeholders with a control token between them.
What it writes between the control tokens stands for the images. Each new tuple of sizes costs 10–250 ms of the real
image processor, and memory for the images' pixels. Rejected: `processor._get_num_multimodal_tokens`, whose count is
sometimes wrong.
"""

import logging
from collections.abc import Iterable

import numpy as np
from PIL import Image

from packing_udfs.encode.family import ImageTokens, Size

__all__ = ["RealProcessor", "blank_images"]

# What image processors raise for an image that is too small, too flat or too large, besides ValueError.
_REFUSALS = (ArithmeticError, LookupError, RuntimeError, TypeError)


class RealProcessor:
    """A family that runs the real processor. Its vision cost is the number of placeholders."""

    vision_unit = "tokens"

    def __init__(self, processor):
        self.processor = processor
        self._name = type(processor).__name__
        self._separator = processor.tokenizer.eos_token or processor.tokenizer.pad_token
        if not self._separator or getattr(processor, "image_token", None) is None:
            raise ValueError(
                f"processor: {self._name} cannot be used: it has no image_token, or its tokenizer has no eos_token"
            )
        logging.getLogger(__name__).warning(
            "%s is packed by running it on blank images: exact, but slower than the processors in "
            "packing_udfs.encode.families",
            self._name,
        )

    def expand(self, sizes: tuple[Size, ...]) -> list[ImageTokens]:
        """What stands for each image of one sample, in order. Raises ValueError for a size the processor refuses."""
        text = self._separator.join([self.processor.image_token] * len(sizes))
        try:
            out = self.processor(text=[text], images=[blank_images(sizes)], add_special_tokens=False)
        except _REFUSALS as error:
            raise ValueError(f"{type(error).__name__} in {self._name}: {error}") from error
        ids = np.asarray(out["input_ids"]).reshape(-1)
        separator_id = self.processor.tokenizer.convert_tokens_to_ids(self._separator)
        runs = np.split(ids, np.flatnonzero(ids == separator_id))
        if len(runs) != len(sizes):
            raise ValueError(f"{self._name} made {len(runs)} runs of tokens for {len(sizes)} images")
        return [_image_tokens(run[min(i, 1) :]) for i, run in enumerate(runs)]  # all but the first start with one


def _image_tokens(ids: np.ndarray) -> ImageTokens:
    """The placeholder is the most frequent id. It can differ from the one in the template."""
    num_placeholders = int(np.unique(ids, return_counts=True)[1].max())
    return ImageTokens(ids.astype(np.int32), num_placeholders, num_placeholders)


def blank_images(sizes: Iterable[Size]) -> list[Image.Image]:
    return [Image.new("RGB", (size.width, size.height)) for size in sizes]
