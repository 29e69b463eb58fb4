"""The text of a sample as it is trained: runs of trained and untrained tokens, and each image as one piece.

prompt    <|im_start|>user\\n
image     [image 1: 320 × 240, 66 tokens]
prompt    What is it?<|im_end|>\\n<|im_start|>assistant\\n
response  A cat.<|im_end|>
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from packing_udfs.published import pictures
from packing_udfs.walk import slices

__all__ = ["COLOURS", "MARKS", "Decode", "as_marked", "pieces", "printable"]

Decode = Callable[[list[int]], str]  # token ids to text
Marks = Mapping[str, tuple[str, str]]  # what stands before and behind a piece of a kind

COLOURS: Marks = {"response": ("\x1b[1;36m", "\x1b[0m"), "image": ("\x1b[33m", "\x1b[0m"), "prompt": ("", "")}
MARKS: Marks = {"response": ("«", "»"), "image": ("", ""), "prompt": ("", "")}


def pieces(
    ids: np.ndarray, labels: np.ndarray, images: Sequence[Mapping[str, Any]], token: int | None, decode: Decode
) -> Iterator[dict[str, str]]:
    """The pieces of a sample, {"kind": "prompt", "response" or "image", "text"} each.

    `images`: number, height, width and num_tokens of each; `token`: their placeholder, None where it is not known.
    """
    placeholders = np.flatnonzero(ids == (-1 if token is None else token))
    at = 0
    for image, part in zip(images, slices([image["num_tokens"] for image in images]), strict=True):
        if part.stop > len(placeholders):
            break  # jobs.validate reports it
        start, stop = int(placeholders[part.start]), int(placeholders[part.stop - 1]) + 1
        yield from _text(ids[at:start], labels[at:start], decode)
        size = f"{image['width']} × {image['height']}, {stop - start:,} tokens"
        yield {"kind": "image", "text": f"[image {image['number']}: {size}]"}
        at = stop
    yield from _text(ids[at:], labels[at:], decode)


def _text(ids: np.ndarray, labels: np.ndarray, decode: Decode) -> Iterator[dict[str, str]]:
    at = 0
    for is_trained, num_tokens in pictures.runs((labels >= 0).astype(np.int8)):
        text = decode(ids[at : at + num_tokens].tolist())
        yield {"kind": "response" if is_trained else "prompt", "text": text}
        at += num_tokens


def as_marked(found: Iterable[Mapping[str, str]], marks: Marks = MARKS) -> str:
    """Pieces as one text for a terminal: what is trained stands between its marks."""
    return "".join(f"{marks[p['kind']][0]}{printable(p['text'])}{marks[p['kind']][1]}" for p in found)


def printable(text: str) -> str:
    """Text without control characters, which a terminal would obey."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", text)
