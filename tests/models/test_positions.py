"""M-RoPE positions against transformers' own rule, on tiny models of each kind."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.family import Size
from packing_udfs.stream.mrope import mrope, rule_of, stacked

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no installed package
from tests.models import processors
from tests.models.test_families import sample

MODELS = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}


def rope_index(name: str, input_ids: np.ndarray, grids: list, image_token_id: int) -> np.ndarray:
    """transformers' positions [3, n] of one sample; the method reads nothing of its model but a merge size."""
    model_class = getattr(transformers, f"{MODELS[name]}Model")
    model = model_class.__new__(model_class)
    torch.nn.Module.__init__(model)
    model.config = getattr(transformers, f"{MODELS[name]}Config")()
    ids = torch.from_numpy(input_ids.astype(np.int64))[None]
    positions, _ = model_class.get_rope_index(
        model, ids, (ids == image_token_id).int(), image_grid_thw=torch.tensor(grids).reshape(-1, 3)
    )
    return positions[:, 0].numpy()


@pytest.mark.parametrize("name", MODELS)
def test_positions_of_each_sample_are_transformers_own(name):
    processor = processors.build(name)
    encoder, rule = Encoder(processor), rule_of(processor)
    rng = random.Random(3)
    samples = [sample(rng) for _ in range(40)]
    results = encoder.encode([s.messages for s in samples], [s.sizes for s in samples])
    for i in range(0, 40, 4):  # packs of four samples
        pack = {
            "input_ids": np.concatenate([r.input_ids for r in results[i : i + 4]]),
            "sample_lengths": [len(r.input_ids) for r in results[i : i + 4]],
            "sample_num_images": [len(s.sizes) for s in samples[i : i + 4]],
            "image_sizes": [size for s in samples[i : i + 4] for size in s.sizes],
        }
        expected = []
        for given, result in zip(samples[i : i + 4], results[i : i + 4], strict=True):
            grids = [[1, *encoder.family.grid(Size(*size))] for size in given.sizes]
            expected.append(rope_index(name, result.input_ids, grids, processor.image_token_id))
        assert rule(pack).tolist() == np.concatenate(expected, axis=1).tolist()
    assert any(h != w for s in samples for h, w in s.sizes)


def test_by_hand():
    """Text, an image of 1 × 2, text; then a second sample: an image of 2 × 2 and text."""
    ids = np.asarray([5, 9, 9, 6, 7, 9, 9, 9, 9, 8])
    assert mrope(ids, [5, 5], [1, 1], [(1, 2), (2, 2)], 9).tolist() == [
        [0, 1, 1, 3, 4, 0, 0, 0, 0, 2],
        [0, 1, 1, 3, 4, 0, 0, 1, 1, 2],
        [0, 1, 2, 3, 4, 0, 1, 0, 1, 2],
    ]


def test_grids_of_another_processor_are_refused():
    with pytest.raises(ValueError, match="2 image placeholders for grids of 4 tokens"):
        mrope(np.asarray([9, 9]), [2], [1], [(2, 2)], 9)


def test_stacked_keeps_the_collators_positions_and_its_padding():
    processor = processors.build("qwen2_vl")
    pack = {"input_ids": [5, 6], "sample_lengths": [2], "sample_num_images": [0], "image_sizes": []}
    position_ids = torch.tensor([[0, 1, 0, 1]])
    assert stacked(rule_of(processor), position_ids, [pack]).tolist() == [[[0, 1, 0, 1]]] * 4


@pytest.mark.parametrize("name", ["idefics3", "llava"])
def test_models_with_one_position_a_token_need_no_rule(name):
    assert rule_of(processors.build(name)) is None


def test_an_unknown_rule_is_refused():
    class Glm4vProcessor: ...

    with pytest.raises(ValueError, match="Glm4vProcessor has several positions per token"):
        rule_of(Glm4vProcessor())
