"""The known model families, a small class each: from the sizes of a sample's images to their tokens, without pixels.

The tokens come from the processor's own `replace_image_token`, called with the metadata that its image processor would
make. So a change of wording in transformers is followed, not copied. A family computes only the tiling or the grid of
patches. `tests/models` compares that with the processor's pixels, and each `Encoder` checks it on a small conversation.

A processor without a family here, or with settings that its family does not know, goes through
`blank_images.RealProcessor`, which is as exact and slower. Rejected: `processor._get_num_multimodal_tokens`. It does
not give the order of tokens, and its count is wrong by a few for InternVL and by thousands for several images in
LLaVA-OneVision.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from packing_udfs.encode.blank_images import RealProcessor
from packing_udfs.encode.family import Family, ImageTokens, Size

__all__ = ["FAMILIES", "QwenVL", "family_of"]

# Packs are trained with causal attention inside each sample. These models attend in another way, so a pack would
# train a different model.
_NOT_CAUSAL = {
    "attends in both directions within an image": ("Gemma3", "Gemma4", "Gemma4Unified", "ShieldGemma2", "Molmo2"),
    "attends in both directions over images and question": ("PaliGemma", "ColPali"),
    "reads images through cross-attention, which has no place in a pack": ("Mllama", "Idefics"),
    "is an encoder and a decoder, which take two sequences": ("Florence2",),
}


class Grid(NamedTuple):
    """How an image is cut into tiles or patches."""

    rows: int
    cols: int


class _FromSizes:
    """Base of the families. To add one, write its class and add its processor's name to `FAMILIES`.

    A class has `vision_unit`, `accepts` and `image`, or `expand` when the images of a sample depend on each other.
    """

    vision_unit: str

    def __init__(self, processor):
        self.processor = processor
        self._ids_of = lru_cache(maxsize=1024)(self._tokenize)  # images of many sizes have the same text

    @staticmethod
    def accepts(processor) -> bool:
        """Whether the family knows the settings of this processor."""
        raise NotImplementedError

    def image(self, size: Size) -> ImageTokens:
        raise NotImplementedError

    def expand(self, sizes: tuple[Size, ...]) -> list[ImageTokens]:
        return [self.image(size) for size in sizes]

    def _tokens(self, inputs: dict, vision_cost: int, index: int = 0) -> ImageTokens:
        """What the processor writes for an image, given these `inputs` from its image processor."""
        return ImageTokens(*self._ids_of(self.processor.replace_image_token(inputs, index)), vision_cost)

    def _tokenize(self, text: str) -> tuple[np.ndarray, int]:
        """The ids of a text, and how many of them are placeholders."""
        ids = np.asarray(self.processor.tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)
        return ids, int((ids == self.processor.image_token_id).sum())


class Idefics3(_FromSizes):
    """Idefics3 and SmolVLM: an image is cut into rows × columns of tiles, and one more tile shows the whole.

    The longest edge becomes `size.longest_edge`. Then both edges are rounded up to whole tiles, the longer one first.
    With tiles of 512 px and a longest edge of 2048, 640 × 480 becomes 2048 × 1536: 3 rows of 4 tiles, and one more. An
    image that fits in one tile is one tile. Rejected: transformers' `get_number_of_image_patches`, which does not round
    the longer edge first and is wrong where `size.longest_edge` is no multiple of the tile.
    """

    vision_unit = "tiles"

    @staticmethod
    def accepts(processor) -> bool:
        ip = processor.image_processor
        return bool(ip.do_resize) and "longest_edge" in ip.size and "longest_edge" in ip.max_image_size

    def image(self, size: Size) -> ImageTokens:
        rows, cols = self._grid(size)
        return self._tokens({"rows": [[rows]], "cols": [[cols]]}, rows * cols + 1)

    def _grid(self, size: Size) -> Grid:
        from transformers.models.idefics3.image_processing_pil_idefics3 import get_resize_output_image_size

        ip = self.processor.image_processor
        if not ip.do_image_splitting:
            return Grid(0, 0)
        no_pixels = np.empty((0, *size))  # only the shape is looked at
        size = Size(*get_resize_output_image_size(no_pixels, ip.size["longest_edge"]))
        tile, aspect = ip.max_image_size["longest_edge"], size.width / size.height
        if size.width >= size.height:
            cols = math.ceil(size.width / tile)
            rows = math.ceil(int(cols * tile / aspect) / tile)
        else:
            rows = math.ceil(size.height / tile)
            cols = math.ceil(int(rows * tile * aspect) / tile)
        return Grid(rows, cols) if rows > 1 or cols > 1 else Grid(0, 0)


class QwenVL(_FromSizes):
    """Qwen2-VL, Qwen2.5-VL, Qwen3-VL: an image is a grid of patches, of which merge_size² become one token."""

    vision_unit = "patches"

    @staticmethod
    def accepts(processor) -> bool:
        ip = processor.image_processor
        return bool(ip.do_resize) and "shortest_edge" in ip.size and "longest_edge" in ip.size

    def image(self, size: Size) -> ImageTokens:
        grid = np.asarray([[1, *self.grid(size)]], np.int64)
        return self._tokens({"image_grid_thw": grid}, int(grid.prod()))

    def grid(self, size: Size) -> Grid:
        """The patches of an image. Raises ValueError for an aspect ratio above 200."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        ip = self.processor.image_processor
        factor = ip.patch_size * ip.merge_size
        height, width = smart_resize(*size, factor, ip.size["shortest_edge"], ip.size["longest_edge"])
        return Grid(height // ip.patch_size, width // ip.patch_size)


class _EqualTiles(_FromSizes):
    """Base of the LLaVA families, whose image processors resize or crop to tiles of one size."""

    vision_unit = "tiles"

    @staticmethod
    def accepts(processor) -> bool:
        ip = processor.image_processor
        is_fixed = getattr(ip, "do_center_crop", False) or ("height" in ip.size and "width" in ip.size)
        # LLaVA and LLaVA-NeXT compute with a patch size, and LLaVA-OneVision has none.
        return bool(ip.do_resize and is_fixed and getattr(processor, "patch_size", True))

    def _tile(self) -> Size:
        ip = self.processor.image_processor
        size = ip.crop_size if getattr(ip, "do_center_crop", False) else ip.size
        return Size(size["height"], size["width"])

    def _no_pixels(self) -> np.ndarray:
        """A tile [3, height, width] that takes no memory, for a processor that looks only at its shape."""
        return np.broadcast_to(np.float32(0), (3, *self._tile()))

    def _num_tiles(self, size: Size) -> int:
        """Tiles of an image that is scaled to the best of several resolutions, and one of the whole image."""
        from transformers.image_processing_utils import select_best_resolution

        edge, resolutions = self._tile().height, self.processor.image_processor.image_grid_pinpoints
        height, width = select_best_resolution(tuple(size), resolutions)
        return (height // edge) * (width // edge) + 1


class Llava(_EqualTiles):
    """LLaVA: every image is resized or cropped to one square."""

    def image(self, size: Size) -> ImageTokens:
        return self._tokens({"pixel_values": [self._no_pixels()]}, 1)


class LlavaNext(_EqualTiles):
    """LLaVA-NeXT: the image scaled to the best of several resolutions and cut into tiles, and one tile of the whole."""

    def image(self, size: Size) -> ImageTokens:
        inputs = {"image_sizes": [list(size)], "pixel_values": [[self._no_pixels()]]}
        return self._tokens(inputs, self._num_tiles(size))


class LlavaOnevision(_EqualTiles):
    """LLaVA-OneVision: a lone image is tiled as in LLaVA-NeXT, several images are one tile each."""

    def expand(self, sizes: tuple[Size, ...]) -> list[ImageTokens]:
        inputs = {
            "image_sizes": [list(size) for size in sizes],
            "pixel_values": [[self._no_pixels()]],
            "batch_num_images": [len(sizes)],
        }
        costs = [self._num_tiles(sizes[0])] if len(sizes) == 1 else [1] * len(sizes)
        return [self._tokens(inputs, cost, i) for i, cost in enumerate(costs)]


class InternVL(_FromSizes):
    """InternVL: the grid of tiles nearest in aspect, and one more tile of the whole image when there are several."""

    vision_unit = "tiles"

    @staticmethod
    def accepts(processor) -> bool:
        return "height" in processor.image_processor.size

    def image(self, size: Size) -> ImageTokens:
        # The processor tells its image processor to crop, whatever that one's own default is.
        crop = {"crop_to_patches": self.processor.images_kwargs.get("crop_to_patches", True)}
        num_tiles = self.processor.image_processor.get_number_of_image_patches(*size, crop)
        return self._tokens({"num_patches": [num_tiles]}, num_tiles)


FAMILIES: dict[str, type[_FromSizes]] = {
    "Idefics3Processor": Idefics3,
    "SmolVLMProcessor": Idefics3,
    "Qwen2VLProcessor": QwenVL,
    "Qwen2_5_VLProcessor": QwenVL,
    "Qwen3VLProcessor": QwenVL,
    "LlavaProcessor": Llava,
    "LlavaNextProcessor": LlavaNext,
    "LlavaOnevisionProcessor": LlavaOnevision,
    "InternVLProcessor": InternVL,
}


def family_of(processor) -> Family:
    """The family of a processor, by its class and settings.

    Raises ValueError for a model that cannot be trained on packs with causal attention.
    """
    name = type(processor).__name__
    for reason, models in _NOT_CAUSAL.items():
        if name.removesuffix("Processor") in models:
            raise ValueError(f"processor: {name} cannot be used: its model {reason}")
    family = FAMILIES.get(name)
    return family(processor) if family is not None and family.accepts(processor) else RealProcessor(processor)
