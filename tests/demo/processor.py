"""The demo's processor: SmolVLM's layout (Idefics3, 512 px tiles, 64 tokens a tile) with a small byte-level BPE.

The vocabulary is the head of GPT-2's merge list: BPE merges are ordered, so the first N of them are themselves a
valid BPE whose tokens are the most frequent ones. That keeps English at about 3.7 characters a token with a file of
a few hundred kB. Training on the demo's own text was the alternative: it needs megabytes of other open text to be
any good at English, and would change with every row.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import Idefics3ImageProcessorPil, Idefics3Processor, PreTrainedTokenizerFast

NUM_MERGES = 10_000
TEXT_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
IMAGE_TOKENS = [
    "<global-img>",
    *(f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)),
    "<fake_token_around_image>",
    "<image>",
    "<end_of_utterance>",
]

# SmolVLM's form, `<|im_start|>User:<image>…<end_of_utterance>\nAssistant: …<end_of_utterance>\n`, and two
# additions: content may be a plain string, and what the model is to learn is marked.
CHAT_TEMPLATE = """\
<|im_start|>{% for message in messages %}\
{{ message['role'] | capitalize }}\
{% if message['content'] is string %}\
{% set parts = [{'type': 'text', 'text': message['content']}] %}\
{% else %}\
{% set parts = message['content'] %}\
{% endif %}\
{% if parts and parts[0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}\
{% set said = namespace(text='') %}\
{% for part in parts %}\
{% if part['type'] == 'image' %}{% set said.text = said.text + '<image>' %}\
{% elif part['type'] == 'text' %}{% set said.text = said.text + part['text'] %}{% endif %}\
{% endfor %}\
{% if message['role'] == 'assistant' %}\
{% generation %}{{ said.text + '<end_of_utterance>' }}{% endgeneration %}\
{% else %}{{ said.text + '<end_of_utterance>' }}{% endif %}\
{{ '\\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""


def read_merges(path: Path) -> list[tuple[str, str]]:
    """The first `NUM_MERGES` merges of a GPT-2 `vocab.bpe` / `merges.txt`, or of a `tokenizer.json` built before."""
    if path.suffix == ".json":
        return [tuple(pair) for pair in json.loads(path.read_text("utf-8"))["model"]["merges"]]
    lines = path.read_text("utf-8").splitlines()[1:]
    return [tuple(line.split(" ")) for line in lines[:NUM_MERGES]]


def build_tokenizer(merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with SmolVLM's special tokens; digits are single tokens, as SmolLM2 has them.

    Ids: three text specials, 256 bytes, one per merge, then the image tokens.
    """
    tokens = [*TEXT_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    known = set(tokens)
    for left, right in merges:
        if left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in TEXT_TOKENS + IMAGE_TOKENS]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<end_of_utterance>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        extra_special_tokens=IMAGE_TOKENS[-3:],
        model_max_length=16_384,
        clean_up_tokenization_spaces=False,
    )


def write_processor(merges: list[tuple[str, str]], folder: Path) -> None:
    """Write the processor so that `AutoProcessor.from_pretrained(folder)` needs no network and no torchvision."""
    images = Idefics3ImageProcessorPil(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512})
    processor = Idefics3Processor(images, build_tokenizer(merges), image_seq_len=64, chat_template=CHAT_TEMPLATE)
    processor.save_pretrained(folder)
    # A third smaller without indentation; it is what most of the repository's demo would weigh.
    tokenizer_json = folder / "tokenizer.json"
    tokenizer_json.write_text(
        json.dumps(json.loads(tokenizer_json.read_text("utf-8")), ensure_ascii=False, separators=(",", ":")), "utf-8"
    )
