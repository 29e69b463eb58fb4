"""Rendered texts to token ids, and which of the tokens lie in spans of characters.

A tokenizer that keeps offsets tells where each token stands, and takes a third longer for it. With a byte-level
vocabulary the lengths of the tokens tell the same: token i covers the bytes between the sums of the lengths before it
and up to it. That is used where the lengths of a text's tokens add up to its bytes; where they do not (a normalizer
changed the text, an added token took in the spaces beside it), the text is tokenised again with offsets, and so are
the texts of other vocabularies.

Typed control tokens come as marks (`packing_udfs.encode.chat_template`), which only a copy of the tokenizer knows, as
added tokens. Both tokenizers are the fast one of the `tokenizers` library, without the tokens that it puts around
every text.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple
from unicodedata import is_normalized

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer, decoders, normalizers

from packing_udfs.encode.chat_template import Controls, Span

_MARK_START = "\ue000"


class Tokens(NamedTuple):
    """The tokens of a text."""

    ids: np.ndarray  # int32 [num_tokens]
    in_span: np.ndarray  # bool [num_tokens]: starts before the end of a span and ends after its start


class SpanTokenizer:
    """Tokenises texts as `tokenizer` (a fast one of transformers) does, knowing `controls`."""

    def __init__(self, tokenizer, controls: Controls):
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        # Settings that a tokenizer.json may carry and that a processor's call overrides.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = False
        self._controls = controls

    def __call__(self, texts: Sequence[str], spans: Sequence[list[Span]]) -> list[Tokens]:
        """The tokens of each text, with its spans (in characters, disjoint and in order)."""
        results: list[Tokens | None] = [None] * len(texts)
        plain = [i for i, text in enumerate(texts) if _MARK_START not in text]
        if plain and self._num_bytes is not None:
            encodings = self._backend.encode_batch_fast([texts[i] for i in plain], add_special_tokens=False)
            for i, encoding in zip(plain, encodings, strict=True):
                results[i] = self._by_lengths(np.asarray(encoding.ids, np.int32), texts[i], spans[i])
        for marked in (False, True):
            rest = [i for i, done in enumerate(results) if done is None and (_MARK_START in texts[i]) is marked]
            if rest:
                backend = self._marked_backend if marked else self._backend
                encodings = backend.encode_batch([texts[i] for i in rest], add_special_tokens=False)
                for i, encoding in zip(rest, encodings, strict=True):
                    results[i] = _by_offsets(encoding, spans[i])
        return results

    def spell_out(self, ids: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """For each mark in a marked text's ids: its position, and the ids of what it stands for as ordinary text."""
        at = np.flatnonzero(np.isin(ids, list(self._spelt_out)))
        return [(position, self._spelt_out[ids[position]]) for position in at.tolist()]

    def _by_lengths(self, ids: np.ndarray, text: str, spans: list[Span]) -> Tokens | None:
        num_bytes = self._num_bytes[ids]
        ends = num_bytes.cumsum()
        starts = ends - num_bytes
        plain = text.isascii()
        total = len(text) if plain else len(text.encode())
        if total != (ends[-1] if len(ends) else 0) or not (plain or self._keeps(text)):
            return None
        if not plain:
            bounds = [0, *(bound for span in spans for bound in span)]
            pieces = [len(text[a:b].encode()) for a, b in pairwise(bounds)]
            at = np.cumsum(pieces).tolist()
            spans = list(zip(at[::2], at[1::2], strict=True))
        in_span = np.zeros(len(ids), bool)
        for start, end in spans:
            in_span[ends.searchsorted(start, "right") : starts.searchsorted(end, "left")] = True
        return Tokens(ids, in_span)

    def _keeps(self, text: str) -> bool:
        return self._backend.normalizer is None or is_normalized("NFC", text)

    @cached_property
    def _num_bytes(self) -> np.ndarray | None:
        """int64 [size of the vocabulary]: bytes of each token; None unless tokens are runs of the text's own bytes."""
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
        # Some post-processors take the spaces off the offsets; spans then follow them.
        encoding = backend.encode(" a  b \n c ", add_special_tokens=False)
        ends = num_bytes[encoding.ids].cumsum().tolist()
        return num_bytes if encoding.offsets == list(zip([0, *ends], ends, strict=False)) else None

    @cached_property
    def _marked_backend(self) -> Tokenizer:
        """A copy of the tokenizer with the marks as added tokens."""
        backend = Tokenizer.from_str(self._backend.to_str())
        backend.add_special_tokens([AddedToken(mark, normalized=False) for mark in self._controls.marks])
        return backend

    @cached_property
    def _spelt_out(self) -> dict[int, np.ndarray]:
        """For the id of each mark, the ids of the control token it stands for, spelt out as ordinary text."""
        backend, spelt = self._backend, {}
        for mark, text in zip(self._controls.marks, self._controls.texts, strict=True):
            # Added tokens are found by `encode` alone, so its stages are run without it.
            text = backend.normalizer.normalize_str(text) if backend.normalizer else text
            words = backend.pre_tokenizer.pre_tokenize_str(text) if backend.pre_tokenizer else [(text, None)]
            ids = [token.id for word, _ in words for token in backend.model.tokenize(word)]
            spelt[self._marked_backend.token_to_id(mark)] = np.asarray(ids, np.int32)
        return spelt


def _by_offsets(encoding: Encoding, spans: list[Span]) -> Tokens:
    offsets = np.asarray(encoding.offsets, np.int64).reshape(-1, 2)
    in_span = np.zeros(len(offsets), bool)
    for start, end in spans:
        in_span |= (offsets[:, 0] < end) & (offsets[:, 1] > start)
    return Tokens(np.asarray(encoding.ids, np.int32), in_span)
