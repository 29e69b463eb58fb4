"""The encoder against the demo's processor run with pixels, and against text that pretends to be control tokens."""

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoProcessor

from packing_udfs.contract import IGNORE_INDEX
from packing_udfs.encode.encoder import EncodedSample, EncodeError, Encoder
from packing_udfs.encode.images import decode, read_size

DEMO = Path(__file__).parents[3] / "jobs" / "demo"
END_OF_TURN = "<end_of_utterance>"
SIZE = (30, 40)


@pytest.fixture(scope="module")
def processor():
    return AutoProcessor.from_pretrained(DEMO / "processor")


@pytest.fixture(scope="module")
def encoder(processor):
    return Encoder(processor)


@pytest.fixture(scope="module")
def good_rows() -> list[dict]:
    """The demo's rows but those at the end of a source that are wrong on purpose (see its README)."""
    rows = []
    for source, num_flaws in {"photos_and_drawings": 4, "charts_and_pages": 3}.items():
        tables = [pq.read_table(file) for file in sorted((DEMO / "source" / source).glob("*.parquet"))]
        dealt = [table.select(["images", "texts"]).to_pylist() for table in tables]
        num_rows = sum(map(len, dealt))
        rows += [dealt[i % len(dealt)][i // len(dealt)] for i in range(num_rows - num_flaws)]
    return rows


def chat(turns: list[tuple[str, str]], num_images: int = 0) -> list[dict]:
    """Messages as jobs.adapt makes them: the images stand before the first question."""
    messages = []
    for i, (question, answer) in enumerate(turns):
        images = [{"type": "image", "text": None}] * (num_images if i == 0 else 0)
        messages.append({"role": "user", "content": [*images, {"type": "text", "text": question}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
    return messages


def with_pixels(messages: list[dict], images: list[Image.Image]) -> list[dict]:
    """The same messages for the real processor, each image in its place and no text where there is none."""
    pending = iter(images)
    return [
        {
            "role": message["role"],
            "content": [
                {"type": "image", "image": next(pending)} if part["type"] == "image" else part
                for part in message["content"]
            ],
        }
        for message in messages
    ]


# Tiles and tokens are the same for any interpolation and without normalisation, which take most of the time.
FAST = {"resample": Image.Resampling.NEAREST, "do_rescale": False, "do_normalize": False, "do_pad": False}


def real(processor, messages: list[dict], images: list[Image.Image]) -> tuple[list[int], list[int]]:
    """Ids and labels as the processor makes them from pixels."""
    out = processor.apply_chat_template(
        with_pixels(messages, images),
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
        processor_kwargs=dict(FAST),
    )
    ids, mask = list(out["input_ids"][0]), list(out["assistant_masks"][0])
    labels = [token if trained else IGNORE_INDEX for token, trained in zip(ids, mask, strict=True)]
    return ids, [IGNORE_INDEX, *labels[1:]]


def trained_texts(encoder: Encoder, sample: EncodedSample) -> list[str]:
    """The text of each run of labels, without the space before it.

    The template writes "Assistant: " and a byte-level tokenizer reads that space with the first word of the answer.
    """
    trained = np.flatnonzero(sample.labels != IGNORE_INDEX)
    runs = np.split(trained, np.flatnonzero(np.diff(trained) > 1) + 1)
    return [encoder.tokenizer.decode(sample.labels[run]).removeprefix(" ") for run in runs]


def spoken(turns: list[tuple[str, str]]) -> list[str]:
    """What `trained_texts` should give for a conversation."""
    return [(answer + END_OF_TURN).removeprefix(" ") for _, answer in turns]


def encode_one(encoder: Encoder, messages: list[dict], sizes=()) -> EncodedSample | EncodeError:
    (result,) = encoder.encode([messages], [list(sizes)])
    return result


def test_equals_the_processor_with_pixels_on_every_good_demo_sample(processor, encoder, good_rows):
    assert len(good_rows) == 222
    turns = [[(turn["user"], turn["assistant"]) for turn in row["texts"]] for row in good_rows]
    messages = [chat(t, len(row["images"])) for t, row in zip(turns, good_rows, strict=True)]
    sizes = [[read_size(image["bytes"]) for image in row["images"]] for row in good_rows]
    results = encoder.encode(messages, sizes)
    for row, row_turns, row_messages, result in zip(good_rows, turns, messages, results, strict=True):
        ids, labels = real(processor, row_messages, [decode(image["bytes"]) for image in row["images"]])
        assert result.input_ids.tolist() == ids
        assert result.labels.tolist() == labels
        assert (result.input_ids.dtype, result.labels.dtype) == (np.int32, np.int32)
        assert trained_texts(encoder, result) == spoken(row_turns)
        assert len(result.image_num_tokens) == len(row["images"])
        assert result.image_num_tokens.sum() == ids.count(processor.image_token_id)
        assert result.vision_cost * processor.image_seq_len == result.image_num_tokens.sum()
    assert sum(len(row["images"]) for row in good_rows) > 150


def test_images_stand_in_the_order_of_their_sizes(processor, encoder):
    """A square image of 17 tiles and a flat one of 5, in both orders: tiles are known by their row and column."""
    square, flat = (100, 100), (400, 1900)
    sizes = [square, flat, flat, square]
    result = encode_one(encoder, chat([("Compare.", "No.")], 4), sizes)
    assert result.image_num_tokens.tolist() == [64 * 17, 64 * 5, 64 * 5, 64 * 17]
    assert result.vision_cost == 44
    images = [Image.new("RGB", (width, height)) for height, width in sizes]
    assert result.input_ids.tolist() == real(processor, chat([("Compare.", "No.")], 4), images)[0]


def test_the_first_token_is_never_a_target(encoder):
    for messages in (chat([("Hi", "Hello")]), [{"role": "assistant", "content": [{"type": "text", "text": "Hello"}]}]):
        result = encode_one(encoder, messages)
        assert result.labels[0] == IGNORE_INDEX
        assert (result.labels[1:] >= 0).any()


def test_control_tokens_in_text_are_text(processor, encoder):
    """Every added token, typed by user and assistant, leaves ids of ordinary tokens that spell it."""
    added = [token.content for token in processor.tokenizer.added_tokens_decoder.values()]
    assert {"<image>", "<|im_end|>", END_OF_TURN, "<row_1_col_1>"} <= set(added)
    for token in added:
        result = encode_one(encoder, chat([(f"what is {token}?", f"{token} is a token")], 1), [SIZE])
        plain = encode_one(encoder, chat([("what is it?", "it is a token")], 1), [SIZE])
        special = set(processor.tokenizer.added_tokens_decoder)
        assert [t for t in result.input_ids if t in special] == [t for t in plain.input_ids if t in special]
        assert trained_texts(encoder, result) == [f"{token} is a token{END_OF_TURN}"]
        text = processor.tokenizer.decode(result.input_ids)
        assert f"what is {token}?" in text


TEXT = st.lists(
    st.one_of(
        st.sampled_from(["<image>", "<|im_end|>", END_OF_TURN, "<row_1_col_1>", "<global-img>", "<|im_start|>"]),
        st.sampled_from(["\ue000", "\ue001", "\ue0000\ue001", "{{ x }}", "{% generation %}", " ", "\n", "<", "image>"]),
        st.text(max_size=8),
    ),
    max_size=6,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(turns=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3), num_images=st.integers(0, 3))
def test_no_text_makes_or_breaks_a_control_token(encoder, turns, num_images):
    result = encode_one(encoder, chat(turns, num_images), [SIZE] * num_images)
    assert isinstance(result, EncodedSample)
    ids = result.input_ids.tolist()
    assert len(result.image_num_tokens) == num_images
    tokenizer = encoder.tokenizer
    assert ids.count(tokenizer.convert_tokens_to_ids("<global-img>")) == num_images
    assert ids.count(encoder.processor.image_token_id) == result.image_num_tokens.sum()
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 1
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 0
    assert ids.count(tokenizer.convert_tokens_to_ids(END_OF_TURN)) == 2 * len(turns)
    assert trained_texts(encoder, result) == spoken(turns)
    assert (result.labels[result.input_ids == encoder.processor.image_token_id] == IGNORE_INDEX).all()


@settings(max_examples=25, deadline=None)
@given(samples=st.lists(st.tuples(TEXT, TEXT, st.integers(0, 2)), min_size=1, max_size=5))
def test_a_batch_equals_its_samples_one_by_one(encoder, samples):
    messages = [chat([(question, answer)], num_images) for question, answer, num_images in samples]
    sizes = [[SIZE] * num_images for _, _, num_images in samples]
    for together, m, s in zip(encoder.encode(messages, sizes), messages, sizes, strict=True):
        alone = encode_one(encoder, m, s)
        assert together.input_ids.tolist() == alone.input_ids.tolist()
        assert together.labels.tolist() == alone.labels.tolist()


def test_reasons(encoder):
    too_many = encode_one(encoder, chat([("Hi", "Hello")], 2), [SIZE])
    assert (too_many.reason, too_many.detail) == ("image_count", "2 image placeholders in the text for 1 images")
    assert encode_one(encoder, chat([("Hi", "Hello")], 1), [SIZE, SIZE]).reason == "image_count"
    silent = encode_one(encoder, chat([("Hi", "Hello")])[:1])
    assert silent.reason == "no_assistant_tokens"
    odd = encode_one(encoder, [{"role": "user", "content": None}])
    assert odd.reason == "template_failed"


def test_one_bad_sample_leaves_the_others_of_its_batch_alone(encoder):
    good = chat([("Hi", "Hello")], 1)
    results = encoder.encode([good, [{"role": "user", "content": None}], [], good], [[SIZE], [], [], [SIZE]])
    assert [isinstance(result, EncodedSample) for result in results] == [True, False, False, True]
    assert results[0].input_ids.tolist() == results[3].input_ids.tolist()


def test_image_bytes_of_any_kind_are_encoded_by_their_upright_size(encoder):
    """A JPEG on its side (EXIF orientation 6) is encoded as it will be decoded: 40 high, 90 wide."""
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.new("RGB", (40, 90)).save(buffer, "JPEG", exif=exif)
    assert read_size(buffer.getvalue()) == (40, 90)
    result = encode_one(encoder, chat([("Hi", "Hello")], 1), [read_size(buffer.getvalue())])
    assert result.vision_cost == 4 * 2 + 1  # 2048 × 910 px: four tiles wide, two high
