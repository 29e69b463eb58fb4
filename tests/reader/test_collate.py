"""A batch's values, worked out by hand, and pixels as the processor makes them sample by sample."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from packing_udfs.collate import block_mask, collate, decode_images
from packing_udfs.contract import ContractError
from tests.reader.conftest import jpeg

PROCESSOR = Path(__file__).parents[2] / "jobs/demo/processor"


def pack(lengths, images=(), num_images=None, row=0) -> dict:
    """A pack of samples of these lengths: ids 5, 6, …; labels are the ids but for each sample's first token."""
    ids = torch.arange(5, 5 + sum(lengths), dtype=torch.int32)
    labels = ids.clone()
    labels[np.cumsum([0, *lengths[:-1]])] = -100
    sizes = [decoded_size(data) for data in images]
    return {
        "input_ids": ids,
        "labels": labels,
        "sample_lengths": torch.tensor(lengths, dtype=torch.int32),
        "sample_num_images": torch.tensor(num_images or [len(images)] + [0] * (len(lengths) - 1), dtype=torch.int32),
        "image_sizes": torch.tensor(sizes, dtype=torch.int32).reshape(-1, 2),
        "sample_ids": torch.arange(len(lengths)),
        "sample_sources": ["photos"] * len(lengths),
        "sample_files": ["a.parquet"] * len(lengths),
        "sample_rows": list(range(len(lengths))),
        "sample_kept": [None] * len(lengths),
        "images": list(images),
        "num_label_tokens": sum(lengths) - len(lengths),
        "file": "data/train/00000.parquet",
        "row_group": 3,
        "row": row,
    }


def decoded_size(data: bytes) -> tuple[int, int]:
    width, height = Image.open(io.BytesIO(data)).size
    return height, width


def test_two_samples_and_padding():
    batch = collate([pack([3, 2]), pack([4, 3], row=1)], 7, pad_token_id=0)
    expected = {
        "input_ids": [[5, 6, 7, 8, 9, 0, 0], [5, 6, 7, 8, 9, 10, 11]],
        "labels": [[-100, 6, 7, -100, 9, -100, -100], [-100, 6, 7, 8, -100, 10, 11]],
        "attention_mask": [[1, 1, 1, 1, 1, 0, 0], [1] * 7],
        "position_ids": [[0, 1, 2, 0, 1, 0, 1], [0, 1, 2, 3, 0, 1, 2]],
        "segment_ids": [[1, 1, 1, 2, 2, 0, 0], [1, 1, 1, 1, 2, 2, 2]],
        "cu_seqlens": [0, 3, 5, 7, 11, 14],
        "num_label_tokens": [3, 5],
        "is_padding": [False, False],
    }
    assert {name: batch[name].tolist() for name in expected} == expected
    assert batch["max_seqlen"] == 4
    int64 = ("input_ids", "labels", "attention_mask", "position_ids", "num_label_tokens")
    assert {batch[name].dtype for name in int64} == {torch.int64}
    assert batch["cu_seqlens"].dtype == batch["segment_ids"].dtype == torch.int32
    assert batch["sample_ids"] == [[0, 1], [0, 1]]
    assert batch["sample_sources"] == [["photos"] * 2] * 2
    assert batch["images"] == [[], []]
    assert "pixel_values" not in batch


def test_padding_is_what_was_asked_for():
    assert collate([pack([2])], 4, pad_token_id=9)["input_ids"].tolist() == [[5, 6, 9, 9]]


def test_block_mask_keeps_samples_apart():
    mask = block_mask(torch.tensor([[1, 1, 2, 0, 0]]))
    assert mask.dtype == torch.bool
    assert mask.int().tolist() == [
        [
            [
                [1, 0, 0, 0, 0],
                [1, 1, 0, 0, 0],
                [0, 0, 1, 0, 0],
                [0, 0, 0, 1, 0],
                [0, 0, 0, 1, 1],
            ]
        ]
    ]


def test_attention_in_a_pack_equals_attention_sample_by_sample():
    batch = collate([pack([3, 2])], 7)
    q, k, v = torch.randn(3, 1, 2, 7, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    attend = torch.nn.functional.scaled_dot_product_attention
    packed = attend(q, k, v, attn_mask=block_mask(batch["segment_ids"]))
    for start, end in zip(batch["cu_seqlens"].tolist()[:-1], batch["cu_seqlens"].tolist()[1:], strict=True):
        q1, k1, v1 = (x[:, :, start:end] for x in (q, k, v))
        torch.testing.assert_close(packed[:, :, start:end], attend(q1, k1, v1, is_causal=True))


def test_a_pack_longer_than_seq_len_is_refused():
    with pytest.raises(ValueError, match=r"row group 3 row 0: 5 tokens, seq_len=4"):
        collate([pack([3, 2])], 4)


def test_images_are_upright_and_of_the_size_that_was_encoded():
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    buffer = io.BytesIO()
    Image.new("RGB", (20, 10), "red").save(buffer, "JPEG", exif=exif)
    turned = pack([3], [buffer.getvalue()])
    with pytest.raises(ContractError, match=r"row group 3 row 0: image 0 decodes to 20 × 10 .* encoded were 10 × 20"):
        decode_images(turned)
    turned["image_sizes"] = torch.tensor([[20, 10]], dtype=torch.int32)
    assert [image.size for image in decode_images(turned)] == [(10, 20)]
    assert collate([turned], 4, images="bytes")["images"] == [[buffer.getvalue()]]
    assert "images" not in collate([turned], 4, images=None)


def test_an_image_that_does_not_decode_is_named():
    broken = pack([3], [jpeg(np.random.default_rng(0), 30, 40)])
    broken["images"][0] = broken["images"][0][:100]
    with pytest.raises(ContractError, match=r"00000.parquet row group 3 row 0: image 0 does not decode"):
        collate([broken], 4)


@pytest.fixture(scope="module")
def processor():
    from packing_udfs.encode import processor

    return processor.fetch(str(PROCESSOR)).load()


def test_pixels_are_those_of_each_sample_alone(processor):
    rng = np.random.default_rng(1)
    images = [jpeg(rng, height, width) for height, width in [(60, 90), (40, 40), (700, 300)]]
    packs = [pack([3, 2], images[:2], [1, 1]), pack([4], row=1), pack([2, 2, 1], images[2:], [0, 0, 1], row=2)]
    batch = collate(packs, 7, processor=processor)
    assert "images" not in batch
    num_rows, num_tiles, *tile = batch["pixel_values"].shape
    assert (num_rows, tile) == (3, [3, 512, 512])
    assert batch["pixel_attention_mask"].shape == (3, num_tiles, 512, 512)
    for row, of_pack in enumerate(packs):
        alone = [
            processor.image_processor(images=[image], return_tensors="pt")["pixel_values"][0]
            for image in decode_images(of_pack)
        ]
        expected = torch.cat(alone) if alone else torch.empty(0, 3, 512, 512)
        torch.testing.assert_close(batch["pixel_values"][row, : len(expected)], expected, rtol=0, atol=0)
        assert not batch["pixel_values"][row, len(expected) :].any()
        assert not batch["pixel_attention_mask"][row, len(expected) :].any()


def test_no_pixels_without_images(processor):
    assert "pixel_values" not in collate([pack([3])], 4, processor=processor)
