"""Samples to token ids and labels, exactly as the model's processor would make them, without decoding pixels.

For a batch of samples:
1. render the chat template; it marks what the assistant says with `{% generation %}`;
2. tokenise the rendered text with one placeholder per image (batched, the fast tokenizer's own threads);
3. splice in, for each placeholder, the ids of what the processor writes for an image of that size. These ids are
   cached by text: a few hundred distinct tilings serve millions of images;
4. labels are the ids of tokens that overlap an assistant span, and -100 elsewhere.

Splicing is exact because a placeholder and both ends of its replacement are added tokens, at which every tokenizer
cuts its input; `Encoder` checks that. Rejected: tokenising the expanded text (the same ids, several times the work).

Control tokens that a user typed (`<image>`, `<|im_end|>`) are text. Before rendering, each is swapped for a private
mark; after rendering, the text is cut at the marks and the swapped pieces are tokenised with added tokens off:

    user text  "what is <image>?"  ─▶  "what is \\ue0000\\ue001?"  ─▶  ids("what is ") + plain_ids("<image>") + ids("?")
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import jinja2
import numpy as np
from transformers.utils.chat_template_utils import render_jinja_template

from packing_udfs.contract import IGNORE_INDEX
from packing_udfs.families import Size, family_of

_MARK = re.compile("\ue000(\\d+)\ue001")


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


class _Expansion(NamedTuple):
    ids: np.ndarray
    num_placeholders: int
    vision_cost: int


@dataclass
class _Rendered:
    text: str
    spans: list[tuple[int, int]]  # what the assistant says, in characters of `text`
    controls: list[str]  # control tokens that were text, by the number in their mark


class Encoder:
    """Encodes samples for one processor. Raises ValueError for a processor it cannot be exact with."""

    def __init__(self, processor):
        self.processor = processor
        self.tokenizer = processor.tokenizer
        self.family = family_of(processor)
        self._template = _chat_template(processor)
        self._image_token = processor.image_token
        self._image_token_id = self.tokenizer.convert_tokens_to_ids(processor.image_token)
        self._by_text: dict[str, _Expansion] = {}
        # Many sizes share few tilings; sizes are forgotten, tilings are kept.
        self.expand = lru_cache(maxsize=1 << 16)(self._expand)
        added = {token.content: token for token in self.tokenizer.added_tokens_decoder.values()}
        token = added.get(self._image_token)
        if token is None or token.lstrip or token.rstrip or token.normalized:
            raise ValueError(
                f"processor: the image placeholder {self._image_token!r} must be an added token that keeps the text "
                "beside it (lstrip, rstrip and normalized all false)"
            )
        texts = sorted([*added, "\ue000", "\ue001"], key=lambda text: (-len(text), text))
        self._control = re.compile("|".join(re.escape(text) for text in texts if not text.isspace()))

    def _expand(self, size: Size) -> _Expansion:
        """Ids, number of placeholders and vision cost of an image of `size` (height, width in pixels)."""
        image = self.family.expand(size)
        if image.text not in self._by_text:
            ids = np.asarray(self.tokenizer(image.text, add_special_tokens=False)["input_ids"], np.int32)
            num_placeholders = int((ids == self._image_token_id).sum())
            self._by_text[image.text] = _Expansion(ids, num_placeholders, image.vision_cost)
        return self._by_text[image.text]

    def encode(
        self, messages: Sequence[list[dict]], image_sizes: Sequence[list[Size]]
    ) -> list[EncodedSample | EncodeError]:
        """Encode samples, one result each, in order.

        `messages`: the chat-template form, content as a list of {"type", "text"}; `image_sizes`: (height, width) of
        each sample's images in the order of their placeholders.
        """
        rendered = [self._render(sample) for sample in messages]
        pieces, owners = [], []
        for index, sample in enumerate(rendered):
            if isinstance(sample, _Rendered):
                for start, end, control in _pieces(sample):
                    pieces.append((start, end, control))
                    owners.append(index)
        tokens = self._tokenize(
            [rendered[o].text[a:b] if c is None else c for o, (a, b, c) in zip(owners, pieces, strict=True)],
            [control is not None for _, _, control in pieces],
        )
        parts: list[list] = [[] for _ in rendered]
        for owner, (start, _, control), encoding in zip(owners, pieces, tokens, strict=True):
            parts[owner].append(_trained(*encoding, start, control is not None, rendered[owner].spans))
        return [
            sample if isinstance(sample, EncodeError) else self._splice(parts[i], image_sizes[i])
            for i, sample in enumerate(rendered)
        ]

    def _render(self, messages: list[dict]) -> _Rendered | EncodeError:
        controls: list[str] = []

        def mark(match: re.Match) -> str:
            controls.append(match[0])
            return f"\ue000{len(controls) - 1}\ue001"

        try:
            chat = [
                {
                    "role": message["role"],
                    "content": [
                        {"type": "text", "text": self._control.sub(mark, part["text"] or "")}
                        if part["type"] == "text"
                        else {"type": part["type"]}
                        for part in message["content"]
                    ],
                }
                for message in messages
            ]
            texts, spans = render_jinja_template(
                [chat],
                chat_template=self._template,
                return_assistant_tokens_mask=True,
                **self.tokenizer.special_tokens_map,
            )
        except (jinja2.TemplateError, TypeError) as error:
            return EncodeError("template_failed", f"{type(error).__name__}: {error}")
        return _Rendered(texts[0], [tuple(span) for span in spans[0]], controls)

    def _tokenize(self, texts: list[str], plain: list[bool]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids int32 [n], character offsets int64 [n, 2]) of each text; `plain` ones with added tokens off."""
        result: list = [None] * len(texts)
        for is_plain in (False, True):
            chosen = [i for i, value in enumerate(plain) if value is is_plain]
            if not chosen:
                continue
            encoded = self.tokenizer(
                [texts[i] for i in chosen],
                add_special_tokens=False,
                return_offsets_mapping=True,
                return_attention_mask=False,
                split_special_tokens=is_plain,
            )
            for i, ids, offsets in zip(chosen, encoded["input_ids"], encoded["offset_mapping"], strict=True):
                result[i] = np.asarray(ids, np.int32), np.asarray(offsets, np.int64).reshape(-1, 2)
        return result

    @cached_property
    def _affixes(self) -> tuple[np.ndarray, np.ndarray]:
        """Special tokens that the tokenizer puts around every text (a BOS, say), as the processor would."""
        bare = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        full = self.tokenizer("a", add_special_tokens=True)["input_ids"]
        at = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
        return np.asarray(full[:at], np.int32), np.asarray(full[at + len(bare) :], np.int32)

    def _splice(self, parts: list[tuple[np.ndarray, np.ndarray]], sizes: list[Size]) -> EncodedSample | EncodeError:
        """Put the images' ids in place of their placeholders and turn the trained mask into labels."""
        ids = np.concatenate([ids for ids, _ in parts]) if parts else np.empty(0, np.int32)
        trained = np.concatenate([mask for _, mask in parts]) if parts else np.empty(0, bool)
        bos = self.tokenizer.bos_token_id
        if bos is None or not len(ids) or ids[0] != bos:
            before, after = self._affixes
            ids = np.concatenate([before, ids, after])
            trained = np.concatenate([np.zeros(len(before), bool), trained, np.zeros(len(after), bool)])
        at = np.flatnonzero(ids == self._image_token_id)
        if len(at) != len(sizes):
            return EncodeError("image_count", f"{len(at)} image placeholders in the text for {len(sizes)} images")
        images = [self.expand(size) for size in sizes]
        if images:
            chunks, masks, last = [], [], 0
            for position, image in zip(at, images, strict=True):
                chunks += [ids[last:position], image.ids]
                masks += [trained[last:position], np.zeros(len(image.ids), bool)]
                last = position + 1
            ids = np.concatenate([*chunks, ids[last:]])
            trained = np.concatenate([*masks, trained[last:]])
        if not trained[1:].any():
            return EncodeError("no_assistant_tokens", "no token is the assistant's, so nothing would be learned")
        labels = np.where(trained, ids, np.int32(IGNORE_INDEX))
        labels[:1] = IGNORE_INDEX  # the first token has no predecessor in its own sample
        counts = np.asarray([image.num_placeholders for image in images], np.int32)
        return EncodedSample(ids, labels, counts, sum(image.vision_cost for image in images))


def _chat_template(processor) -> str:
    template = processor.chat_template or getattr(processor.tokenizer, "chat_template", None)
    if isinstance(template, dict):
        template = template.get("default")
    if not template:
        raise ValueError("processor: it has no chat template; add chat_template.jinja to its directory")
    if not re.search(r"\{%-?\s*generation\s*-?%\}", template):
        raise ValueError(
            "processor: its chat template does not mark the assistant's words, so labels cannot be made; "
            "put {% generation %} … {% endgeneration %} around them"
        )
    return template


def _pieces(sample: _Rendered):
    """Cut a rendered text at its marks: (start, end, None) for text, (start, end, control token) for a mark."""
    last = 0
    for match in _MARK.finditer(sample.text):
        if match.start() > last:
            yield last, match.start(), None
        yield match.start(), match.end(), sample.controls[int(match[1])]
        last = match.end()
    if last < len(sample.text):
        yield last, len(sample.text), None


def _trained(ids, offsets, start: int, is_control: bool, spans) -> tuple[np.ndarray, np.ndarray]:
    """The piece's ids and which of them overlap an assistant span (a control piece is inside or outside as a whole)."""
    begin, end = offsets[:, 0] + start, offsets[:, 1] + start
    if is_control:
        begin, end = np.full(len(ids), start), np.full(len(ids), start + 1)
    mask = np.zeros(len(ids), bool)
    for a, b in spans:  # a token of width zero (whitespace a tokenizer trimmed) belongs to the span it lies in
        mask |= (begin < b) & ((end > a) | (begin >= a))
    return ids, mask
