"""Batches as training loops take them: values by hand, and models that see no difference."""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

from packing_udfs.adapters import (
    flex_mask,
    for_flash_attention,
    for_nanovlm,
    for_sdpa,
    loss_by_source,
    with_image_bytes,
)
from packing_udfs.collate import Blank, block_mask, collate
from packing_udfs.reader import PackedDataset
from packing_udfs.stream.mrope import MRope
from tests.reader.conftest import jpeg
from tests.reader.test_collate import pack


def sources(*names: str, **options) -> dict:
    return {**pack(**options), "sample_sources": list(names)}


@pytest.fixture(scope="module")
def processor():
    from packing_udfs.encode import processor

    return processor.fetch(str(Path(__file__).parents[2] / "jobs/demo/processor")).load()


@pytest.fixture(scope="module")
def qwen():
    from tests.models.processors import build

    return build("qwen2_vl")


def test_sdpa_gets_a_block_mask_and_arguments_of_the_model_only():
    batch = collate([pack([3, 2]), pack([4], row=1)], 6)
    inputs = for_sdpa(batch)
    assert set(inputs) == {"input_ids", "labels", "position_ids", "attention_mask"}
    assert torch.equal(inputs["attention_mask"], block_mask(batch["segment_ids"]))


@pytest.mark.parametrize("adapter", [for_sdpa, for_flash_attention, for_nanovlm])
def test_a_model_is_not_given_images_without_pixels(packed, adapter):
    """Its tokens stand for images, which would be trained on as they are."""
    open_packed = partial(PackedDataset, str(packed), global_batch_size=4)
    with pytest.raises(ValueError, match="images but no pixels: give PackedDataset the processor, or decode=None"):
        [adapter(batch) for batch in open_packed()]
    assert len([adapter(batch) for batch in open_packed(decode=None)]) == 12


def test_flash_attention_gets_one_row_and_where_sequences_start():
    inputs = for_flash_attention(collate([pack([3, 2]), pack([4, 2], row=1)], 6))
    assert inputs["input_ids"].tolist() == [[5, 6, 7, 8, 9, 0, 5, 6, 7, 8, 9, 10]]
    assert inputs["labels"].tolist() == [[-100, 6, 7, -100, 9, -100, -100, 6, 7, 8, -100, 10]]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 0, 1]]
    ends = [0, 3, 5, 6, 10, 12]
    assert inputs["cu_seq_lens_q"].tolist() == inputs["cu_seq_lens_k"].tolist() == ends
    assert inputs["cu_seq_lens_q"].dtype == torch.int32
    assert inputs["max_length_q"] == inputs["max_length_k"] == 4
    assert "attention_mask" not in inputs


def test_flash_attention_gets_all_tiles_in_one_row(processor):
    rng = np.random.default_rng(0)
    packs = [pack([3], [jpeg(rng, 60, 90)]), pack([3], [jpeg(rng, 40, 40), jpeg(rng, 50, 50)], row=1)]
    batch = collate(packs, 4, processor=processor)
    inputs = for_flash_attention(batch)
    assert inputs["pixel_values"].shape == (1, 2 * batch["pixel_values"].shape[1], *batch["pixel_values"].shape[2:])
    assert torch.equal(inputs["pixel_values"][0], batch["pixel_values"].flatten(0, 1))
    assert inputs["pixel_attention_mask"].shape[:2] == inputs["pixel_values"].shape[:2]


def test_flex_attention_allows_what_the_block_mask_does():
    from torch.nn.attention.flex_attention import create_mask

    segments = collate([pack([3, 2]), pack([6], row=1)], 7)["segment_ids"]
    assert torch.equal(create_mask(flex_mask(segments), 2, None, 7, 7, device="cpu"), block_mask(segments))


def test_nanovlm_gets_shifted_labels_and_its_tiles(processor):
    rng = np.random.default_rng(0)
    packs = [pack([3, 2], [jpeg(rng, 60, 90)]), pack([4], row=1), pack([2], [jpeg(rng, 700, 300)] * 2, row=2)]
    batch = collate(packs, 6, processor=processor)
    inputs = for_nanovlm(batch)
    assert set(inputs) == {"input_ids", "attention_mask", "labels", "images"}
    assert inputs["labels"].tolist()[:2] == [[6, 7, -100, 9, -100, -100], [6, 7, 8, -100, -100, -100]]
    unshifted = torch.nn.functional.cross_entropy  # the model's loss, as it is and as transformers would shift it
    logits = torch.randn(3, 6, 20, generator=torch.Generator().manual_seed(0))
    assert unshifted(logits.flatten(0, 1), inputs["labels"].flatten()) == unshifted(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    )
    num_tiles = [sum(len(tiles) for tiles in of_pack) for of_pack in inputs["images"]]
    assert num_tiles == [13, 0, 18]  # 3 rows of 4 and one more; none; twice 4 rows of 2 and one more
    flat = torch.cat([tiles for of_pack in inputs["images"] for tiles in of_pack])
    used = batch["pixel_attention_mask"].flatten(2).any(-1)
    assert torch.equal(flat, batch["pixel_values"][used])
    assert for_nanovlm(collate([pack([3])], 4))["images"] == [[]]


def test_images_as_bytes(packed):
    options = {"global_batch_size": 4, "decode": "bytes"}
    batch = next(iter(PackedDataset(str(packed), **options)))
    images = [image for of_pack in batch["images"] for image in of_pack]
    assert images
    assert all(isinstance(image, pa.Buffer) for image in images)
    copies = with_image_bytes(batch)
    assert [type(image) for of_pack in copies["images"] for image in of_pack] == [bytes] * len(images)
    assert copies["images"] == batch["images"]
    loader = DataLoader(PackedDataset(str(packed), **options), batch_size=None, num_workers=1)
    assert next(iter(loader))["images"] == batch["images"], "they come through a worker's pipe"


def test_loss_by_source_adds_up():
    batch = collate([sources("a", "b", lengths=[3, 2]), sources("b", lengths=[4], row=1)], 6)
    logits = torch.randn(2, 6, 20, generator=torch.Generator().manual_seed(0))
    losses = loss_by_source(logits, batch)
    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum"
    )
    assert {source: total[1].item() for source, total in losses.items()} == {"a": 2, "b": 1 + 3}
    torch.testing.assert_close(sum(total[0] for total in losses.values()), expected)
    alone = torch.nn.functional.cross_entropy(logits[0, :2], batch["labels"][0, 1:3], reduction="sum")
    torch.testing.assert_close(losses["a"][0], alone)


def test_a_blank_image_goes_into_the_most_padding_and_is_not_learned(processor):
    packs = [pack([30, 20]), pack([12], row=1)]
    plain = collate(packs, 100, processor=processor)
    batch = collate(packs, 100, processor=processor, blank=Blank(processor))
    assert "pixel_values" not in plain
    assert batch["pixel_values"].shape == (2, 1, 3, 512, 512)
    same = ("labels", "attention_mask", "position_ids", "segment_ids", "cu_seqlens", "num_label_tokens")
    assert all(torch.equal(batch[name], plain[name]) for name in same)
    changed = (batch["input_ids"] != plain["input_ids"]).nonzero()
    assert set(changed[:, 0].tolist()) == {1}
    assert changed[:, 1].min() == 12
    assert (batch["input_ids"] == processor.image_token_id).sum(1).tolist() == [0, 64], "as many as a tile's features"
    wider = collate([pack([70])], 72, processor=processor, blank=Blank(processor))
    assert wider["input_ids"].shape == wider["labels"].shape == (1, 70 + 67), "no padding had room"
    assert wider["labels"][0, 70:].eq(-100).all()
    images = [jpeg(np.random.default_rng(0), 40, 40)]
    with_image = [collate([pack([3], images)], 4, processor=processor, blank=b) for b in (None, Blank(processor))]
    assert torch.equal(*(batch["input_ids"] for batch in with_image)), "nothing is added where there is an image"


def test_mrope_positions_of_an_image_of_two_by_four_tokens(qwen):
    one = pack([11, 3], [jpeg(np.random.default_rng(0), 56, 112)])
    one["input_ids"] = torch.tensor([7, *[qwen.image_token_id] * 8, 8, 9, 1, 2, 3], dtype=torch.int32)
    batch = collate([one], 16, processor=qwen, mrope=MRope(qwen))
    assert batch["position_ids"].tolist() == [
        [[*range(11), 0, 1, 2, 0, 1]],  # by which transformers finds the samples
        [[0, 1, 1, 1, 1, 1, 1, 1, 1, 5, 6, 0, 1, 2, 0, 1]],
        [[0, 1, 1, 1, 1, 2, 2, 2, 2, 5, 6, 0, 1, 2, 0, 1]],
        [[0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 0, 1, 2, 0, 1]],
    ]
    assert for_flash_attention(batch)["position_ids"].tolist() == batch["position_ids"].tolist()


@torch.no_grad()
def test_a_model_is_indifferent_to_a_blank_image_and_to_flat_rows(processor):
    """Tiny Idefics3, with SDPA: packed rows with their mask, and flattened rows with the mask that their ends mean."""
    import transformers

    torch.manual_seed(0)
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.Idefics3Config(
        text_config={**text, "model_type": "llama", "num_key_value_heads": 2, "vocab_size": len(processor.tokenizer)},
        vision_config={**text, "image_size": 512, "patch_size": 64, "num_hidden_layers": 1},
        scale_factor=1,
        image_token_id=processor.image_token_id,
    )
    model = transformers.Idefics3ForConditionalGeneration(config).eval()
    packs = [pack([30, 20]), pack([12], row=1)]
    plain = model(**for_sdpa(collate(packs, 100, processor=processor))).loss
    batch = collate(packs, 100, processor=processor, blank=Blank(processor))
    blank = model(**for_sdpa(batch))
    assert blank.image_hidden_states is not None
    torch.testing.assert_close(blank.loss, plain)
    flat = for_flash_attention(batch)
    segments = torch.repeat_interleave(torch.arange(5), flat["cu_seq_lens_q"].diff())[None]
    names = ("input_ids", "labels", "position_ids", "pixel_values", "pixel_attention_mask")
    flat_loss = model(**{name: flat[name] for name in names}, attention_mask=block_mask(segments)).loss
    torch.testing.assert_close(flat_loss, plain)
