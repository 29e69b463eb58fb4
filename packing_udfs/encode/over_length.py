"""What to do with a sample that is too long for a pack: leave it out, end it early, or make several samples of it.

Cuts fall only between turns, so no answer loses its end and no image any of its tokens. A turn is what others say and
the assistant's answer. System messages at the start belong to no turn and stay with every part.

    quarantine       nothing is kept
    truncate_turns   the longest run of turns from the start that fits
    split_turns      runs of turns, each as long as fits; a turn that does not fit alone is cut

A later part may speak of images before it. So in `split_turns` all images of earlier turns stand before its first
words, and their bytes are stored once more. With seq_len 10, an image of 3 tokens and turns of 3:

    [image turn0 turn1 turn2]  (12)  ─▶  [image turn0 turn1] (9), [image turn2] (6)

A part's length comes from encoding it, log₂(turns) times a part, because templates treat first and last turns
differently. Rejected: cutting at a token, which leaves answers without an end and images without their tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

from packing_udfs.config import OverLength
from packing_udfs.encode.encoder import EncodedSample, EncodeError

__all__ = ["Shortened", "shorten", "turns_of"]

Encode = Callable[[list[list[dict]], list[list[tuple[int, int]]]], list[EncodedSample | EncodeError]]


class Part(NamedTuple):
    """A sample made of some turns of another."""

    messages: list[dict]
    images: list[int]  # which of the sample's images, in the order of their placeholders
    encoded: EncodedSample


class Shortened(NamedTuple):
    """What is kept of a sample, in order, and what is cut."""

    parts: list[Part]
    num_turns_cut: int
    num_tokens_cut: int  # of the whole sample, in no part; images that are repeated count once
    num_images_cut: int  # in no part


class Turn(NamedTuple):
    messages: list[dict]
    images: list[int]


def shorten(
    policy: OverLength,
    messages: list[dict],
    sizes: Sequence[tuple[int, int]],
    encoded: EncodedSample,
    encode: Encode,
    fits: Callable[[EncodedSample], bool],
) -> Shortened:
    """Parts of a sample that fit in a pack.

    `encoded` is the whole sample and `encode` is `Encoder.encode`. `fits` says whether an encoded sample is within all
    budgets. Raises ValueError for an unknown policy.
    """
    if policy not in get_args(OverLength):
        raise ValueError(f"over_length: {policy!r} is none of {', '.join(get_args(OverLength))}")
    sample = _Sample(*turns_of(messages), sizes, encoded, encode)
    num_turns = len(sample.turns)
    if policy == "quarantine":
        return Shortened([], num_turns, len(encoded.input_ids), len(sizes))
    parts, cut, first = [], [], 0
    while first < num_turns:
        found, end = sample.longest_part(first, fits)
        if found is None:
            cut.append(first)
        else:
            parts.append(found)
        first = max(end, first + 1)
        if policy == "truncate_turns":
            cut += range(first, num_turns)
            break
    kept_images = {image for part in parts for image in part.images}
    return Shortened(parts, len(cut), sum(map(sample.num_tokens_of, cut)), len(sizes) - len(kept_images))


def turns_of(messages: list[dict]) -> tuple[list[dict], list[Turn]]:
    """The system messages at the start, and the turns. Each ends with what the assistant says, the last in any case."""
    num_head = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    turns, current, num_images = [], [], 0
    for i, message in enumerate(messages[num_head:], num_head):
        current.append(message)
        is_last = i + 1 == len(messages)
        if is_last or (message["role"] == "assistant" and messages[i + 1]["role"] not in ("assistant", "tool")):
            count = sum(map(_num_images, current))
            turns.append(Turn(current, list(range(num_images, num_images + count))))
            current, num_images = [], num_images + count
    return messages[:num_head], turns


def _num_images(message: dict) -> int:
    content = message["content"]
    return 0 if isinstance(content, str) else sum(part["type"] == "image" for part in content)


@dataclass(frozen=True)
class _Sample:
    """A sample as the system messages at its start and its turns."""

    head: list[dict]
    turns: list[Turn]
    sizes: Sequence[tuple[int, int]]
    encoded: EncodedSample
    encode: Encode

    def longest_part(self, first: int, fits: Callable[[EncodedSample], bool]) -> tuple[Part | None, int]:
        """The part of turns [first, end) with the last end that fits, and this end, by bisection."""
        best, low, high = None, first, len(self.turns)
        while low < high:
            middle = (low + high + 1) // 2
            part = self._part(first, middle)
            if part is not None and fits(part.encoded):
                best, low = part, middle
            else:
                high = middle - 1
        return best, low

    def _part(self, first: int, end: int) -> Part | None:
        """Turns [first, end) after the head, with the images of all earlier turns. None when it cannot be encoded."""
        carried, own = _images(self.turns[:first]), _images(self.turns[first:end])
        chosen = [message for turn in self.turns[first:end] for message in turn.messages]
        messages = self.head + _with_images(chosen, len(carried))
        (result,) = self.encode([messages], [[self.sizes[image] for image in carried + own]])
        return Part(messages, carried + own, result) if isinstance(result, EncodedSample) else None

    def num_tokens_of(self, turn: int) -> int:
        """Tokens that a turn adds to the turns before it. The head counts with the first turn."""
        return self._num_tokens(turn + 1) - (self._num_tokens(turn) if turn else 0)

    def _num_tokens(self, end: int) -> int:
        """Tokens of the turns up to `end`, 0 when they cannot be encoded alone."""
        if end == len(self.turns):
            return len(self.encoded.input_ids)
        part = self._part(0, end)
        return len(part.encoded.input_ids) if part else 0


def _images(turns: Iterable[Turn]) -> list[int]:
    return [image for turn in turns for image in turn.images]


def _with_images(messages: list[dict], num_images: int) -> list[dict]:
    """The messages with more images before the first words."""
    if not num_images:
        return messages
    first, content = messages[0], messages[0]["content"]
    content = [{"type": "text", "text": content}] if isinstance(content, str) else content
    images = [{"type": "image", "text": None}] * num_images
    return [{**first, "content": [*images, *content]}, *messages[1:]]
