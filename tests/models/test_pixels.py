"""The collator's pixels are those of the real processor, sample by sample, for every family."""

import numpy as np
import pytest
import torch
from PIL import Image

from packing_udfs.collate import pixels
from tests.models.processors import build

FLAT = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "llava_next", "llava_onevision", "internvl")
SIZES = [[(60, 90)], [], [(300, 120), (80, 80)], [(500, 130)]]  # of four samples: one alone, none, two, one
PACKS = [[0, 1], [2], [3]]


def picture(seed: int, height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("name", FLAT)
def test_pixels_are_those_of_the_processor_sample_by_sample(name):
    processor = build(name)
    samples = [[picture(10 * i + k, *size) for k, size in enumerate(sizes)] for i, sizes in enumerate(SIZES)]
    found = pixels(processor, [[samples[i] for i in pack] for pack in PACKS])
    alone = [
        processor(text=[processor.image_token * len(sample)], images=[sample], return_tensors="pt")
        for sample in samples
        if sample
    ]
    assert found
    assert not {"input_ids", "attention_mask"} & set(found)
    for tensor, value in found.items():
        parts = [one[tensor] for one in alone]
        if len({part.shape[1:] for part in parts}) > 1:  # padded to the most tiles of an image in the batch
            most = max(part.shape[1] for part in parts)
            parts = [torch.nn.functional.pad(p, [0, 0] * (p.ndim - 2) + [0, most - p.shape[1]]) for p in parts]
        torch.testing.assert_close(value, torch.cat(parts), rtol=0, atol=0, msg=f"{name}: {tensor}")
