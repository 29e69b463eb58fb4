"""How each model family turns images of given sizes into placeholder text: one small class a family.

A family answers one question without decoding pixels: what does the processor write in place of the image
placeholders of a sample whose images have these heights and widths, and what does each image cost the vision tower?
The text comes from the processor's own `replace_image_token`, fed with the metadata that its image processor would
have made, so a change of wording in transformers is followed and not copied. What a family computes itself (a tiling,
a grid) is compared with the processor's pixels in `tests/models`, and once more when an `Encoder` is made.

A processor of no family here, or with settings that its family does not know, goes through
`families_fallback.RealProcessor`: correct, and slower by the price of the real image processor on blank images.
Rejected: `processor._get_num_multimodal_tokens`, which counts tokens and not their order, and is off by a few tokens
for InternVL and by thousands for several images in LLaVA-OneVision.

To add a family: a class with `vision_unit`, `accepts` (are these settings known?) and `image` (or `expand`, when the
images of a sample depend on each other), and its processor's name in `FAMILIES`.
"""

import math
from functools import lru_cache

import numpy as np

from packing_udfs.encode.family import Family, ImageTokens, Size

# A dense block mask or varlen attention over samples is causal. These models see an image's tokens, or the whole
# question, in both directions, so a causal pack of theirs would train another model.
_NOT_CAUSAL = {
    "Gemma3Processor": "attends in both directions within an image",
    "Gemma4Processor": "attends in both directions within an image",
    "Gemma4UnifiedProcessor": "attends in both directions within an image",
    "ShieldGemma2Processor": "attends in both directions within an image",
    "Molmo2Processor": "attends in both directions within an image",
    "PaliGemmaProcessor": "attends in both directions over images and question",
    "ColPaliProcessor": "attends in both directions over images and question",
    "MllamaProcessor": "reads images through cross-attention, which has no place in a pack",
    "IdeficsProcessor": "reads images through cross-attention, which has no place in a pack",
    "Florence2Processor": "is an encoder and a decoder, which take two sequences",
}


class _FromSizes:
    """A family that knows what the processor writes. Many sizes share a text, so the ids of texts are kept."""

    def __init__(self, processor):
        self.processor = processor
        self._read = lru_cache(maxsize=1024)(self._read_text)

    def expand(self, sizes: tuple[Size, ...]) -> list[ImageTokens]:
        return [self.image(size) for size in sizes]

    def image(self, size: Size) -> ImageTokens:
        """What stands for an image, for a family whose images do not depend on the others of their sample."""
        raise NotImplementedError

    def _tokens(self, text: str, vision_cost: int) -> ImageTokens:
        return ImageTokens(*self._read(text), vision_cost)

    def _read_text(self, text: str) -> tuple[np.ndarray, int]:
        ids = np.asarray(self.processor.tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)
        return ids, int((ids == self.processor.image_token_id).sum())


class Idefics3(_FromSizes):
    """Idefics3 and SmolVLM: an image is cut into rows × columns of tiles, and one more shows the whole.

    The longest edge becomes `size.longest_edge`, then both edges are rounded up to whole tiles, the longer one first:
    with 512 px tiles and a longest edge of 2048, 640 × 480 becomes 2048 × 1536, so 3 rows of 4 tiles and one more.
    An image no larger than a tile after that is one tile. (transformers' `get_number_of_image_patches` leaves out
    that the longer edge is rounded first, and differs where `size.longest_edge` is no multiple of the tile.)
    """

    vision_unit = "tiles"

    @staticmethod
    def accepts(processor) -> bool:
        ip = processor.image_processor
        return bool(ip.do_resize) and "longest_edge" in ip.size and "longest_edge" in ip.max_image_size

    def image(self, size: Size) -> ImageTokens:
        rows, cols = self._grid(*size)
        text = self.processor.replace_image_token({"rows": [[rows]], "cols": [[cols]]}, 0)
        return self._tokens(text, rows * cols + 1)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        ip = self.processor.image_processor
        if not ip.do_image_splitting:
            return 0, 0
        height, width = _scale_to(height, width, ip.size["longest_edge"], even=True)
        if max(height, width) > _IDEFICS3_MAX_EDGE:
            height, width = _scale_to(height, width, _IDEFICS3_MAX_EDGE, even=False)
        tile, aspect = ip.max_image_size["longest_edge"], width / height
        if width >= height:
            cols = math.ceil(width / tile)
            rows = math.ceil(int(cols * tile / aspect) / tile)
        else:
            rows = math.ceil(height / tile)
            cols = math.ceil(int(rows * tile * aspect) / tile)
        return (rows, cols) if rows > 1 or cols > 1 else (0, 0)


_IDEFICS3_MAX_EDGE = 4096


def _scale_to(height: int, width: int, longest: int, *, even: bool) -> Size:
    """Scale the longest edge to `longest`; the other keeps the aspect, cut to an integer, at least 1."""
    aspect = width / height

    def other(edge: int) -> int:
        return max(edge + (edge % 2 if even else 0), 1)

    return (other(int(longest / aspect)), longest) if width >= height else (longest, other(int(longest * aspect)))


class QwenVL(_FromSizes):
    """Qwen2-VL, Qwen2.5-VL, Qwen3-VL: an image is a grid of patches, of which merge_size² become one token."""

    vision_unit = "patches"

    @staticmethod
    def accepts(processor) -> bool:
        ip = processor.image_processor
        return bool(ip.do_resize) and "shortest_edge" in ip.size and "longest_edge" in ip.size

    def image(self, size: Size) -> ImageTokens:
        grid = np.asarray([[1, *self.grid(size)]], np.int64)
        return self._tokens(self.processor.replace_image_token({"image_grid_thw": grid}, 0), int(grid.prod()))

    def grid(self, size: Size) -> Size:
        """Patches (rows, columns) of an image. Raises ValueError for an aspect above 200."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        ip = self.processor.image_processor
        factor = ip.patch_size * ip.merge_size
        height, width = smart_resize(*size, factor, ip.size["shortest_edge"], ip.size["longest_edge"])
        return height // ip.patch_size, width // ip.patch_size


class Llava(_FromSizes):
    """LLaVA: every image is resized or cropped to one square."""

    vision_unit = "tiles"

    @staticmethod
    def accepts(processor) -> bool:
        return _pixel_size(processor.image_processor) is not None and bool(processor.patch_size)

    def image(self, size: Size) -> ImageTokens:
        pixels = _no_pixels(3, *_pixel_size(self.processor.image_processor))
        return self._tokens(self.processor.replace_image_token({"pixel_values": [pixels]}, 0), 1)


class LlavaNext(_FromSizes):
    """LLaVA-NeXT: the image scaled to the best of several resolutions, cut into tiles, and one tile of the whole."""

    vision_unit = "tiles"

    @staticmethod
    def accepts(processor) -> bool:
        return _pixel_size(processor.image_processor) is not None and bool(processor.patch_size)

    def image(self, size: Size) -> ImageTokens:
        edges = _pixel_size(self.processor.image_processor)
        inputs = {"image_sizes": [list(size)], "pixel_values": [[_no_pixels(3, *edges)]]}
        return self._tokens(self.processor.replace_image_token(inputs, 0), _num_anyres_tiles(self.processor, size))


class LlavaOnevision(_FromSizes):
    """LLaVA-OneVision: a lone image is tiled as in LLaVA-NeXT, several images are one tile each."""

    vision_unit = "tiles"

    @staticmethod
    def accepts(processor) -> bool:
        return _pixel_size(processor.image_processor) is not None

    def expand(self, sizes: tuple[Size, ...]) -> list[ImageTokens]:
        edges = _pixel_size(self.processor.image_processor)
        inputs = {
            "image_sizes": [list(size) for size in sizes],
            "pixel_values": [[_no_pixels(3, *edges)]],
            "batch_num_images": [len(sizes)],
        }
        texts = [self.processor.replace_image_token(inputs, i) for i in range(len(sizes))]
        if len(sizes) > 1:
            return [self._tokens(text, 1) for text in texts]
        return [self._tokens(text, _num_anyres_tiles(self.processor, sizes[0])) for text in texts]


class InternVL(_FromSizes):
    """InternVL: the grid of tiles nearest in aspect, and when it has several, one more of the whole image."""

    vision_unit = "tiles"

    @staticmethod
    def accepts(processor) -> bool:
        return "height" in processor.image_processor.size

    def image(self, size: Size) -> ImageTokens:
        # The processor asks its image processor to crop, whatever the image processor's own default.
        crop = {"crop_to_patches": self.processor.images_kwargs.get("crop_to_patches", True)}
        num_tiles = self.processor.image_processor.get_number_of_image_patches(*size, crop)
        return self._tokens(self.processor.replace_image_token({"num_patches": [num_tiles]}, 0), num_tiles)


def _pixel_size(image_processor) -> Size | None:
    """(height, width) of what the image processor makes of any image; None when it depends on the image."""
    if not image_processor.do_resize:
        return None
    if getattr(image_processor, "do_center_crop", False):
        return image_processor.crop_size["height"], image_processor.crop_size["width"]
    size = image_processor.size
    return (size["height"], size["width"]) if "height" in size and "width" in size else None


def _no_pixels(*shape: int) -> np.ndarray:
    """An array of this shape that takes no memory: only its shape is looked at."""
    return np.broadcast_to(np.float32(0), shape)


def _num_anyres_tiles(processor, size: Size) -> int:
    from transformers.image_processing_utils import select_best_resolution

    edge = _pixel_size(processor.image_processor)[0]
    height, width = select_best_resolution(list(size), processor.image_processor.image_grid_pinpoints)
    return (height // edge) * (width // edge) + 1


FAMILIES: dict[str, type] = {
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
    """The family of a processor, by its class and settings; the fallback for one that is not known.

    Raises ValueError for a model that cannot be trained on packs with a causal mask.
    """
    from packing_udfs.encode.blank_images import RealProcessor

    name = type(processor).__name__
    if name in _NOT_CAUSAL:
        raise ValueError(f"processor: {name} cannot be used: its model {_NOT_CAUSAL[name]}")
    family = FAMILIES.get(name)
    if family is not None and family.accepts(processor):
        return family(processor)
    return RealProcessor(processor)
