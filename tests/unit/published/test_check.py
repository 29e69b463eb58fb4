"""Packs that break a rule of the contract, one rule at a time, and packs that break none."""

import io

import pyarrow as pa
import pytest
from PIL import Image

from packing_udfs.contract import PACK_SCHEMA
from packing_udfs.encode.family import ImageTokens
from packing_udfs.published.check import MAX_FAULTS, Fault, Limits, check_row_group

TOKEN = 9
MOST = {"seq_len": 8, "max_vision_cost": 4, "max_images_per_pack": 2, "max_images_per_sample": 2}
LIMITS = Limits(pack=MOST, sources=["a", "b"], image_token=TOKEN)


def picture(width: int, height: int) -> dict:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def sound_pack(**changes) -> dict:
    """A sample with an image of two placeholders, and one of text."""
    return {
        "input_ids": [TOKEN, TOKEN, 5, 6, 7, 8],
        "labels": [-100, -100, -100, 6, -100, 8],
        "sample_lengths": [4, 2],
        "sample_num_images": [1, 0],
        "image_num_tokens": [2],
        "image_sizes": [{"height": 3, "width": 4}],
        "sample_ids": [1, 2],
        "sample_sources": ["a", "b"],
        "sample_files": ["a.parquet", "b.parquet"],
        "sample_rows": [7, 0],
        "sample_kept": [None, '{"license":"mit"}'],
        "images": [picture(4, 3)],
        "num_tokens": 6,
        "num_label_tokens": 2,
        "num_images": 1,
        "vision_cost": 3,
    } | changes


def faults(*packs: dict, limits: Limits = LIMITS) -> list[Fault]:
    return list(check_row_group(pa.Table.from_pylist(list(packs), schema=PACK_SCHEMA), limits))


def test_sound_packs():
    assert faults(sound_pack(), sound_pack()) == []


BROKEN = [
    ({"input_ids": [TOKEN, TOKEN, 5, 6, 7]}, "input_ids", "5 values, num_tokens says 6"),
    ({"labels": [-100, -100, -100, 6, -100, 8, 8]}, "labels", "7 values, num_tokens says 6"),
    ({"sample_lengths": [4, 3]}, "sample_lengths", "7 tokens in all samples, num_tokens says 6"),
    ({"sample_lengths": [4, 1, 1]}, "sample_lengths", "3 values, sample_ids has 2"),
    ({"sample_num_images": [1]}, "sample_num_images", "1 values, sample_ids has 2"),
    ({"sample_sources": ["a"]}, "sample_sources", "1 values, sample_ids has 2"),
    ({"sample_num_images": [1, 1]}, "sample_num_images", "2 images in all samples, num_images says 1"),
    ({"images": []}, "images", "0 values, num_images says 1"),
    ({"image_sizes": []}, "image_sizes", "0 values, num_images says 1"),
    ({"image_num_tokens": [2, 2]}, "image_num_tokens", "2 values, num_images says 1"),
    ({"sample_lengths": [6, 0]}, "sample_lengths", "a value below 1"),
    ({"input_ids": [TOKEN, TOKEN, 5, 6, 7, -1]}, "input_ids", "a value below 0"),
    ({"labels": [-100, -100, -100, 7, -100, 8]}, "labels", "7 at token 3, where input_ids has 6"),
    ({"labels": [-100, -100, -100, 6, 7, 8]}, "labels", "token 4 is a sample's first and trained; nothing comes"),
    ({"num_label_tokens": 3}, "num_label_tokens", "3, labels has 2"),
    ({"vision_cost": 5}, "vision_cost", "5, max_vision_cost is 4"),
    ({"sample_sources": ["a", "c"]}, "sample_sources", "'c' is no source of the manifest"),
    ({"image_num_tokens": [3]}, "image_num_tokens", "3 placeholders in its sample 0, input_ids has 2"),
    ({"input_ids": [5, TOKEN, 5, 6, 7, 8]}, "image_num_tokens", "2 placeholders in its sample 0, input_ids has 1"),
    ({"image_sizes": [{"height": 4, "width": 3}]}, "images", "image 0: 4 × 3 pixels, image_sizes says 3 × 4"),
    ({"images": [{"bytes": b"no image", "path": None}]}, "images", "image 0: image_unidentified: 8 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "message"), BROKEN)
def test_a_broken_rule_is_found_where_it_is_and_nowhere_else(changes, field, message):
    (fault,) = [f for f in faults(sound_pack(), sound_pack(**changes), sound_pack()) if f.field == field]
    assert fault.row == 1
    assert fault.message.startswith(message)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"vision_cost": None}, "vision_cost"),
        ({"labels": [-100, None, -100, 6, -100, 8]}, "labels"),
        ({"images": [{"bytes": None, "path": None}]}, "images.bytes"),
        ({"image_sizes": [{"height": None, "width": 4}]}, "image_sizes.height"),
        ({"sample_ids": None}, "sample_ids"),
    ],
)
def test_nulls(changes, field):
    assert faults(sound_pack(), sound_pack(**changes)) == [Fault(None, field, "1 nulls; the contract has none")]


def test_a_trained_placeholder():
    trained = sound_pack(labels=[-100, TOKEN, -100, 6, -100, 8], num_label_tokens=3)
    assert faults(trained) == [Fault(0, "labels", "a placeholder of an image is trained")]


def test_budgets():
    tight = Limits(pack={"seq_len": 5, "max_vision_cost": 2, "max_images_per_pack": 0, "max_images_per_sample": 0})
    assert [(f.field, f.message) for f in faults(sound_pack(), limits=tight)] == [
        ("num_tokens", "6, seq_len is 5"),
        ("vision_cost", "3, max_vision_cost is 2"),
        ("num_images", "1, max_images_per_pack is 0"),
        ("sample_num_images", "a sample has more images than max_images_per_sample, 0"),
    ]
    assert faults(sound_pack(vision_cost=10**6), limits=Limits(pack={"seq_len": 6})) == []


def test_an_image_of_which_only_the_header_is_sound():
    """Found by who decodes."""
    image = picture(40, 30)
    cut = sound_pack(images=[{"bytes": image["bytes"][:60], "path": None}], image_sizes=[{"height": 30, "width": 40}])
    assert faults(cut) == []
    (fault,) = faults(cut, limits=Limits(pack={"seq_len": 8}, decodes=True))
    assert (fault.row, fault.field) == (0, "images")
    assert fault.message.startswith("image 0: image_broken")


class Pixels:
    """A family whose images have a placeholder and a cost for every two pixels of width."""

    def expand(self, sizes) -> list[ImageTokens]:
        return [ImageTokens([TOKEN] * (w // 2), w // 2, w // 2 + 1) for _, w in sizes]


def test_costs_as_the_processor_has_them():
    limits = Limits(pack={"seq_len": 8}, family=Pixels())
    assert faults(sound_pack(), limits=limits) == []
    off = faults(sound_pack(), sound_pack(vision_cost=4, image_num_tokens=[1]), limits=limits)
    assert off == [
        Fault(1, "vision_cost", "4, the processor makes 3"),
        Fault(1, "image_num_tokens", "not the placeholders that the processor makes of images of these sizes"),
    ]


def test_many_faults_of_a_kind_are_counted():
    found = faults(*[sound_pack(num_label_tokens=5)] * (MAX_FAULTS + 4))
    assert [f.row for f in found] == [0, 1, 2, None]
    assert found[-1].message == "4 more packs like it"


@pytest.mark.parametrize(
    ("name", "value"), [("sample_files", ["a", None]), ("sample_rows", None), ("sample_kept", None)]
)
def test_nulls_are_faults_except_for_what_was_not_kept(name, value):
    (fault,) = faults(sound_pack(), sound_pack() | {name: value})
    assert (fault.field, fault.message) == (name, "1 nulls; the contract has none")
