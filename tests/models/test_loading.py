"""Processors from a directory, as a job loads them."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.processor import ProcessorError, fetch

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no installed package
from tests.models import processors


def save(processor, folder: Path) -> Path:
    """The processor's files as a model repository has them (transformers cannot save one without a video processor)."""
    processor.tokenizer.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder)
    config = {"processor_class": type(processor).__name__}
    config |= {
        name: getattr(processor, name)
        for name in ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens")
        if hasattr(processor, name)
    }
    (folder / "processor_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(processor.chat_template, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["llava", "llava_siglip", "llava_next"])
def test_a_directory_gives_the_same_tokens(name, tmp_path):
    processor = processors.build(name)
    loaded = Encoder(fetch(str(save(processor, tmp_path))).load())
    assert type(loaded.processor) is type(processor)
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]
    messages.append({"role": "assistant", "content": "That."})
    (ours,), (theirs,) = (encoder.encode([messages], [[(50, 70)]]) for encoder in (loaded, Encoder(processor)))
    assert ours.input_ids.tolist() == theirs.input_ids.tolist()
    assert ours.labels.tolist() == theirs.labels.tolist()


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl", "llava_onevision", "pixtral"])
def test_a_processor_that_needs_torchvision_says_so_when_it_is_loaded(name, tmp_path):
    """With torchvision, its own image processor takes the place of the one on Pillow and the tokens stay the same."""
    processor = processors.build(name)
    files = fetch(str(save(processor, tmp_path)))
    if find_spec("torchvision") is None:
        with pytest.raises(ProcessorError, match=r"needs torchvision.*pip install the torchvision of your torch"):
            files.load()
    else:
        loaded = Encoder(files.load())
        for size in ((50, 70), (700, 300)):
            assert loaded.expand(size).ids.tolist() == Encoder(processor).expand(size).ids.tolist()
