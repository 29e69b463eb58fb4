"""Processors of the model families, assembled from class defaults and the demo's vocabulary: nothing is downloaded.

Image settings are those of published checkpoints, smaller where that only saves time.
"""

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import transformers
from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers import processors as postprocessors
from transformers import PreTrainedTokenizerFast
from transformers.models.smolvlm import processing_smolvlm
from transformers.processing_utils import ProcessorMixin

DEMO_PROCESSOR = Path(__file__).parents[2] / "jobs" / "demo" / "processor"


def chat_template(image: str, *, generation: bool = True) -> str:
    """A ChatML template; `image` is what it writes for an image. Content is a string or a list of parts."""
    said = "{{ said.text + '<|im_end|>' }}"
    if generation:
        said = "{% generation %}" + said + "{% endgeneration %}"
    return (
        "{% for tool in tools or [] %}{{ '<|im_start|>tool\n' + (tool | tojson) + '<|im_end|>\n' }}{% endfor %}"
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% set said = namespace(text='') %}"
        "{% if message['content'] is string %}{% set said.text = message['content'] %}"
        "{% else %}{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}{% set said.text = said.text + " + repr(image) + " %}"
        "{% else %}{% set said.text = said.text + part['text'] %}{% endif %}{% endfor %}{% endif %}"
        "{% if message['role'] == 'assistant' %}" + said + "{% else %}{{ said.text + '<|im_end|>' }}{% endif %}"
        "{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


def tokenizer(special: list[str], *, nfc: bool = False, bos: bool = False, **names: str) -> PreTrainedTokenizerFast:
    """The demo's vocabulary with a family's own special tokens; `names` are those its processor asks by attribute.

    `nfc`: text is normalised, as Qwen's tokenizers do. `bos`: every text starts with <|endoftext|>, as with Llama's.
    """
    state = json.loads((DEMO_PROCESSOR / "tokenizer.json").read_text(encoding="utf-8"))
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"].startswith("<|")]
    backend = Tokenizer.from_str(json.dumps(state))
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    if nfc:
        backend.normalizer = normalizers.NFC()
    if bos:
        backend.post_processor = postprocessors.TemplateProcessing("<|endoftext|> $A", None, [("<|endoftext|>", 0)])
    tokens = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"} | ({"bos_token": "<|endoftext|>"} if bos else {})
    return PreTrainedTokenizerFast(tokenizer_object=backend, extra_special_tokens=names, **tokens)


@contextlib.contextmanager
def without_video():
    """Let a processor be made without a video processor, which needs torchvision; nothing here is a video."""
    original = ProcessorMixin.check_argument_for_proper_class

    def check(self, name, argument):
        return None if name == "video_processor" else original(self, name, argument)

    ProcessorMixin.check_argument_for_proper_class = check
    try:
        yield
    finally:
        ProcessorMixin.check_argument_for_proper_class = original


def _image_processor(name: str, **settings):
    """The class on Pillow, which is there with and without torchvision."""
    return getattr(transformers, f"{name}Pil")(**settings)


IDEFICS3_TOKENS = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"] + [
    f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)
]
QWEN_TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def idefics3(longest_edge: int = 3 * 182, tile: int = 182, **settings):
    image = _image_processor(
        "Idefics3ImageProcessor", size={"longest_edge": longest_edge}, max_image_size={"longest_edge": tile}, **settings
    )
    return transformers.Idefics3Processor(image, tokenizer(IDEFICS3_TOKENS), image_seq_len=5)


def smolvlm():
    image = _image_processor("SmolVLMImageProcessor", size={"longest_edge": 1024}, max_image_size={"longest_edge": 256})
    names = {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>"}
    names |= {"end_of_utterance_token": "<end_of_utterance>", "global_image_token": "<global-img>"}
    processing_smolvlm.num2words = str  # it spells out numbers of video frames
    video = SimpleNamespace(num_frames=8, fps=1)
    return processing_smolvlm.SmolVLMProcessor(image, tokenizer(IDEFICS3_TOKENS, **names), video, image_seq_len=5)


def qwen2_vl():
    image = _image_processor("Qwen2VLImageProcessor", size={"shortest_edge": 56 * 56, "longest_edge": 200 * 28 * 28})
    return transformers.Qwen2VLProcessor(image, tokenizer(QWEN_TOKENS, nfc=True), None)


def qwen2_5_vl():
    return transformers.Qwen2_5_VLProcessor(
        _image_processor("Qwen2VLImageProcessor"), tokenizer(QWEN_TOKENS, nfc=True), None
    )


def qwen3_vl():
    size = {"shortest_edge": 65536, "longest_edge": 500_000}
    image = _image_processor("Qwen2VLImageProcessor", patch_size=16, size=size)
    return transformers.Qwen3VLProcessor(image, tokenizer(QWEN_TOKENS, nfc=True), None)


def llava():
    edges = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
    return transformers.LlavaProcessor(
        _image_processor("CLIPImageProcessor", **edges),
        tokenizer(["<image>"], bos=True, image_token="<image>"),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def llava_siglip():
    """LLaVA on a vision tower that is given a stretched square, with no class token."""
    return transformers.LlavaProcessor(
        _image_processor("SiglipImageProcessor", size={"height": 384, "width": 384}),
        tokenizer(["<image>"], image_token="<image>"),
        patch_size=16,
        vision_feature_select_strategy="full",
    )


def llava_next():
    edges = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
    return transformers.LlavaNextProcessor(
        _image_processor("LlavaNextImageProcessor", **edges),
        tokenizer(["<image>"], image_token="<image>"),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )


def llava_onevision():
    edge = 84  # published: 384
    pinpoints = [[edge * height, edge * width] for height in range(1, 7) for width in range(1, 7)]
    image = _image_processor(
        "LlavaOnevisionImageProcessor", size={"height": edge, "width": edge}, image_grid_pinpoints=pinpoints
    )
    return transformers.LlavaOnevisionProcessor(
        image,
        tokenizer(["<image>", "<video>"], image_token="<image>", video_token="<video>"),
        None,
        num_image_tokens=36,
        vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_9",
    )


def internvl():
    image = _image_processor("GotOcr2ImageProcessor", size={"height": 112, "width": 112}, crop_to_patches=True)
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    names["video_token"] = "<video>"
    return transformers.InternVLProcessor(image, tokenizer(list(names.values()), **names), None, image_seq_length=16)


def pixtral(patch_size: int = 16, spatial_merge_size: int = 1):
    image = _image_processor(
        "PixtralImageProcessor", size={"longest_edge": 512}, patch_size={"height": patch_size, "width": patch_size}
    )
    if importlib.util.find_spec("torchvision") is None:  # the processor's module takes one function from there
        from transformers.models.pixtral import image_processing_pil_pixtral as on_pillow

        sys.modules.setdefault("transformers.models.pixtral.image_processing_pixtral", on_pillow)
    from transformers.models.pixtral.processing_pixtral import PixtralProcessor

    return PixtralProcessor(image, tokenizer(["[IMG]", "[IMG_BREAK]", "[IMG_END]"]), patch_size, spatial_merge_size)


def mistral3():
    return pixtral(patch_size=14, spatial_merge_size=2)


def gemma3():
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    image = _image_processor("Gemma3ImageProcessor", size={"height": 224, "width": 224})
    return transformers.Gemma3Processor(image, tokenizer(list(names.values()), **names), image_seq_length=16)


# name: how it is made, what its template writes for an image
FAST: dict[str, tuple[Callable, str]] = {
    "idefics3": (idefics3, "<image>"),
    "idefics3_uneven": (lambda: idefics3(longest_edge=500, tile=151), "<image>"),
    "idefics3_whole": (lambda: idefics3(do_image_splitting=False), "<image>"),
    "smolvlm": (smolvlm, "<image>"),
    "qwen2_vl": (qwen2_vl, QWEN_IMAGE),
    "qwen2_5_vl": (qwen2_5_vl, QWEN_IMAGE),
    "qwen3_vl": (qwen3_vl, QWEN_IMAGE),
    "llava": (llava, "<image>\n"),
    "llava_siglip": (llava_siglip, "<image>\n"),
    "llava_next": (llava_next, "<image>\n"),
    "llava_onevision": (llava_onevision, "<image>\n"),
    "internvl": (internvl, "<IMG_CONTEXT>\n"),
}
FALLBACK: dict[str, tuple[Callable, str]] = {"pixtral": (pixtral, "[IMG]"), "mistral3": (mistral3, "[IMG]")}
NOT_CAUSAL: dict[str, tuple[Callable, str]] = {"gemma3": (gemma3, "<start_of_image>")}


def build(name: str, *, generation: bool = True):
    """The processor of this name, with a chat template that marks what the assistant says or does not."""
    make, image = {**FAST, **FALLBACK, **NOT_CAUSAL}[name]
    with without_video():
        processor = make()
    processor.chat_template = chat_template(image, generation=generation)
    return processor
