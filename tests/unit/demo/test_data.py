"""The demo's data and processor as they are shipped, and that the script beside the tests still makes them."""

import hashlib
import io
import json
import math
import os
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps
from transformers import AutoProcessor, Idefics3Processor

pytest.importorskip("matplotlib", reason="the demo's charts and fonts come from matplotlib")

sys.path.insert(0, str(Path(__file__).parents[3]))  # `tests` is no installed package
from tests.demo import build, flaws

IMAGE_TOKENS_PER_TILE = 64


@pytest.fixture(scope="module")
def processor() -> Idefics3Processor:
    return AutoProcessor.from_pretrained(build.DEMO / "processor")


@pytest.fixture(scope="module")
def rows() -> dict[str, list[dict]]:
    return {config: build.read_rows(build.DEMO / "source" / config) for config in build.NUM_FILES}


@pytest.fixture(scope="module")
def good_rows(rows) -> list[dict]:
    return [row for config in rows for row in rows[config][: -flaws.NUM_FLAWS[config]]]


def upright_size(image: dict) -> tuple[int, int]:
    """Width and height after EXIF orientation."""
    return ImageOps.exif_transpose(Image.open(io.BytesIO(image["bytes"]))).size


def num_tiles(width: int, height: int) -> int:
    """Tiles of 512 px once the longest edge is 2048 px, and one more for the whole picture.

    The short edge is scaled, cut to an integer and made even: 640×480 is 2048×1536, so 4×3 tiles and one.
    """
    short = int(2048 * min(width, height) / max(width, height))
    return 4 * math.ceil((short + short % 2) / 512) + 1


def test_tile_count_by_hand():
    assert [num_tiles(*size) for size in [(640, 480), (100, 100), (1900, 400), (1200, 1600)]] == [13, 17, 5, 13]


def messages_of(row: dict) -> list[dict]:
    messages = []
    for i, turn in enumerate(row["texts"]):
        pictures = row["images"] if i == 0 else []
        opened = [ImageOps.exif_transpose(Image.open(io.BytesIO(image["bytes"]))) for image in pictures]
        content = [{"type": "image", "image": image.convert("RGBA").convert("RGB")} for image in opened]
        messages.append({"role": "user", "content": [*content, {"type": "text", "text": turn["user"]}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": turn["assistant"]}]})
    return messages


def encode(processor, messages: list[dict]) -> tuple[list[int], list[int]]:
    """Token ids and the mask of what the assistant says."""
    encoded = processor.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    return encoded["input_ids"][0], encoded["assistant_masks"][0]


def assert_encodes(processor, row: dict) -> None:
    ids, mask = encode(processor, messages_of(row))
    tiles = sum(num_tiles(*upright_size(image)) for image in row["images"])
    assert ids.count(processor.image_token_id) == IMAGE_TOKENS_PER_TILE * tiles
    said = processor.tokenizer.decode([token for token, is_said in zip(ids, mask, strict=True) if is_said])
    # A blank after "Assistant:" is part of the first word's token, or a token of its own that is not marked.
    answers = [answer.removeprefix(" ") for answer in said.split("<end_of_utterance>")]
    assert answers == [*(turn["assistant"] for turn in row["texts"]), ""]


def test_schema_is_that_of_finevision_with_a_license():
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    turn = pa.struct([("user", pa.string()), ("assistant", pa.string())])
    ratings = ["relevance", "image_correspondence", "visual_dependency", "formatting"]
    expected = pa.schema(
        [("images", pa.list_(image)), ("texts", pa.list_(turn)), ("source", pa.string())]
        + [(f"{rating}_ratings", pa.list_(pa.int64())) for rating in ratings]
        + [(f"{rating}_min", pa.int64()) for rating in ratings]
        + [("license", pa.string())]
    )
    files = sorted((build.DEMO / "source").glob("*/*.parquet"))
    assert len(files) == 5
    for file in files:
        assert pq.read_schema(file).remove_metadata().equals(expected), file


def test_size_stays_small():
    sizes = {file: file.stat().st_size for file in build.DEMO.rglob("*") if file.is_file()}
    assert sum(size for file, size in sizes.items() if file.suffix == ".parquet") < 2_600_000
    assert sum(sizes.values()) < 4_000_000


def test_every_row_names_an_open_license(rows):
    licenses = Counter(license for config in rows for row in rows[config] for license in row["license"].split(" AND "))
    assert set(licenses) == {"Apache-2.0", "BSD-3-Clause", "CC0-1.0", "CC-BY-2.0", "MIT", "public-domain"}


def test_variety(good_rows):
    images = [image for row in good_rows for image in row["images"]]
    opened = [Image.open(io.BytesIO(image["bytes"])) for image in images]
    sizes = [upright_size(image) for image in images]
    assert {num_tiles(*size) for size in sizes} == {5, 9, 13, 17}
    assert len({(w > h, num_tiles(w, h)) for w, h in sizes}) >= 6
    assert len({sum(num_tiles(*upright_size(image)) for image in row["images"]) for row in good_rows}) >= 10
    assert {image.format for image in opened} == {"JPEG", "PNG", "WEBP"}
    assert sum(image.getexif().get(0x0112, 1) == 6 for image in opened) == 5
    assert sum(image.mode == "P" and "transparency" in image.info for image in opened) >= 1
    assert sum(image.mode == "L" for image in opened) >= 1
    num_images = Counter(len(row["images"]) for row in good_rows)
    assert set(num_images) == {0, 1, 2, 3, 4}
    assert 0.12 < num_images[0] / len(good_rows) < 0.18
    assert {len(row["texts"]) for row in good_rows} == {1, 2, 3, 4, 5, 6}
    assert min(map(min, sizes)) == 44
    assert max(map(max, sizes)) == 1900


def test_ratings_have_one_value_a_turn_and_their_minimum(good_rows):
    lowest = Counter()
    for row in good_rows:
        for rating in flaws.RATINGS:
            values = row[f"{rating}_ratings"]
            if values is None:
                assert not row["images"]
                assert row[f"{rating}_min"] is None
                continue
            assert len(values) == len(row["texts"])
            assert set(values) <= {1, 3, 4, 5}
            assert row[f"{rating}_min"] == min(values)
        lowest[max(row["relevance_ratings"]) == 1 and len(row["texts"]) > 1] += min(row["relevance_ratings"]) == 1
    assert lowest[False] >= 10
    assert lowest[True] >= 1


def test_flaws_are_the_ones_of_the_readme(rows):
    pictures, pages = rows["photos_and_drawings"], rows["charts_and_pages"]
    for config, of_config in rows.items():
        copies = [i for i, row in enumerate(of_config) if row["images"] and row["images"] == of_config[12]["images"]]
        assert len(copies) == 2
        assert len({i % build.NUM_FILES[config] for i in copies}) == 2, "in different files"
        assert of_config[copies[0]]["texts"] == of_config[copies[1]]["texts"]
    for row in (pictures[-3], pictures[-1]):
        with pytest.raises(OSError):  # noqa: PT011  Pillow's message depends on its version
            Image.open(io.BytesIO(row["images"][0]["bytes"]))
    assert pictures[-2]["images"] == [{"bytes": None, "path": "path_without_bytes.jpg"}]
    assert pages[-2]["texts"] is None


def test_lengths(processor, good_rows, rows):
    text_only = [row for row in good_rows if not row["images"]]
    lengths = [len(encode(processor, messages_of(row))[0]) for row in text_only]
    assert min(lengths) < 40
    assert 3_000 < max(lengths) < 4_096
    assert len(encode(processor, messages_of(rows["charts_and_pages"][-1]))[0]) > 8_192


def test_processor_on_one_row_of_each_kind(processor, good_rows):
    """No picture, one on its side, one with a transparent palette, two pictures: the least work of each kind."""

    def first(holds) -> dict:
        by_work = sorted(good_rows, key=lambda row: sum(num_tiles(*upright_size(image)) for image in row["images"]))
        return next(row for row in by_work if holds([Image.open(io.BytesIO(i["bytes"])) for i in row["images"]]))

    for holds in (
        lambda images: not images,
        lambda images: images and images[0].getexif().get(0x0112) == 6,
        lambda images: images and images[0].mode == "P" and "transparency" in images[0].info,
        lambda images: len(images) == 2,
    ):
        assert_encodes(processor, first(holds))


@pytest.mark.slow
def test_processor_on_every_good_row(processor, good_rows):
    for row in good_rows:
        assert_encodes(processor, row)


def test_counts_from_sizes_agree_with_the_tiles(processor, good_rows):
    """What is counted without pixels: 64 tokens and a marker pair a tile, line ends, and a closing marker."""
    sizes = {upright_size(image) for row in good_rows for image in row["images"]}
    assert len(sizes) > 80
    for width, height in sizes:
        counted = processor.image_processor.get_number_of_image_patches(height, width)
        assert counted[0] == num_tiles(width, height), (width, height)


def test_chat_template_forms(processor):
    """A system prompt, strings for content and lists of parts give the same text."""
    as_strings = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because."},
    ]
    as_parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in as_strings]
    expected = (
        "<|im_start|>System: Be brief.<end_of_utterance>\nUser: Why?<end_of_utterance>\n"
        "Assistant: Because.<end_of_utterance>\n"
    )
    for messages in (as_strings, as_parts):
        assert processor.apply_chat_template(messages) == expected
    prompt = processor.apply_chat_template(as_parts[:2], add_generation_prompt=True)
    assert prompt == expected[: expected.index(" Because.")]
    with_image = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Why?"}]}]
    assert processor.apply_chat_template(with_image) == "<|im_start|>User:<image>Why?<end_of_utterance>\n"


def test_tokenizer(processor, rows):
    tokenizer = processor.tokenizer
    assert len(tokenizer) >= 8_000
    texts = [text for config in rows for row in rows[config] for turn in row["texts"] or [] for text in turn.values()]
    texts += [
        "",
        " leading and trailing ",
        "tabs\tand\r\nlines\n\n",
        "Ελληνικά 日本語 العربية हिन्दी 🦜👩‍👩‍👧",
        "\x00\x7f\ufeff",
        "e\u0301 é",
    ]
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    english = (  # with rarer words: 3.76 characters a token, and 3.22 with half the vocabulary
        "Beyond the harbour, fishermen mended their nets while gulls wheeled overhead, and the smell of tar drifted "
        "through the narrow streets towards the marketplace."
    )
    assert len(english) / len(tokenizer(english)["input_ids"]) > 3.5


def test_special_tokens_are_one_token_each(processor):
    tokenizer = processor.tokenizer
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<end_of_utterance>"]
    special += ["<fake_token_around_image>", "<image>", "<global-img>"]
    special += [f"<row_{row}_col_{col}>" for row in range(1, 7) for col in range(1, 7)]
    ids = [tokenizer(token)["input_ids"] for token in special]
    assert all(len(one) == 1 for one in ids)
    assert len({one[0] for one in ids}) == 43
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<end_of_utterance>")
    assert (tokenizer.pad_token, tokenizer.unk_token) == ("<|im_end|>", "<|endoftext|>")


@pytest.mark.parametrize("config", build.NUM_FILES)
def test_datasets_shows_images(config, rows, tmp_path):
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(str(build.DEMO / "source" / config), split="train", cache_dir=str(tmp_path))
    assert loaded.features["images"] == datasets.List(datasets.Image())
    assert loaded.num_rows == len(rows[config])
    assert loaded[0]["images"][0].size == Image.open(io.BytesIO(rows[config][0]["images"][0]["bytes"])).size


def digests(folder: Path) -> dict[str, str]:
    files = [*folder.glob("source/*/*.parquet"), *folder.glob("processor/*"), folder / "versions.json"]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


@pytest.mark.slow
def test_rebuild_gives_the_same_bytes(tmp_path):
    """Nothing from outside is needed. With other package versions than the shipped ones, two builds are compared."""
    build.build(tmp_path / "first")
    reference = build.DEMO
    if build.versions() != json.loads((build.DEMO / "versions.json").read_text()):
        build.build(tmp_path / "second")
        reference = tmp_path / "second"
    assert len(digests(reference)) == 10
    assert digests(tmp_path / "first") == digests(reference)


@pytest.mark.slow
def test_rows_cut_from_their_source_are_the_shipped_ones():
    folder = os.environ.get("DEMO_VQA_MIX")
    if not folder:
        pytest.skip("DEMO_VQA_MIX does not name the folder of Parquet files that rows are cut from")
    expected = build._kept_rows(build.DEMO, build.cut.SOURCES)
    cut_rows = build.cut.cut_rows(Path(folder))
    for config in build.NUM_FILES:
        for cut_row, row in zip(cut_rows[config], expected[config], strict=True):
            assert (cut_row["texts"], cut_row["license"]) == (row["texts"], row["license"])
            assert [image["path"] for image in cut_row["images"]] == [image["path"] for image in row["images"]]
