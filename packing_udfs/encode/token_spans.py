"""Rendered texts to token ids, and which tokens lie in given spans of characters.

A tokenizer that keeps offsets knows where each token stands, but takes a third longer. With a byte-level vocabulary the
lengths of the tokens in bytes tell the same, where they add up to the length of the text. Where they do not (a
normalizer changed the text, an added token took in the spaces beside it), and with other vocabularies, the text is
tokenised with offsets.

Typed control tokens come as marks (`packing_udfs.encode.chat_template`). Only a copy of the tokenizer knows the marks,
as added tokens. Both are fast tokenizers of the `tokenizers` library, and add no special tokens around a text.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple
from unicodedata import is_normalized

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer, decoders, normalizers

from packing_udfs.encode.chat_template import MARK_START, Controls, Span

__all__ = ["SpanTokenizer", "Tokens"]


class Tokens(NamedTuple):
    """The tokens of a text."""

    ids: np.ndarray  # int32 [num_tokens]
    in_span: np.ndarray  # bool [num_tokens]: starts before the end of a span and ends after its start


class SpanTokenizer:
    """Tokenises texts as `tokenizer` (a fast one of transformers) does, and knows the marks of `controls`."""

    def __init__(self, tokenizer, controls: Controls):
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        # A tokenizer.json may carry these settings, and a processor's call overrides them.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = False
        self._controls = controls

    def __call__(self, texts: Sequence[str], spans: Sequence[list[Span]]) -> list[Tokens]:
        """The tokens of each text with its spans, which are disjoint and in order."""
        marked = [i for i, text in enumerate(texts) if MARK_START in text]
        plain = [i for i, text in enumerate(texts) if MARK_START not in text]
        found: dict[int, Tokens] = {}
        if plain and self._num_bytes is not None:
            encodings = self._backend.encode_batch_fast([texts[i] for i in plain], add_special_tokens=False)
            for i, encoding in zip(plain, encodings, strict=True):
                tokens = self._by_lengths(np.asarray(encoding.ids, np.int32), texts[i], spans[i])
                if tokens is not None:
                    found[i] = tokens
        for members in ([i for i in plain if i not in found], marked):
            if members:
                backend = self._marked_backend if members is marked else self._backend
                encodings = backend.encode_batch([texts[i] for i in members], add_special_tokens=False)
                found |= {i: _by_offsets(encoding, spans[i]) for i, encoding in zip(members, encodings, strict=True)}
        return [found[i] for i in range(len(texts))]

    def spell_out(self, ids: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """For each mark in a marked text's ids: its position, and the ids of what it stands for as ordinary text."""
        at = np.flatnonzero(np.isin(ids, list(self._spelt_out)))
        return [(position, self._spelt_out[ids[position]]) for position in at.tolist()]

    def _by_lengths(self, ids: np.ndarray, text: str, spans: list[Span]) -> Tokens | None:
        """The tokens by their lengths in bytes, None where these do not add up to the text."""
        assert self._num_bytes is not None
        num_bytes = self._num_bytes[ids]
        ends = num_bytes.cumsum()
        starts = ends - num_bytes
        if text.isascii():
            total = len(text)
        else:
            total = len(text.encode())
            spans = _in_bytes(spans, text)
            if self._backend.normalizer is not None and not is_normalized("NFC", text):
                return None
        if total != (ends[-1] if len(ends) else 0):
            return None
        in_span = np.zeros(len(ids), bool)
        for start, end in spans:
            in_span[ends.searchsorted(start, "right") : starts.searchsorted(end, "left")] = True
        return Tokens(ids, in_span)

    @cached_property
    def _num_bytes(self) -> np.ndarray | None:
        """int64 [size of the vocabulary]: bytes of each token. None unless tokens are runs of the text's own bytes."""
        backend = self._backend
        if not isinstance(backend.decoder, decoders.ByteLevel):
            return None
        if not (backend.normalizer is None or isinstance(backend.normalizer, normalizers.NFC)):
            return None
        vocabulary = backend.get_vocab(with_added_tokens=True)
        num_bytes = np.zeros(max(vocabulary.values()) + 1, np.int64)
        for token, i in vocabulary.items():
            num_bytes[i] = len(token)  # a character of the byte-level alphabet is a byte
        for i, token in backend.get_added_tokens_decoder().items():
            num_bytes[i] = len(token.content.encode())
        # Some post-processors leave the spaces out of the offsets. Spans then follow the offsets.
        encoding = backend.encode(" a  b \n c ", add_special_tokens=False)
        ends = num_bytes[encoding.ids].cumsum().tolist()
        return num_bytes if encoding.offsets == list(pairwise([0, *ends])) else None

    @cached_property
    def _marked_backend(self) -> Tokenizer:
        """A copy of the tokenizer with the marks as added tokens."""
        backend = Tokenizer.from_str(self._backend.to_str())
        backend.add_special_tokens([AddedToken(mark, normalized=False) for mark in self._controls.marks])
        return backend

    @cached_property
    def _spelt_out(self) -> dict[int, np.ndarray]:
        """For the id of each mark, the ids of its control token, spelt out as ordinary text."""
        backend, spelt = self._backend, {}
        for mark, text in zip(self._controls.marks, self._controls.texts, strict=True):
            # Only `encode` looks for added tokens, so its other stages run without it.
            text = backend.normalizer.normalize_str(text) if backend.normalizer else text
            words = backend.pre_tokenizer.pre_tokenize_str(text) if backend.pre_tokenizer else [(text, None)]
            ids = [token.id for word, _ in words for token in backend.model.tokenize(word)]
            spelt[self._marked_backend.token_to_id(mark)] = np.asarray(ids, np.int32)
        return spelt


def _in_bytes(spans: list[Span], text: str) -> list[Span]:
    """Spans of characters as spans of bytes."""
    bounds = [0, *(bound for span in spans for bound in span)]
    at = np.cumsum([len(text[start:end].encode()) for start, end in pairwise(bounds)]).tolist()
    return list(zip(at[::2], at[1::2], strict=True))


def _by_offsets(encoding: Encoding, spans: list[Span]) -> Tokens:
    offsets = np.asarray(encoding.offsets, np.int64).reshape(-1, 2)
    in_span = np.zeros(len(offsets), bool)
    for start, end in spans:
        in_span |= (offsets[:, 0] < end) & (offsets[:, 1] > start)
    return Tokens(np.asarray(encoding.ids, np.int32), in_span)
