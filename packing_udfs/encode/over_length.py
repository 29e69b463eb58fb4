"""What to do with a sample that is too long for a pack: leave it out, end it early, or make several samples of it.

Cuts fall between turns only, so no answer loses its end and no image any of its tokens. A turn is what others say and
the assistant's answer; system messages at the start belong to no turn and stay with every part.

    quarantine       nothing is kept
    truncate_turns   the longest run of turns from the start that fits
    split_turns      runs of turns, each as long as fits; a turn that fits alone nowhere is cut

A later part is about images that stood before it, so in `split_turns` all images of earlier turns stand before its
first words, and their bytes are stored once more. Worked example, seq_len 10, an image of 3 tokens and turns of 3:

    [image turn0 turn1 turn2]  (12)  ─▶  [image turn0 turn1] (9), [image turn2] (6)

The sizes of parts come from encoding them, log₂(turns) times a part: templates treat first and last turns apart, so
the tokens of turns do not add up. Rejected: cutting at a token, which leaves answers without an end and images without
their tokens.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from packing_udfs.encode.encoder import EncodedSample, EncodeError
from packing_udfs.encode.family import Size

Policy = Literal["quarantine", "truncate_turns", "split_turns"]
POLICIES: tuple[Policy, ...] = ("quarantine", "truncate_turns", "split_turns")
Encode = Callable[[list[list[dict]], list[list[Size]]], list[EncodedSample | EncodeError]]


class Part(NamedTuple):
    """A sample made of some turns of another."""

    messages: list[dict]
    images: list[int]  # which of the sample's images, in the order of their placeholders
    encoded: EncodedSample


class Shortened(NamedTuple):
    """What is left of a sample, in order, and what is not."""

    parts: list[Part]
    num_turns_cut: int
    num_tokens_cut: int  # of the whole sample, in no part; images that are repeated count once
    num_images_cut: int  # in no part


class _Turn(NamedTuple):
    messages: list[dict]
    images: list[int]


def shorten(
    policy: Policy,
    messages: list[dict],
    sizes: Sequence[Size],
    encoded: EncodedSample,
    encode: Encode,
    fits: Callable[[EncodedSample], bool],
) -> Shortened:
    """Parts of a sample that fit in a pack, by `policy`.

    `encoded` is the whole sample, `encode` is `Encoder.encode`, and `fits` says whether what it returns fits
    (`len(sample.input_ids) <= seq_len`, and any other budget). Raises ValueError for a policy that is none.
    """
    if policy not in POLICIES:
        raise ValueError(f"over_length: {policy!r} is none of {', '.join(POLICIES)}")
    head, turns = turns_of(messages)
    if policy == "quarantine":
        return Shortened([], len(turns), len(encoded.input_ids), len(sizes))

    def part(first: int, end: int, carried: list[int]) -> Part | None:
        """Turns [first, end) behind the head, when they can be encoded and fit."""
        chosen = [message for turn in turns[first:end] for message in turn.messages]
        images = carried + [image for turn in turns[first:end] for image in turn.images]
        chosen = head + _with_images(chosen, len(carried))
        (result,) = encode([chosen], [[sizes[image] for image in images]])
        return Part(chosen, images, result) if isinstance(result, EncodedSample) and fits(result) else None

    parts, cut, first = [], [], 0
    while first < len(turns):
        carried = [image for turn in turns[:first] for image in turn.images]
        found, end = _longest(lambda end, first=first, carried=carried: part(first, end, carried), first, len(turns))
        if found is None:
            cut.append(first)
        else:
            parts.append(found)
        first = max(end, first + 1)
        if policy == "truncate_turns":
            cut += range(first, len(turns))
            break
    shown = {image for kept in parts for image in kept.images}
    num_tokens_cut = sum(_num_tokens(turn, head, turns, sizes, encoded, encode) for turn in cut)
    return Shortened(parts, len(cut), num_tokens_cut, len(sizes) - len(shown))


def turns_of(messages: list[dict]) -> tuple[list[dict], list[_Turn]]:
    """The system messages at the start, and the turns: each ends with what the assistant says, the last in any case."""
    num_head = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    turns, current, num_images = [], [], 0
    for i, message in enumerate(messages[num_head:], num_head):
        current.append(message)
        is_last = i + 1 == len(messages)
        if is_last or (message["role"] == "assistant" and messages[i + 1]["role"] not in ("assistant", "tool")):
            count = sum(_num_images(m) for m in current)
            turns.append(_Turn(current, list(range(num_images, num_images + count))))
            current, num_images = [], num_images + count
    return messages[:num_head], turns


def _num_images(message: dict) -> int:
    content = message["content"]
    return 0 if isinstance(content, str) else sum(part["type"] == "image" for part in content)


def _with_images(messages: list[dict], num_images: int) -> list[dict]:
    """The messages with more images before the first words."""
    if not num_images:
        return messages
    first, content = messages[0], messages[0]["content"]
    content = [{"type": "text", "text": content}] if isinstance(content, str) else content
    image = {"type": "image", "text": None}
    return [{**first, "content": [*[image] * num_images, *content]}, *messages[1:]]


def _longest(part: Callable[[int], Part | None], first: int, num_turns: int) -> tuple[Part | None, int]:
    """The part with the last end in (first, num_turns] that fits, and its end, by bisection."""
    best, low, high = None, first, num_turns
    while low < high:
        middle = (low + high + 1) // 2
        found = part(middle)
        if found is None:
            high = middle - 1
        else:
            best, low = found, middle
    return best, low


def _num_tokens(turn: int, head, turns: list[_Turn], sizes, encoded: EncodedSample, encode: Encode) -> int:
    """Tokens that a turn adds to the turns before it, the head counted with the first."""

    def length(end: int) -> int:
        if end == len(turns):
            return len(encoded.input_ids)
        chosen = head + [message for t in turns[:end] for message in t.messages]
        images = [image for t in turns[:end] for image in t.images]
        (result,) = encode([chosen], [[sizes[image] for image in images]])
        return len(result.input_ids) if isinstance(result, EncodedSample) else 0

    return length(turn + 1) - (length(turn) if turn else 0)
