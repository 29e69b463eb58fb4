"""Cutting samples between turns: by hand with a toy encoder, and with the demo's processor."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoProcessor

from packing_udfs.encode.encoder import EncodedSample, EncodeError, Encoder
from packing_udfs.encode.over_length import Shortened, shorten, turns_of

DEMO = Path(__file__).parents[3] / "jobs" / "demo" / "processor"
IMAGE = {"type": "image", "text": None}


def say(role: str, *parts) -> dict:
    return {"role": role, "content": [IMAGE if part is IMAGE else {"type": "text", "text": part} for part in parts]}


def toy_encode(messages, sizes):
    """A token for each character; an image is as many as it is high. Roles are free."""
    results = []
    for sample, given_sizes in zip(messages, sizes, strict=True):
        ids, pending = [], iter(given_sizes)
        for message in sample:
            for part in message["content"]:
                ids += [-next(pending)[0]] if part["type"] == "image" else [ord(c) for c in part["text"]]
        assert next(pending, None) is None
        ids = [i for token in ids for i in ([token] * -token if token < 0 else [token])]
        if not any(message["role"] == "assistant" for message in sample):
            results.append(EncodeError("no_assistant_tokens", ""))
            continue
        array = np.asarray(ids, np.int32)
        results.append(EncodedSample(array, array, np.asarray([h for h, _ in given_sizes], np.int32), len(given_sizes)))
    return results


def cut(policy: str, messages, sizes, seq_len: int) -> Shortened:
    (whole,) = toy_encode([messages], [sizes])
    return shorten(policy, messages, sizes, whole, toy_encode, lambda sample: len(sample.input_ids) <= seq_len)


def spelt(shortened: Shortened) -> list[str]:
    """Each part's characters, images as their height."""
    return ["".join(chr(i) if i > 0 else str(-i) for i in part.encoded.input_ids) for part in shortened.parts]


CHAT = [
    say("system", "S"),
    say("user", IMAGE, "ab"),
    say("assistant", "c"),
    say("user", "de"),
    say("assistant", "f"),
    say("user", IMAGE, "g"),
    say("assistant", "hi"),
]
SIZES = [(2, 9), (3, 9)]  # 1 + (2 + 3) + 3 + (3 + 3) = 15 tokens


def test_turns():
    head, turns = turns_of(CHAT)
    assert head == CHAT[:1]
    assert [(turn.messages, turn.images) for turn in turns] == [(CHAT[1:3], [0]), (CHAT[3:5], []), (CHAT[5:7], [1])]
    called = [say("user", "a"), say("assistant", "b"), say("tool", "c"), say("assistant", "d"), say("user", "e")]
    assert [turn.messages for turn in turns_of(called)[1]] == [called[:4], called[4:]]
    assert turns_of([]) == ([], [])


def test_quarantine_keeps_nothing():
    assert cut("quarantine", CHAT, SIZES, 14) == Shortened([], 3, 15, 2)


def test_truncate():
    short = cut("truncate_turns", CHAT, SIZES, 14)
    assert spelt(short) == ["S22abcdef"]
    assert short.parts[0].messages == CHAT[:5]
    assert (short.parts[0].images, short[1:]) == ([0], (1, 6, 1))
    short = cut("truncate_turns", CHAT, SIZES, 8)
    assert (spelt(short), short[1:]) == (["S22abc"], (2, 9, 1))
    assert cut("truncate_turns", CHAT, SIZES, 5) == Shortened([], 3, 15, 2)


def test_split_carries_images_and_the_system_prompt():
    short = cut("split_turns", CHAT, SIZES, 12)
    assert spelt(short) == ["S22abcdef", "S22333ghi"]
    assert [part.images for part in short.parts] == [[0], [0, 1]]
    assert short.parts[1].messages == [CHAT[0], say("user", IMAGE, IMAGE, "g"), CHAT[6]]
    assert short[1:] == (0, 0, 0)


def test_split_cuts_a_turn_that_fits_nowhere():
    """With both images turn 2 is 1 + 2 + 3 + 3 = 9 tokens; it added 6 to the sample."""
    short = cut("split_turns", CHAT, SIZES, 8)
    assert spelt(short) == ["S22abc", "S22def"]
    assert short[1:] == (1, 6, 1)
    long_first = [say("user", IMAGE, "a" * 20), say("assistant", "b"), say("user", "c"), say("assistant", "d")]
    short = cut("split_turns", long_first, [(2, 2)], 6)
    assert (spelt(short), short[1:]) == (["22cd"], (1, 23, 0))
    assert short.parts[0].messages == [say("user", IMAGE, "c"), say("assistant", "d")]


def test_a_question_without_an_answer_is_no_part():
    chat = [say("user", "abc"), say("assistant", "d"), say("user", "efg")]
    short = cut("split_turns", chat, [], 5)
    assert (spelt(short), short[1:]) == (["abcd"], (1, 3, 0))


def test_the_policy_is_checked():
    with pytest.raises(ValueError, match="over_length: 'cut' is none of quarantine, truncate_turns, split_turns"):
        cut("cut", CHAT, SIZES, 5)


TURN = st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(1, 9))  # images, question, answer


@settings(max_examples=200, deadline=None)
@given(turns=st.lists(TURN, min_size=1, max_size=6), seq_len=st.integers(1, 40), system=st.booleans())
def test_kept_and_cut_are_all_there_is(turns, seq_len, system):
    """Turns are letters a, b, …: each stands whole in one part or is cut, in order, and every part fits."""
    chat, sizes = [say("system", "S")] if system else [], []
    for i, (num_images, question, answer) in enumerate(turns):
        letter = chr(ord("a") + i)
        chat += [say("user", *[IMAGE] * num_images, letter * question), say("assistant", letter * answer)]
        sizes += [(2, 2)] * num_images
    (whole,) = toy_encode([chat], [sizes])
    for policy in ("truncate_turns", "split_turns"):
        short = cut(policy, chat, sizes, seq_len)
        assert all(len(part.encoded.input_ids) <= seq_len for part in short.parts)
        text = "".join(spelt(short)).replace("S", "").replace("2", "")
        assert list(text) == sorted(text)
        kept = [i for i in range(len(turns)) if chr(ord("a") + i) in text]
        for i in kept:
            assert text.count(chr(ord("a") + i)) == sum(turns[i][1:])
        assert len(kept) + short.num_turns_cut == len(turns)
        unique = sum(sum(turns[i][1:]) + 2 * turns[i][0] for i in kept)
        head = 1 if system and 0 in kept else 0
        assert short.num_tokens_cut == len(whole.input_ids) - unique - head
        if policy == "truncate_turns":
            assert kept == list(range(len(kept)))
            assert len(short.parts) <= 1
            if len(kept) < len(turns):  # one more turn would not have fitted
                (more,) = toy_encode(
                    [chat[: system + 2 * len(kept) + 2]], [sizes[: sum(t[0] for t in turns[: len(kept) + 1])]]
                )
                assert len(more.input_ids) > seq_len


def test_with_the_demos_processor():
    encoder = Encoder(AutoProcessor.from_pretrained(DEMO))
    chat = [say("user", IMAGE, "What is it?"), say("assistant", "A cat.")]
    for i in range(6):
        chat += [say("user", f"Question {i}, is it?"), say("assistant", f"It is {i}. " * 40)]
    sizes = [(100, 800)]
    (whole,) = encoder.encode([chat], [sizes])

    def fits(sample: EncodedSample) -> bool:
        return len(sample.input_ids) <= len(whole.input_ids) // 2

    short = shorten("split_turns", chat, sizes, whole, encoder.encode, fits)
    assert len(short.parts) >= 2
    assert short[1:] == (0, 0, 0)
    for part in short.parts:
        assert part.images == [0]
        assert part.encoded.image_num_tokens.tolist() == whole.image_num_tokens.tolist()
        (again,) = encoder.encode([part.messages], [sizes])
        assert again.input_ids.tolist() == part.encoded.input_ids.tolist()
    trained = [part.encoded.labels[part.encoded.labels >= 0] for part in short.parts]
    assert np.concatenate(trained).tolist() == whole.labels[whole.labels >= 0].tolist()
    first = shorten("truncate_turns", chat, sizes, whole, encoder.encode, fits)
    assert (
        first.parts[0].encoded.input_ids.tolist() == whole.input_ids[: len(first.parts[0].encoded.input_ids)].tolist()
    )
    assert first.num_tokens_cut == len(whole.input_ids) - len(first.parts[0].encoded.input_ids)
