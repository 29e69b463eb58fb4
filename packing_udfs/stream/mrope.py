"""Multimodal rotary positions (M-RoPE) of packs: three positions per token, by the rule of Qwen2-VL and its successors.

Text counts up by one in all three. An image of rows × columns tokens starts at the next position p. All its tokens have
the temporal position p, the height p + row and the width p + column, and the text after it continues at
p + max(rows, columns). Positions start again at 0 in each sample of a pack. Worked example, one sample of a text token,
an image of 1 × 2 tokens, two text tokens:

    temporal  0  1 1  3 4
    height    0  1 1  3 4
    width     0  1 2  3 4

The grid follows from `image_sizes` and the processor's settings, so nothing is decoded and nothing is stored. Still
images only: videos have another temporal rule, and packs hold no video. Source of the rule: Qwen2-VL
(arXiv:2409.12191), and `get_rope_index` of the models in transformers, which the tests compare with.
"""

from collections.abc import Sequence

import numpy as np
import torch

from packing_udfs.encode.families import FAMILIES, QwenVL
from packing_udfs.encode.family import Size
from packing_udfs.walk import offsets, slices

__all__ = ["MRope", "mrope", "rule_of", "stacked"]

# Processors of models with several positions per token whose rule differs, or whose grid is not known here.
_OTHER_RULES = {
    *("CohereCompassProcessor", "Cosmos3EdgeProcessor", "Ernie4_5_VLMoeProcessor", "Glm46VProcessor"),
    *("Glm4vProcessor", "GlmImageProcessor", "HYV4VLProcessor", "HunYuanVLProcessor", "MiniCPMV4_7Processor"),
    *("PaddleOCRVLProcessor", "Qwen2_5OmniProcessor", "Qwen3OmniMoeProcessor"),
}


def mrope(
    input_ids: np.ndarray,
    sample_lengths: Sequence[int],
    sample_num_images: Sequence[int],
    grids: Sequence[tuple[int, int]],
    image_token_id: int,
) -> np.ndarray:
    """int64 [3, num_tokens]: temporal, height and width position of each token of a pack.

    `grids`: (rows, columns) of tokens of each image, in order. Raises ValueError if the placeholders are not as many.
    """
    positions = np.empty((3, len(input_ids)), np.int64)
    placeholders = np.flatnonzero(np.asarray(input_ids) == image_token_id)
    starts = offsets([rows * cols for rows, cols in grids])  # of each image, among the placeholders
    if starts[-1] != len(placeholders):
        raise ValueError(f"{len(placeholders)} image placeholders for grids of {starts[-1]} tokens: another processor?")
    for tokens, images in zip(slices(sample_lengths), slices(sample_num_images), strict=True):
        at, position, end = tokens.start, 0, tokens.stop
        for i in range(images.start, images.stop):
            (rows, cols), first = grids[i], int(placeholders[starts[i]])
            positions[:, at:first] = position + np.arange(first - at)
            position, at = position + first - at, first + rows * cols
            positions[0, first:at] = position
            positions[1, first:at] = position + np.arange(rows).repeat(cols)
            positions[2, first:at] = position + np.tile(np.arange(cols), rows)
            position += max(rows, cols)
        positions[:, at:end] = position + np.arange(end - at)
    return positions


class MRope:
    """The rule for one processor's grids and placeholder."""

    def __init__(self, processor):
        self._family = QwenVL(processor)
        self._merge_size = processor.image_processor.merge_size
        self._image_token_id = processor.image_token_id

    def __call__(self, pack: dict) -> np.ndarray:
        """int64 [3, num_tokens] of a pack of `packing_udfs.parquet.read.Packs` (NumPy arrays or tensors)."""
        patches = [self._family.grid(Size(*size)) for size in np.asarray(pack["image_sizes"]).reshape(-1, 2).tolist()]
        grids = [(rows // self._merge_size, cols // self._merge_size) for rows, cols in patches]
        lengths, num_images = (np.asarray(pack[name]).tolist() for name in ("sample_lengths", "sample_num_images"))
        return mrope(np.asarray(pack["input_ids"]), lengths, num_images, grids, self._image_token_id)


def rule_of(processor) -> MRope | None:
    """The rule of a processor's model; None if the model takes one position per token.

    Raises ValueError for a model with a rule that is not known here.
    """
    name = type(processor).__name__
    if name in _OTHER_RULES:
        raise ValueError(f"processor: {name} has several positions per token, by a rule that is not known here")
    return MRope(processor) if FAMILIES.get(name) is QwenVL else None


def stacked(rule: MRope, position_ids: torch.Tensor, packs: Sequence[dict]) -> torch.Tensor:
    """int64 [4, B, S], as transformers takes it for packs: `position_ids` [B, S], by which it finds the samples, then
    the three positions of `rule`. Padding keeps its `position_ids` in all four."""
    out = position_ids.expand(4, *position_ids.shape).contiguous()
    for row, pack in enumerate(packs):
        out[1:, row, : len(pack["input_ids"])] = torch.from_numpy(rule(pack))
    return out
