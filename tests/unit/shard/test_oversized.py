"""An oversized shard becomes several files, the same ones whatever the order of its rows."""

import io

import numpy as np
import pytest
from PIL import Image
from transformers import AutoProcessor

from packing_udfs.encode.encoder import Encoder
from packing_udfs.parquet.write import write_shard
from packing_udfs.shard.pack_shard import PackSettings, pack_shard
from tests.unit.demo_samples import DEMO, as_spark_gives, message

SMALL, LARGE = 10_000, 1_000_000
SETTINGS = PackSettings(seq_len=4096, num_packs_per_row_group=2, max_file_bytes=2_500_000)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(AutoProcessor.from_pretrained(DEMO / "processor"))


def picture(num_bytes: int) -> bytes:
    """A small JPEG with bytes behind it, where nobody looks, up to a length."""
    out = io.BytesIO()
    Image.new("RGB", (16, 16)).save(out, "JPEG")
    return out.getvalue().ljust(num_bytes, b"\0")


def row(number: int, num_bytes: int) -> dict:
    """A row whose place in the shard's order is its number."""
    return {
        "sample_id": number,
        "source": "small" if num_bytes == SMALL else "large",
        "file": "a.parquet",
        "row": number,
        "copy": 0,
        "messages": [message("user", "What is it?", 1), message("assistant", f"It is number {number}.")],
        "images": [{"bytes": picture(num_bytes), "path": None}],
        "reason": None,
        "num_turns_dropped": 0,
    }


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    """20 small images, 5 that are a hundred times larger, 20 small ones; about 1,200 tokens (9,600 bytes) each.

    Two large ones and 20 small ones have 2.41 MB, with 40 small ones 2.80, three large ones alone 3.03: at 2.5 there
    are three files at least. One has two large ones next to 20 small ones, whichever way it is, and these come first.
    """
    return [row(i, LARGE if 20 <= i < 25 else SMALL) for i in range(45)]


EXPECTED = [[*range(22)], [22, 23], [*range(24, 45)]]


def ids(packed) -> list[list[int]]:
    return [
        sorted(sample for table in file.row_groups() for pack in table["sample_ids"].to_pylist() for sample in pack)
        for file in packed.files
    ]


def written(packed, folder) -> list[bytes]:
    out = []
    for i, file in enumerate(packed.files):
        write_shard(str(folder / f"{i}.parquet"), f"data/train/00000_{i:03d}.parquet", file.row_groups())
        out.append((folder / f"{i}.parquet").read_bytes())
    return out


def test_images_a_hundred_times_larger_make_no_file_larger_than_the_limit(rows, encoder, tmp_path):
    packed = pack_shard(as_spark_gives(rows), encoder, SETTINGS)
    assert ids(packed) == EXPECTED
    sizes = [len(data) for data in written(packed, tmp_path)]
    assert max(sizes) < 2_500_000 + 50_000  # a footer and the columns beside images and tokens
    assert packed.sums["num_samples"] == 45
    assert {(line["source"], line["outcome"]): line["num_rows"] for line in packed.ledger.to_pylist()} == {
        ("large", "packed"): 5,
        ("small", "packed"): 40,
    }


def test_the_order_of_arrival_changes_no_byte_of_any_file(rows, encoder, tmp_path):
    before = written(pack_shard(as_spark_gives(rows), encoder, SETTINGS), tmp_path)
    for seed in range(3):
        shuffled = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
        assert written(pack_shard(as_spark_gives(shuffled), encoder, SETTINGS), tmp_path) == before


def test_an_image_above_the_limit_is_alone(rows, encoder):
    packed = pack_shard(as_spark_gives(rows[18:24]), encoder, SETTINGS.model_copy(update={"max_file_bytes": 500_000}))
    assert ids(packed) == [[18, 19], [20], [21], [22], [23]]


def test_one_file_without_a_limit_or_below_it(rows, encoder):
    for limit in (None, 100_000_000):
        packed = pack_shard(as_spark_gives(rows), encoder, SETTINGS.model_copy(update={"max_file_bytes": limit}))
        assert ids(packed) == [[*range(45)]]


def test_half_of_the_rows_are_one_row(rows, encoder):
    """They are gone before bytes are counted: 45 repeats of row 20 beside the 45 rows, and the same three files."""
    repeats = [{**rows[20], "row": 100 + i} for i in range(45)]
    packed = pack_shard(as_spark_gives([*repeats, *rows]), encoder, SETTINGS)
    assert ids(packed) == EXPECTED
    assert {(line["source"], line["outcome"]): line["num_rows"] for line in packed.ledger.to_pylist()} == {
        ("large", "duplicate"): 45,
        ("large", "packed"): 5,
        ("small", "packed"): 40,
    }


def test_files_let_go_of_images_that_none_to_come_has(rows, encoder, tmp_path):
    """The first file's image is also in the second, as both have parts of row 0, so it stays for as long."""
    turns = [message("user", "And then?"), message("assistant", "so " * 40)]
    long = {**rows[0], "messages": [*rows[0]["messages"], *turns * 60]}
    settings = SETTINGS.model_copy(update={"over_length": "split_turns", "max_file_bytes": 45_000})
    before = written(pack_shard(as_spark_gives([long]), encoder, settings), tmp_path)
    assert len(before) == 2
    frame = as_spark_gives([long])
    packed, after = pack_shard(frame, encoder, settings), []
    for i, file in enumerate(packed.files):
        write_shard(str(tmp_path / "again.parquet"), f"data/train/00000_{i:03d}.parquet", file.row_groups())
        after.append((tmp_path / "again.parquet").read_bytes())
        file.let_go(packed.files[i + 1 :])
    assert after == before
    assert [image["bytes"] for of_row in frame["images"] for image in of_row] == [None]
