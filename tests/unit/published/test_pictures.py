"""What is drawn of packs: by hand, and on the demo by what the encoder knows."""

import base64
import io
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packing_udfs import contract
from packing_udfs.encode.processor import fetch
from packing_udfs.published import pictures
from packing_udfs.published.pictures import IMAGE, PROMPT, RESPONSE
from tests.unit.demo_samples import DEMO
from tests.unit.made_packs import made_pack

TOKEN = 9


def two_samples(**changes) -> pa.Table:
    """One pack: an image of two placeholders, a prompt and a trained token; then text, one of it trained."""
    picture = made_pack(1)["images"][0]
    pack = made_pack(0) | {
        "input_ids": [TOKEN, TOKEN, 5, 6, 7, 8],
        "labels": [-100, -100, -100, 6, -100, 8],
        "sample_lengths": [4, 2],
        "sample_num_images": [1, 0],
        "image_num_tokens": [2],
        "image_sizes": [{"height": 2, "width": 2}],
        "images": [picture],
        "num_tokens": 6, "num_label_tokens": 2, "num_images": 1, "vision_cost": 3,
    }  # fmt: skip
    return pa.Table.from_pylist([pack | changes], schema=contract.PACK_SCHEMA)


def test_a_pack_by_hand():
    (found,) = pictures.draw(two_samples())
    assert found["runs"] == [[IMAGE, 2], [PROMPT, 1], [RESPONSE, 1], [PROMPT, 1], [RESPONSE, 1]]
    assert [(s["source"], s["num_tokens"], s["num_label_tokens"], s["num_images"]) for s in found["samples"]] == [
        ("a", 4, 1, 1),
        ("b", 2, 1, 0),
    ]
    (image,) = found["images"]
    assert (image["start"], image["num_tokens"], image["height"], image["width"]) == (0, 2, 2, 2)
    assert Image.open(io.BytesIO(base64.b64decode(image["jpeg"]))).size == (2, 2)
    assert (found["row"], found["vision_cost"], found["num_tokens"]) == (0, 3, 6)


def test_an_image_that_does_not_decode_is_drawn_without():
    (found,) = pictures.draw(two_samples(images=[{"bytes": b"no image", "path": None}]))
    assert found["images"][0]["jpeg"] is None
    assert found["images"][0]["width"] == 2


def test_only_so_many_images():
    num = pictures.MAX_IMAGES + 3
    pack = two_samples(
        input_ids=[TOKEN] * num + [5], labels=[-100] * (num + 1), sample_lengths=[num + 1], sample_num_images=[num],
        image_num_tokens=[1] * num, image_sizes=[{"height": 2, "width": 2}] * num, images=made_pack(1)["images"] * num,
        sample_ids=[1], sample_sources=["a"], num_tokens=num + 1, num_images=num,
    )  # fmt: skip
    (found,) = pictures.draw(pack)
    assert (len(found["images"]), found["num_images"]) == (pictures.MAX_IMAGES, num)
    assert [image["start"] for image in found["images"]] == list(range(pictures.MAX_IMAGES))


def test_a_thumbnail_keeps_its_shape():
    buffer = io.BytesIO()
    Image.new("RGBA", (400, 100), (255, 0, 0, 128)).save(buffer, "PNG")
    assert Image.open(io.BytesIO(pictures.thumbnail(buffer.getvalue()))).size == (pictures.EDGE, pictures.EDGE // 4)


def test_rows_at_equal_distances():
    assert [pictures.spread(n, 4) for n in (1, 3, 4, 10)] == [[0], [0, 1, 2], [0, 1, 2, 3], [0, 3, 6, 9]]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_runs_say_the_same(values):
    found = pictures.runs(np.asarray(values, np.uint8))
    assert [value for value, num in found for _ in range(num)] == values
    assert all(a[0] != b[0] for a, b in pairwise(found))


def columns(ids: list[int], lengths: list[int], num_images: list[int], num_tokens: list[int]) -> pa.Table:
    kind = pa.list_(pa.int32())
    values = {
        "input_ids": ids,
        "sample_lengths": lengths,
        "sample_num_images": num_images,
        "image_num_tokens": num_tokens,
    }
    return pa.table({name: pa.array([of_pack], kind) for name, of_pack in values.items()})


def test_the_placeholder_is_what_stands_as_often_as_it_should_in_every_sample():
    """7 stands twice in the first sample too, but also in the second, which has no image."""
    assert pictures.image_token_id(columns([7, 9, 9, 7, 7, 5], [4, 2], [1, 0], [2])) == 9
    assert pictures.image_token_id(columns([9, 5, 9, 6], [4], [2], [1, 1])) == 9
    assert pictures.image_token_id(columns([5, 6], [2], [0], [])) is None
    assert pictures.image_token_id(columns([9, 5, 9], [3], [1], [3])) is None


@pytest.fixture(scope="module")
def row_group(published) -> pa.Table:
    return pq.ParquetFile(published / "data/train/00000.parquet").read_row_group(0)


def test_the_demos_placeholder_is_its_processors(row_group):
    assert pictures.image_token_id(row_group) == fetch(str(DEMO / "processor")).load().image_token_id


def test_the_demo_is_drawn_as_it_is_packed(row_group):
    found = pictures.draw(row_group)
    assert [pack["row"] for pack in found] == [0, 1, 2, 3]
    for pack in found:
        stored = row_group.slice(pack["row"], 1).to_pylist()[0]
        of_kind = dict.fromkeys(range(3), 0)
        for kind, num_tokens in pack["runs"]:
            of_kind[kind] += num_tokens
        assert sum(of_kind.values()) == stored["num_tokens"]
        assert of_kind[RESPONSE] == stored["num_label_tokens"] == sum(s["num_label_tokens"] for s in pack["samples"])
        assert of_kind[IMAGE] == sum(stored["image_num_tokens"])
        assert [s["id"] for s in pack["samples"]] == stored["sample_ids"]
        for image in pack["images"]:
            assert stored["input_ids"][image["start"]] == pictures.image_token_id(row_group)
    assert sum(len(pack["images"]) for pack in found) > 3
