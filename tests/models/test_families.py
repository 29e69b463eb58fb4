"""Every family against its real processor, fed with noise for pixels: ids, labels, image spans and vision cost."""

import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

import numpy as np
import pytest
from PIL import Image

from packing_udfs.contract import IGNORE_INDEX
from packing_udfs.encode import families
from packing_udfs.encode.encoder import Encoder

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no installed package
from tests.models import processors

WORDS = [
    *("the", "chart", "shows", "", "bar\tof", "12,345.67", "%;", "Ünïcödé", "漢字", "🙂🙃", "e\u0301", "\r\n", "don't"),
    *("def f(x):\n    return x **2", "<image", "<|im_", "[IMG", "]", "{{ x }}", "<b>"),
]
FAST_PIXELS = {"resample": Image.Resampling.NEAREST, "do_rescale": False, "do_normalize": False}


class Sample(NamedTuple):
    messages: list[dict]
    sizes: list[tuple[int, int]]
    answers: list[str]


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))


def size(rng: random.Random) -> tuple[int, int]:
    """Odd ones included: a pixel high, a pixel wide, the edges of tiles and patches."""
    edge = rng.choice([1, 2, 13, 14, 27, 28, 29, 56, 112, 300, 336, 337, 364, 365, 500, 600])
    other = rng.choice([edge, edge + 1, rng.randint(1, 700)])
    high, wide = rng.choice([(edge, other), (other, edge)])
    return (high, wide) if max(high, wide) <= 190 * min(high, wide) else (high + 10, wide + 10)


def sample(rng: random.Random) -> Sample:
    """Up to 4 images anywhere among the questions, up to 4 turns, a system prompt now and then."""
    num_turns, sizes = rng.randint(1, 4), [size(rng) for _ in range(rng.choice([0, 1, 1, 2, 3, 4]))]
    turn_of = sorted(rng.choice([0, rng.randrange(num_turns)]) for _ in sizes)
    messages, answers = [], []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": [{"type": "text", "text": text(rng)}]})
    for turn in range(num_turns):
        images = [{"type": "image"}] * turn_of.count(turn)
        parts = [*images, {"type": "text", "text": text(rng)}]
        if rng.random() < 0.3:
            parts.reverse()
        answers.append(text(rng))
        messages.append({"role": "user", "content": parts})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": answers[-1]}]})
    return Sample(messages, sizes, answers)


def real(processor, messages: list[dict], images: list[Image.Image], **kwargs) -> dict:
    """What the processor makes of a conversation with its pixels."""
    pending = iter(images)
    chat = [
        {**m, "content": [{**p, "image": next(pending)} if p["type"] == "image" else p for p in m["content"]]}
        if isinstance(m["content"], list)
        else m
        for m in messages
    ]
    return processor.apply_chat_template(
        [chat],
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
        processor_kwargs=FAST_PIXELS | kwargs,
    )


# How many tiles or patches the real pixels are, by what the family's image processor returns.
REAL_COST: dict[str, Callable[[dict], int]] = {
    "tiles of a sample": lambda out: np.asarray(out["pixel_values"]).shape[1],
    "rows": lambda out: len(out["pixel_values"]),
    "tiles of each image": lambda out: sum(len(image) for image in out["pixel_values"]),
}
COST_OF = {
    **dict.fromkeys(["idefics3", "idefics3_uneven", "idefics3_whole", "smolvlm"], "tiles of a sample"),
    **dict.fromkeys(["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "llava_siglip", "internvl"], "rows"),
    **dict.fromkeys(["llava_next", "llava_onevision"], "tiles of each image"),
}


def noise(rng: np.random.Generator, sizes) -> list[Image.Image]:
    return [Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]


def check(name: str, num_samples: int, seed: int) -> None:
    processor = processors.build(name)
    encoder = Encoder(processor)
    rng, pixels = random.Random(seed), np.random.default_rng(seed)
    samples = [sample(rng) for _ in range(num_samples)]
    results = encoder.encode([s.messages for s in samples], [s.sizes for s in samples])
    kwargs = {"do_pad": False} if name in ("llava_next", "llava_onevision") else {}
    for given, result in zip(samples, results, strict=True):
        out = real(processor, given.messages, noise(pixels, given.sizes), **kwargs)
        ids, mask = np.asarray(out["input_ids"][0]), np.asarray(out["assistant_masks"][0], bool)
        assert result.input_ids.tolist() == ids.tolist(), given
        mask[0] = False
        assert result.labels.tolist() == np.where(mask, ids, IGNORE_INDEX).tolist(), given
        trained = result.labels[result.labels != IGNORE_INDEX]
        spoken = "".join(answer + "<|im_end|>" for answer in given.answers)
        assert processor.tokenizer.decode(trained) == (normalize("NFC", spoken) if name.startswith("qwen") else spoken)
        assert len(result.image_num_tokens) == len(given.sizes)
        assert result.image_num_tokens.sum() == (ids == processor.image_token_id).sum()
        if not given.sizes:
            assert result.vision_cost == 0
        elif encoder.family.vision_unit != "tokens":
            assert result.vision_cost == REAL_COST[COST_OF[name]](out), given.sizes
        else:
            assert result.vision_cost == result.image_num_tokens.sum()
    assert max(len(given.sizes) for given in samples) == 4
    assert {len(given.answers) for given in samples} == {1, 2, 3, 4}


@pytest.mark.parametrize("name", [*processors.FAST, *processors.FALLBACK])
def test_a_sample_is_what_the_real_processor_makes_of_its_pixels(name):
    check(name, num_samples=40, seed=1)


@pytest.mark.parametrize(
    "name", ["idefics3_uneven", "smolvlm", "qwen2_vl", "llava_next", "llava_onevision", "internvl"]
)
def test_a_processor_of_no_family_is_run_and_makes_the_same(name, monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", {})
    check(name, num_samples=16, seed=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*processors.FAST, *processors.FALLBACK])
def test_many_samples_are_what_the_real_processor_makes_of_their_pixels(name):
    check(name, num_samples=200, seed=2)


@pytest.mark.parametrize("name", processors.FAST)
def test_families_know_images_without_running_the_processor(name, caplog):
    with caplog.at_level(logging.WARNING):
        encoder = Encoder(processors.build(name))
    assert not caplog.records
    assert encoder.family.vision_unit in ("tiles", "patches")


@pytest.mark.parametrize("name", processors.FALLBACK)
def test_the_fallback_says_once_what_it_is(name, caplog):
    with caplog.at_level(logging.WARNING):
        encoder = Encoder(processors.build(name))
        encoder.expand((100, 100))
    (record,) = caplog.records
    assert "running it on blank images" in record.getMessage()
    assert encoder.family.vision_unit == "tokens"


@pytest.mark.parametrize("name", processors.NOT_CAUSAL)
def test_a_model_that_is_not_causal_is_refused(name):
    with pytest.raises(ValueError, match="attends in both directions"):
        Encoder(processors.build(name))


@pytest.mark.parametrize(("name", "size", "why"), [("qwen2_vl", (2, 401), "aspect ratio must be smaller than 200")])
def test_a_size_that_the_processor_refuses_is_a_reason(name, size, why):
    processor = processors.build(name)
    encoder = Encoder(processor)
    messages = [{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "That."}]
    with pytest.raises(ValueError, match=why):
        real(processor, messages, noise(np.random.default_rng(0), [size]))
    (result,) = encoder.encode([messages], [[size]])
    assert (result.reason, why in result.detail) == ("image_shape", True)
    with pytest.raises(ValueError, match=why):
        encoder.expand(size)
