"""Samples to token ids and labels, exactly as the model's processor makes them, without decoding pixels.

1. Render the chat template, with the spans of text that are trained (`packing_udfs.encode.chat_template`).
2. Tokenise the rendered texts of a batch, with one placeholder per image (`packing_udfs.encode.token_spans`).
3. Replace each placeholder by the ids that the processor writes for the image's size (`packing_udfs.encode.families`).
4. Labels are the ids of tokens that overlap a trained span, and -100 elsewhere.

Step 3 is exact where a placeholder and both ends of its replacement are added tokens, because every tokenizer cuts its
input there. `Encoder` checks that, and compares a small conversation with the real processor when it is made.
Rejected: tokenising the expanded text, which gives the same ids for several times the work.

Control tokens that a person typed (`<image>`, `<|im_end|>`) are text. The rendering has marks in their place. A second
tokenizer knows the marks as added tokens and cuts there, and the ids of the spelt-out token replace each mark:

    "what is <image>?"  ─▶  "what is \\ue0007\\ue001?"  ─▶  ids("what is ") + [mark 7] + ids("?")
                        ─▶  ids("what is ") + ids("<", "image", ">") + ids("?")
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import repeat
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from packing_udfs.contract import IGNORE_INDEX
from packing_udfs.encode.blank_images import blank_images
from packing_udfs.encode.chat_template import MARK_START, ChatTemplate, Controls, Rendered, TemplateError
from packing_udfs.encode.families import family_of
from packing_udfs.encode.family import ImageTokens, Size
from packing_udfs.encode.token_spans import SpanTokenizer, Tokens

__all__ = ["EncodeError", "EncodedSample", "Encoder"]


class EncodedSample(NamedTuple):
    """One sample as a model reads it."""

    input_ids: np.ndarray  # int32 [num_tokens], image placeholders expanded
    labels: np.ndarray  # int32 [num_tokens], unshifted, -100 where nothing is learned
    image_num_tokens: np.ndarray  # int32 [num_images], placeholders of each image
    vision_cost: int  # tiles or patches of all its images


class EncodeError(NamedTuple):
    """Why a sample cannot be encoded. `reason` is one of `contract.REASONS`."""

    reason: str
    detail: str


class Encoder:
    """Encodes samples for one processor."""

    def __init__(self, processor, train_on: str = "assistant"):
        """`train_on`: "assistant" trains what the assistant says with its ends of turns, "all" trains all text.

        Raises ValueError, with what to do, for a processor whose tokens cannot be reproduced exactly.
        """
        self.processor = processor
        self.tokenizer = processor.tokenizer
        if not isinstance(getattr(self.tokenizer, "backend_tokenizer", None), Tokenizer):
            raise ValueError(
                f"processor: its tokenizer {type(self.tokenizer).__name__} is not a fast one, which tells where in the "
                "text a token stands; add a tokenizer.json to its directory"
            )
        self.family = family_of(processor)
        controls = Controls([token.content for token in self.tokenizer.added_tokens_decoder.values()])
        self._template = ChatTemplate(processor, controls, train_on)
        self._tokenize = SpanTokenizer(self.tokenizer, controls)
        self.image_token_id = self.tokenizer.convert_tokens_to_ids(processor.image_token)
        self._clean_cuts = _clean_cuts(self.tokenizer)
        if self.image_token_id not in self._clean_cuts:
            raise ValueError(
                f"processor: the image placeholder {processor.image_token!r} must be an added token that keeps the "
                "text beside it (lstrip, rstrip, normalized and single_word all false)"
            )
        self._images = lru_cache(maxsize=1 << 13)(self._expand)
        flat, tall = Size(32, 250), Size(250, 32)  # few tiles in every family
        self._check_against_processor([flat])
        self._check_against_processor([flat, tall])

    def expand(self, size: tuple[int, int]) -> ImageTokens:
        """What stands for a lone image of this (height, width). Raises ValueError for a size the processor refuses."""
        return self._images((Size(*size),))[0]

    def encode(
        self,
        messages: Sequence[list[dict]],
        image_sizes: Sequence[Sequence[tuple[int, int]]],
        tools: Sequence[list[dict] | None] | None = None,
    ) -> list[EncodedSample | EncodeError]:
        """Encode samples, one result each, in order.

        `messages`: the chat-template form, content as a str or a list of {"type", "text"}; `image_sizes`: (height,
        width) of each sample's images in the order of their placeholders; `tools`: JSON schemas for each template.
        """
        rendered = list(map(self._render, messages, tools or repeat(None)))
        whole = [result for result in rendered if isinstance(result, Rendered)]
        tokens = iter(self._tokenize([result.text for result in whole], [result.spans for result in whole]))
        results: list[EncodedSample | EncodeError] = []
        for result, sizes in zip(rendered, image_sizes, strict=True):
            if isinstance(result, Rendered):
                result = self._encode_tokens(result.text, next(tokens), tuple(Size(*size) for size in sizes))
            results.append(result)
        return results

    def _render(self, messages: list[dict], tools: list[dict] | None) -> Rendered | EncodeError:
        try:
            return self._template.render(messages, tools)
        except TemplateError as error:
            return EncodeError("template_failed", str(error))

    def _expand(self, sizes: tuple[Size, ...]) -> list[ImageTokens]:
        images = self.family.expand(sizes) if sizes else []
        for image in images:
            if not {int(image.ids[0]), int(image.ids[-1])} <= self._clean_cuts:
                raise ValueError(
                    f"processor: {type(self.processor).__name__} writes text around an image that no control tokens "
                    "enclose, so its ids depend on the words beside it"
                )
        return images

    def _encode_tokens(self, text: str, tokens: Tokens, sizes: tuple[Size, ...]) -> EncodedSample | EncodeError:
        """A sample from its rendered text and the tokens of that."""
        at = np.flatnonzero(tokens.ids == self.image_token_id)
        if len(at) != len(sizes):
            return EncodeError("image_count", f"{len(at)} image placeholders in the text for {len(sizes)} images")
        try:
            images = self._images(sizes)
        except ValueError as error:  # the processor refuses a size or an aspect
            return EncodeError("image_shape", str(error))
        new = {i: _uniform(image.ids, False) for i, image in zip(at.tolist(), images, strict=True)}
        if MARK_START in text:
            new |= {i: _uniform(ids, tokens.in_span[i]) for i, ids in self._tokenize.spell_out(tokens.ids)}
        has_affixes = self.tokenizer.bos_token is not None and text.startswith(self.tokenizer.bos_token)
        before, after = (_NO_TOKENS, _NO_TOKENS) if has_affixes else self._affixes
        ids, trained = map(np.concatenate, zip(before, *_replaced(tokens, new), after, strict=True))
        if not trained[1:].any():
            return EncodeError("no_assistant_tokens", "no token is the assistant's, so nothing would be learned")
        labels = np.where(trained, ids, np.int32(IGNORE_INDEX))
        labels[0] = IGNORE_INDEX  # the first token has no predecessor in its own sample
        counts = np.asarray([image.num_placeholders for image in images], np.int32)
        return EncodedSample(ids, labels, counts, sum(image.vision_cost for image in images))

    @cached_property
    def _affixes(self) -> tuple[Tokens, Tokens]:
        """Special tokens that the tokenizer puts around every text (a BOS, say) when the processor calls it."""
        if not getattr(self.processor, "text_kwargs", {}).get("add_special_tokens", True):
            return _NO_TOKENS, _NO_TOKENS
        bare = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        full = self.tokenizer("a", add_special_tokens=True)["input_ids"]
        at = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
        return _uniform(full[:at], False), _uniform(full[at + len(bare) :], self._template.trains_all)

    def _check_against_processor(self, sizes: list[Size]) -> None:
        """Raise ValueError unless a small conversation gives the tokens that the processor makes from pixels.

        This finds a family, template or tokenizer that this code misunderstands before a job runs.
        """
        messages, name = _small_conversation(sizes), type(self.processor).__name__
        (ours,) = self.encode([messages], [sizes])
        if isinstance(ours, EncodeError):
            raise ValueError(f"processor: a plain conversation cannot be encoded: {ours.reason}: {ours.detail}")
        with_mask = self._template.marks_generation
        theirs = self.processor.apply_chat_template(
            [messages], chat_template=self._template.source, tokenize=True, return_dict=True,
            return_assistant_tokens_mask=with_mask,
        )  # fmt: skip
        if not np.array_equal(ours.input_ids, np.ravel(theirs["input_ids"])):
            raise ValueError(f"processor: {name} makes other tokens of a small conversation than this package")
        trained = ours.labels[1:] != IGNORE_INDEX
        if with_mask and not np.array_equal(trained, np.ravel(theirs["assistant_masks"])[1:]):
            raise ValueError(f"processor: {name} marks other tokens as the assistant's than this package")


def _small_conversation(sizes: list[Size]) -> list[dict]:
    """Two questions and answers, with blank images of these sizes before the first question."""
    texts = ("Is it so, in 1 or 2 words?\n\n Ünïcödé 漢字", "It is so.", "Sure?", "Yes.")
    messages = [
        {"role": role, "content": [{"type": "text", "text": text}]}
        for role, text in zip(("user", "assistant") * 2, texts, strict=True)
    ]
    messages[0]["content"][:0] = [{"type": "image", "image": image} for image in blank_images(sizes)]
    return messages


def _clean_cuts(tokenizer) -> set[int]:
    """Ids of the added tokens at which the tokenizer cuts a text, and leaves the text beside them as it is."""
    normalizes = tokenizer.backend_tokenizer.normalizer is not None
    return {
        i
        for i, token in tokenizer.added_tokens_decoder.items()
        if not (token.lstrip or token.rstrip or token.single_word or (token.normalized and normalizes))
    }


def _uniform(ids: Sequence[int] | np.ndarray, in_span: bool) -> Tokens:
    return Tokens(np.asarray(ids, np.int32), np.full(len(ids), in_span))


_NO_TOKENS = _uniform([], False)


def _replaced(tokens: Tokens, new: dict[int, Tokens]) -> Iterator[Tokens]:
    """Runs of the tokens, with others in place of those at the positions of `new`."""
    last = 0
    for position in sorted(new):
        yield Tokens(tokens.ids[last:position], tokens.in_span[last:position])
        yield new[position]
        last = position + 1
    yield Tokens(tokens.ids[last:], tokens.in_span[last:])
