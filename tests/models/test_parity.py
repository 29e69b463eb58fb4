"""A pack trains what its samples would: the loss of tiny models on packed batches against the samples one by one."""

import io
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from packing_udfs.collate import block_mask, collate
from packing_udfs.encode.encoder import EncodedSample, Encoder
from packing_udfs.stream.mrope import rule_of, stacked

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no installed package
from tests.models import processors
from tests.models.test_families import Sample, text

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


def idefics3():
    """Tiles of 28 px, one token each: an image of up to 3 × 3 tiles and one more."""
    with processors.without_video():
        processor = processors.idefics3(longest_edge=84, tile=28)
    processor.image_seq_len = 1
    processor.chat_template = processors.chat_template("<image>")
    config = transformers.Idefics3Config(
        text_config={
            "model_type": "llama",
            **TEXT,
            "vocab_size": len(processor.tokenizer),
            "max_position_embeddings": 512,
        },
        vision_config={"image_size": 28, "patch_size": 14, "hidden_size": 16, "intermediate_size": 32}
        | {"num_hidden_layers": 1, "num_attention_heads": 2},
        scale_factor=2,
        image_token_id=processor.image_token_id,
        pad_token_id=0,
    )
    return processor, transformers.Idefics3ForConditionalGeneration(config)


def qwen2_vl():
    """Patches of 14 px, four to a token; heads of 16 numbers, shared between three positions."""
    processor = processors.build("qwen2_vl")
    processor.image_processor.size = {"shortest_edge": 28 * 28, "longest_edge": 12 * 28 * 28}
    rope = {"rope_type": "default", "type": "mrope", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0}
    config = transformers.Qwen2VLConfig(
        text_config={**TEXT, "vocab_size": len(processor.tokenizer), "rope_scaling": rope},
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 14}
        | {"spatial_merge_size": 2, "temporal_patch_size": 2},
        image_token_id=processor.image_token_id,
        vision_start_token_id=processor.tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=processor.tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        video_token_id=processor.video_token_id,
    )
    return processor, transformers.Qwen2VLForConditionalGeneration(config)


MODELS = {"idefics3": idefics3, "qwen2_vl": qwen2_vl}


def samples_of(rng: random.Random, num_samples: int) -> list[Sample]:
    samples = []
    for i in range(num_samples):
        sizes = [(rng.randint(20, 120), rng.randint(20, 120)) for _ in range((0, 1, 2, 1)[i % 4])]
        content = [*[{"type": "image"} for _ in sizes], {"type": "text", "text": text(rng)}]
        answer = text(rng)
        said = {"role": "assistant", "content": [{"type": "text", "text": answer}]}
        samples.append(Sample([{"role": "user", "content": content}, said], sizes, [answer]))
    return samples


def png(rng: np.random.Generator, size: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def pack_of(samples: list[tuple[EncodedSample, Sample, list[bytes]]]) -> dict:
    """A pack as the reader gives it."""
    labels = np.concatenate([encoded.labels for encoded, _, _ in samples])
    sizes = [size for _, sample, _ in samples for size in sample.sizes]
    return {
        "input_ids": torch.from_numpy(np.concatenate([encoded.input_ids for encoded, _, _ in samples])),
        "labels": torch.from_numpy(labels),
        "sample_lengths": torch.tensor([len(encoded.input_ids) for encoded, _, _ in samples]),
        "sample_num_images": torch.tensor([len(sample.sizes) for _, sample, _ in samples]),
        "image_num_tokens": torch.from_numpy(np.concatenate([e.image_num_tokens for e, _, _ in samples])),
        "image_sizes": torch.tensor(sizes, dtype=torch.int32).reshape(-1, 2),
        "images": [data for _, _, images in samples for data in images],
        "sample_ids": torch.arange(len(samples)),
        "sample_sources": ["test"] * len(samples),
        "num_label_tokens": int((labels >= 0).sum()),
        "file": "test",
        "row_group": 0,
        "row": 0,
    }


def pixels_of(batch: dict) -> dict:
    return {n: batch[n] for n in ("pixel_values", "pixel_attention_mask", "image_grid_thw") if n in batch}


def summed(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Cross-entropy summed over all targets."""
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
    ).item()


@torch.no_grad()
def loss_alone(processor, model, sample) -> float:
    """One sample as anyone runs a model: its own mask and its own positions."""
    batch = collate([pack_of([sample])], len(sample[0].input_ids), processor=processor)
    kinds = {}
    if "image_grid_thw" in batch:
        kinds = {"mm_token_type_ids": (batch["input_ids"] == processor.image_token_id).int()}
    return summed(model(input_ids=batch["input_ids"], **kinds, **pixels_of(batch)).logits, batch["labels"])


@torch.no_grad()
def loss_packed(processor, model, packs: list[dict], *, isolated: bool) -> float:
    """A batch of packs. Without isolation, every token sees all before it and positions count through the pack."""
    seq_len = max(len(pack["input_ids"]) for pack in packs) + 7  # all rows have padding
    batch = collate(packs, seq_len, processor=processor)
    mask, position_ids = block_mask(batch["segment_ids"]), batch["position_ids"]
    if not isolated:
        mask = torch.ones_like(mask).tril()
        position_ids = torch.arange(seq_len).expand_as(position_ids)
    elif (rule := rule_of(processor)) is not None:
        position_ids = stacked(rule, position_ids, packs)
    out = model(input_ids=batch["input_ids"], attention_mask=mask, position_ids=position_ids, **pixels_of(batch))
    return summed(out.logits, batch["labels"])


@pytest.fixture(scope="module", params=MODELS)
def packed(request):
    """A processor, its model, and a batch of two packs of four samples."""
    torch.manual_seed(0)
    processor, model = MODELS[request.param]()
    model = model.float().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from uniform, so that a leak shows in the loss
            parameter.mul_(4.0)
    samples = samples_of(random.Random(5), 8)
    rng = np.random.default_rng(5)
    images = [[png(rng, size) for size in sample.sizes] for sample in samples]
    encoded = Encoder(processor).encode([s.messages for s in samples], [s.sizes for s in samples])
    return processor, model, list(zip(encoded, samples, images, strict=True))


def relative_error(processor, model, samples, *, isolated: bool) -> float:
    alone = sum(loss_alone(processor, model, sample) for sample in samples)
    packs = [pack_of(samples[:4]), pack_of(samples[4:])]
    return abs(loss_packed(processor, model, packs, isolated=isolated) - alone) / alone


def test_the_loss_of_packs_is_the_sum_over_their_samples(packed):
    assert relative_error(*packed, isolated=True) <= 1e-5


def test_without_isolation_it_is_not(packed):
    assert relative_error(*packed, isolated=False) > 1e-3
