"""Encoding: tokens a second against the bare fast tokenizer on the same texts.

The peer is what nothing can be faster than without being wrong: the tokenizer alone, on the text that the processor
would give it, which an encoder must render first. One process, one thread (a Spark task has one core), CPU time.
Inputs: the demo's conversations without their images (the worst case: all of the text is the tokenizer's work) and
with them (the tokenizer has to read every placeholder, splicing does not).
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
from transformers import AutoProcessor

from packing_udfs.encode.encoder import EncodedSample, Encoder
from packing_udfs.encode.images import ImageError, read_size

DEMO = Path(__file__).parents[2] / "jobs" / "demo"
BATCH = 512
ROUNDS = 5


def run() -> Iterator[dict]:
    """All figures of encoding, one dict each."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    processor = AutoProcessor.from_pretrained(DEMO / "processor")
    encoder = Encoder(processor)
    for name, with_images in (("demo, text alone", False), ("demo", True)):
        messages, sizes = _conversations(with_images)
        yield _tokens_per_second(name, encoder, messages, sizes)
    sizes = [size for of_sample in sizes for size in of_sample]
    seconds = _best(lambda: [encoder.family.expand((size,)) for size in sizes])  # past the encoder's cache
    yield {
        "metric": "size_to_tokens",
        "input": f"demo: {len(sizes)} images",
        "ours": round(seconds / len(sizes) * 1e6, 2),
        "peer": {},
        "unit": "µs/image",
    }


def _conversations(with_images: bool) -> tuple[list[list[dict]], list[list[tuple[int, int]]]]:
    messages, sizes = [], []
    for file in sorted((DEMO / "source").rglob("*.parquet")):
        for row in pq.read_table(file, columns=["images", "texts"]).to_pylist():
            if not row["texts"] or any(None in turn.values() for turn in row["texts"]):
                continue
            try:
                given = [read_size(image["bytes"]) for image in row["images"]] if with_images else []
            except ImageError:
                continue
            chat = []
            for i, turn in enumerate(row["texts"]):
                images = [{"type": "image", "text": None}] * (len(given) if i == 0 else 0)
                chat.append({"role": "user", "content": [*images, {"type": "text", "text": turn["user"]}]})
                chat.append({"role": "assistant", "content": [{"type": "text", "text": turn["assistant"]}]})
            messages.append(chat)
            sizes.append(given)
    return messages, sizes


def _tokens_per_second(name: str, encoder: Encoder, messages: list, sizes: list) -> dict:
    results = encoder.encode(messages, sizes)
    assert all(isinstance(result, EncodedSample) for result in results)
    texts = [encoder.tokenizer.decode(result.input_ids) for result in results]
    num_tokens = sum(len(result.input_ids) for result in results)
    bare = encoder.tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert [list(result.input_ids) for result in results] == bare, "the peer does other work"

    def ours() -> None:
        for start in range(0, len(messages), BATCH):
            encoder.encode(messages[start : start + BATCH], sizes[start : start + BATCH])

    def tokenizer() -> None:
        for start in range(0, len(texts), BATCH):
            encoder.tokenizer(texts[start : start + BATCH], add_special_tokens=False)

    return {
        "metric": "tokens_per_second",
        "input": f"{name}: {len(messages)} samples, {num_tokens} tokens",
        "ours": round(num_tokens / _best(ours)),
        "peer": {"bare fast tokenizer": round(num_tokens / _best(tokenizer))},
        "unit": "tokens/s of CPU time",
    }


def _best(work: Callable[[], object]) -> float:
    """Least CPU seconds of several rounds."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)
