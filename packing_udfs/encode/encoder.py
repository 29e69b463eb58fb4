"""Samples to token ids and labels, exactly as the model's processor would make them, without decoding pixels.

For a batch of samples:
1. render the chat template, with the spans of text that are trained (`packing_udfs.encode.chat_template`);
2. tokenise the rendered texts with one placeholder per image, all together (`packing_udfs.encode.token_spans`);
3. splice in, for each placeholder, the ids of what the processor writes for an image of that size
   (`packing_udfs.encode.families`);
4. labels are the ids of tokens that overlap a trained span, and -100 elsewhere.

Splicing is exact where a placeholder and both ends of its replacement are added tokens, at which every tokenizer
cuts its input; `Encoder` checks that, and compares a small conversation with the real processor when it is made.
Rejected: tokenising the expanded text (the same ids, several times the work).

Control tokens that someone typed (`<image>`, `<|im_end|>`) are text. The rendering has marks in their place; a second
tokenizer that knows the marks as added tokens cuts at them, and the ids of the spelt-out token go where a mark was:

    "what is <image>?"  ─▶  "what is \\ue0007\\ue001?"  ─▶  ids("what is ") + [mark 7] + ids("?")
                        ─▶  ids("what is ") + ids("<", "image", ">") + ids("?")
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

from packing_udfs.contract import IGNORE_INDEX
from packing_udfs.encode.chat_template import ChatTemplate, Controls, Rendered, TemplateError
from packing_udfs.encode.families import family_of
from packing_udfs.encode.family import ImageTokens, Size
from packing_udfs.encode.token_spans import SpanTokenizer


class EncodedSample(NamedTuple):
    """One sample as a model reads it."""

    input_ids: np.ndarray  # int32 [num_tokens], image placeholders expanded
    labels: np.ndarray  # int32 [num_tokens], unshifted, -100 where nothing is learned
    image_num_tokens: np.ndarray  # int32 [num_images], placeholders of each image
    vision_cost: int  # tiles or patches of all its images


class EncodeError(NamedTuple):
    """Why a sample cannot be encoded: `reason` is one of `contract.REASONS`."""

    reason: str
    detail: str


class Encoder:
    """Encodes samples for one processor."""

    def __init__(self, processor, train_on: str = "assistant"):
        """`train_on`: "assistant" trains what the assistant says with its ends of turns; "all" all text.

        Raises ValueError, with what to do, for a processor it cannot be exact with.
        """
        self.processor = processor
        self.tokenizer = processor.tokenizer
        if not isinstance(getattr(self.tokenizer, "backend_tokenizer", None), Tokenizer):
            raise ValueError(
                f"processor: its tokenizer {type(self.tokenizer).__name__} is not a fast one, which tells where in the "
                "text a token stands; add a tokenizer.json to its directory"
            )
        self.family = family_of(processor)
        added = self.tokenizer.added_tokens_decoder
        controls = Controls([token.content for token in added.values()])
        self._template = ChatTemplate(processor, controls, train_on)
        self._tokenize = SpanTokenizer(self.tokenizer, controls)
        self._trains_all = train_on == "all"
        self._image_token_id = self.tokenizer.convert_tokens_to_ids(processor.image_token)
        # Added tokens that cut the text where they stand and leave what is beside them alone.
        normalizes = self.tokenizer.backend_tokenizer.normalizer is not None
        self._clean_cuts = {
            i for i, t in added.items() if not (t.lstrip or t.rstrip or t.single_word or (t.normalized and normalizes))
        }
        if self._image_token_id not in self._clean_cuts:
            raise ValueError(
                f"processor: the image placeholder {processor.image_token!r} must be an added token that keeps the "
                "text beside it (lstrip, rstrip, normalized and single_word all false)"
            )
        self._images = lru_cache(maxsize=1 << 13)(self._expand)
        self._check_against_processor()

    def expand(self, size: Size) -> ImageTokens:
        """Ids, placeholders and vision cost of a lone image of `size` (height, width in pixels).

        Raises ValueError for a size that the processor refuses.
        """
        return self._images((tuple(size),))[0]

    def _expand(self, sizes: tuple[Size, ...]) -> list[ImageTokens]:
        images = self.family.expand(sizes) if sizes else []
        for image in images:
            if not {int(image.ids[0]), int(image.ids[-1])} <= self._clean_cuts:
                raise ValueError(
                    f"processor: {type(self.processor).__name__} writes text around an image that is not closed in by "
                    "control tokens, so its ids depend on the words beside it"
                )
        return images

    def encode(
        self,
        messages: Sequence[list[dict]],
        image_sizes: Sequence[list[Size]],
        tools: Sequence[list[dict] | None] | None = None,
    ) -> list[EncodedSample | EncodeError]:
        """Encode samples, one result each, in order.

        `messages`: the chat-template form, content as a str or a list of {"type", "text"}; `image_sizes`: (height,
        width) of each sample's images in the order of their placeholders; `tools`: JSON schemas of the functions that
        each sample's template is told of.
        """
        results: list = [self._render(m, None if tools is None else tools[i]) for i, m in enumerate(messages)]
        whole = [i for i, result in enumerate(results) if isinstance(result, Rendered)]
        tokens = self._tokenize([results[i].text for i in whole], [results[i].spans for i in whole])
        for i, (ids, trained) in zip(whole, tokens, strict=True):
            results[i] = self._splice(results[i].text, ids, trained, tuple(map(tuple, image_sizes[i])))
        return results

    def _render(self, messages: list[dict], tools: list[dict] | None) -> Rendered | EncodeError:
        try:
            return self._template.render(messages, tools)
        except TemplateError as error:
            return EncodeError("template_failed", str(error))

    @cached_property
    def _affixes(self) -> tuple[np.ndarray, np.ndarray]:
        """Special tokens that the tokenizer puts around every text (a BOS, say), as the processor would."""
        if not getattr(self.processor, "text_kwargs", {}).get("add_special_tokens", True):
            return np.empty(0, np.int32), np.empty(0, np.int32)
        bare = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        full = self.tokenizer("a", add_special_tokens=True)["input_ids"]
        at = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
        return np.asarray(full[:at], np.int32), np.asarray(full[at + len(bare) :], np.int32)

    def _splice(
        self, text: str, ids: np.ndarray, trained: np.ndarray, sizes: tuple[Size, ...]
    ) -> EncodedSample | EncodeError:
        """Put ids in place of image placeholders and marks, and turn what is trained into labels."""
        at = np.flatnonzero(ids == self._image_token_id)
        if len(at) != len(sizes):
            return EncodeError("image_count", f"{len(at)} image placeholders in the text for {len(sizes)} images")
        try:
            images = self._images(sizes)
        except ValueError as error:  # the processor's own word on a size or an aspect
            return EncodeError("image_shape", str(error))
        put = [(position, image.ids, False) for position, image in zip(at.tolist(), images, strict=True)]
        if "\ue000" in text:
            put += [(position, spelt, trained[position]) for position, spelt in self._tokenize.spell_out(ids)]
        if put:
            ids, trained = _put(ids, trained, sorted(put, key=lambda item: item[0]))
        bos = self.tokenizer.bos_token
        if bos is None or not text.startswith(bos):
            before, after = self._affixes
            ids = np.concatenate([before, ids, after])
            trained = np.concatenate([np.zeros(len(before), bool), trained, np.full(len(after), self._trains_all)])
        if not trained[1:].any():
            return EncodeError("no_assistant_tokens", "no token is the assistant's, so nothing would be learned")
        labels = np.where(trained, ids, np.int32(IGNORE_INDEX))
        labels[0] = IGNORE_INDEX  # the first token has no predecessor in its own sample
        counts = np.asarray([image.num_placeholders for image in images], np.int32)
        return EncodedSample(ids, labels, counts, sum(image.vision_cost for image in images))

    def _check_against_processor(self) -> None:
        """Raise ValueError unless a small conversation comes out as the processor itself makes it from pixels.

        It finds a family, a template or a tokenizer that this code misunderstands before a job runs, not after.
        """
        sizes = [(32, 250), (250, 32)]  # flat and tall: few tiles in every family
        text = {"type": "text", "text": "Is it so, in 1 or 2 words?\n\n Ünïcödé 漢字"}
        placed = [[{"type": "image"}, text], [{"type": "image"}, {"type": "image"}, text]]
        for content, given in zip(placed, ([sizes[0]], sizes), strict=True):
            answers = [{"role": "assistant", "content": [{"type": "text", "text": a}]} for a in ("It is so.", "Yes.")]
            follow_up = {"role": "user", "content": [{"type": "text", "text": "Sure?"}]}
            messages = [{"role": "user", "content": content}, answers[0], follow_up, answers[1]]
            (ours,) = self.encode([messages], [given])
            if isinstance(ours, EncodeError):
                raise ValueError(f"processor: a plain conversation cannot be encoded: {ours.reason}: {ours.detail}")
            ids, mask = self._real(messages, given)
            name = type(self.processor).__name__
            if ours.input_ids.tolist() != ids:
                raise ValueError(f"processor: {name} makes other tokens of a small conversation than this package")
            if mask is not None and (ours.labels[1:] != IGNORE_INDEX).tolist() != mask[1:]:
                raise ValueError(f"processor: {name} marks other tokens as the assistant's than this package")

    def _real(self, messages: list[dict], sizes: list[Size]) -> tuple[list[int], list[bool] | None]:
        """Ids, and which are the assistant's where the template says so, from the real processor on blank images."""
        blanks = [Image.new("RGB", (width, height)) for height, width in sizes]
        pending = iter(blanks)
        chat = [
            {**m, "content": [{**p, "image": next(pending)} if p["type"] == "image" else p for p in m["content"]]}
            for m in messages
        ]
        with_mask = self._template.marks_generation and not self._trains_all
        out = self.processor.apply_chat_template(
            [chat], chat_template=self._template.source, tokenize=True, return_dict=True,
            return_assistant_tokens_mask=with_mask,
        )  # fmt: skip
        ids = np.asarray(out["input_ids"]).reshape(-1).tolist()
        return ids, np.asarray(out["assistant_masks"]).reshape(-1).astype(bool).tolist() if with_mask else None


def _put(
    ids: np.ndarray, trained: np.ndarray, put: list[tuple[int, np.ndarray, bool]]
) -> tuple[np.ndarray, np.ndarray]:
    """`ids` and their mask with other ids, trained or not, in place of the tokens at some positions."""
    chunks, masks, last = [], [], 0
    for position, new, is_trained in put:
        chunks += [ids[last:position], new]
        masks += [trained[last:position], np.full(len(new), is_trained)]
        last = position + 1
    return np.concatenate([*chunks, ids[last:]]), np.concatenate([*masks, trained[last:]])
