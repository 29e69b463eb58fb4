"""The family of processors that no other family knows: ask the real one, with blank images of the right sizes.

How many tokens an image becomes depends on its size and never on its colours, so a black image stands for any other.
For each distinct tuple of image sizes the processor is run once, on nothing but placeholders with a control token
between them; what it leaves between the control tokens stands for the images. The price is the real image processor,
10–250 ms and the image's pixels in memory, for each new tuple of sizes. Rejected: `_get_num_multimodal_tokens`, which
counts and is at times wrong.
"""

import logging

import numpy as np
from PIL import Image

from packing_udfs.encode.family import ImageTokens, Size

# What image processors raise for an image too small, too flat or too large for them, besides ValueError.
_REFUSALS = (ArithmeticError, LookupError, RuntimeError, TypeError)


class RealProcessor:
    """Runs the real processor on blank images; vision cost is the number of placeholders."""

    vision_unit = "tokens"

    def __init__(self, processor):
        self.processor = processor
        name = type(processor).__name__
        self._separator = processor.tokenizer.eos_token or processor.tokenizer.pad_token
        if not self._separator or getattr(processor, "image_token", None) is None:
            raise ValueError(
                f"processor: {name} names no image_token, or its tokenizer no eos_token, so it cannot be used"
            )
        logging.getLogger(__name__).warning(
            "%s is packed by running it on blank images: exact, but slower than for the processors in "
            "packing_udfs.encode.families",
            name,
        )

    def expand(self, sizes: tuple[Size, ...]) -> list[ImageTokens]:
        """What stands for each image of one sample. Raises ValueError for sizes that the processor refuses."""
        tokenizer, num_images = self.processor.tokenizer, len(sizes)
        text = self._separator.join([self.processor.image_token] * num_images)
        try:
            out = self.processor(
                text=[text],
                images=[[Image.new("RGB", (width, height)) for height, width in sizes]],
                add_special_tokens=False,
            )
        except _REFUSALS as error:
            raise ValueError(f"{type(error).__name__} in {type(self.processor).__name__}: {error}") from error
        ids = np.asarray(out["input_ids"]).reshape(-1)
        chunks = np.split(ids, np.flatnonzero(ids == tokenizer.convert_tokens_to_ids(self._separator)))
        if len(chunks) != num_images:
            raise ValueError(
                f"{type(self.processor).__name__} made {len(chunks)} runs of tokens of {num_images} images"
            )
        return [_tokens(chunk[min(i, 1) :]) for i, chunk in enumerate(chunks)]  # all but the first keep a separator


def _tokens(ids: np.ndarray) -> ImageTokens:
    """The placeholder is the id that an image repeats most; it need not be the one that stands in the template."""
    num_placeholders = int(np.unique(ids, return_counts=True)[1].max())
    return ImageTokens(ids.astype(np.int32), num_placeholders, num_placeholders)
