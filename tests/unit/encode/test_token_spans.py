"""Tokens and spans by lengths equal those by offsets, for tokenizers of several kinds."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, processors
from transformers import PreTrainedTokenizerFast

from packing_udfs.encode.chat_template import Controls
from packing_udfs.encode.token_spans import SpanTokenizer

TOKENIZER = Path(__file__).parents[3] / "jobs" / "demo" / "processor" / "tokenizer.json"


def tokenizer(kind: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer.from_file(str(TOKENIZER))
    if kind == "nfc":
        backend.normalizer = normalizers.NFC()
    elif kind == "lowercase":
        backend.normalizer = normalizers.Lowercase()
    elif kind == "trimmed offsets":
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
    elif kind == "greedy added token":
        backend.add_special_tokens([AddedToken("<pad>", normalized=False, lstrip=True, rstrip=True)])
    elif kind == "truncating":
        backend.enable_truncation(5)
        backend.enable_padding(length=64)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


KINDS = ("plain", "nfc", "lowercase", "trimmed offsets", "greedy added token", "truncating")
BY_LENGTHS = {"plain", "nfc", "greedy added token", "truncating"}


@cache
def made(kind: str) -> tuple[PreTrainedTokenizerFast, SpanTokenizer]:
    reference = tokenizer(kind)
    return reference, SpanTokenizer(reference, Controls(["<image>", "<pad>"]))


def expected(reference: PreTrainedTokenizerFast, text: str, spans) -> tuple[list[int], list[bool]]:
    """Ids, and the tokens that overlap a span, by transformers' offsets."""
    out = reference(text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, padding=False)
    return out["input_ids"], [any(s < b and e > a for a, b in spans) for s, e in out["offset_mapping"]]


PIECES = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        [" ", "\n\n", "  yes ", "e\u0301", "é", "漢字", "🙂", "Hello", " World", "<image>", " <pad>  ", "<|im_end|>"]
    ),
)


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(st.lists(PIECES, max_size=5), min_size=1, max_size=3), kind=st.sampled_from(KINDS))
def test_tokens_and_spans_are_those_of_the_offsets(pieces, kind):
    """Every other piece of a text is a span, empty ones included."""
    reference, tokenize = made(kind)
    texts, spans = [], []
    for parts in pieces:
        ends = np.cumsum([0, *map(len, parts)]).tolist()
        texts.append("".join(parts))
        spans.append(list(zip(ends[1:-1:2], ends[2::2], strict=True)))
    for text, its_spans, (ids, in_span) in zip(texts, spans, tokenize(texts, spans), strict=True):
        want_ids, want = expected(reference, text, its_spans)
        assert ids.tolist() == want_ids
        assert in_span.tolist() == want


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_used_where_they_are_the_offsets(kind):
    _, tokenize = made(kind)
    assert (tokenize._num_bytes is not None) is (kind in BY_LENGTHS)


def test_a_text_whose_lengths_do_not_add_up_is_read_by_offsets():
    """NFC makes one é of e and an accent (2 bytes of 3); the greedy token takes in the spaces beside it."""
    for kind, text in (("nfc", "e\u0301 a"), ("greedy added token", "a <pad> b")):
        _, tokenize = made(kind)
        ids = np.asarray(tokenize._backend.encode(text, add_special_tokens=False).ids)
        assert tokenize._by_lengths(ids, text, []) is None
        assert tokenize([text], [[]])[0].ids.tolist() == ids.tolist()


def test_marks_are_spelt_out():
    reference, tokenize = made("plain")
    ((ids, in_span),) = tokenize(["a \ue0000\ue001 b"], [[(2, 5)]])
    ((position, spelt),) = tokenize.spell_out(ids)
    assert in_span.tolist() == [i == position for i in range(len(ids))]
    assert reference.decode(spelt) == "<image>"
    assert reference.convert_tokens_to_ids("<image>") not in spelt
