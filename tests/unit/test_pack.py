"""Packing one shard: nothing is lost, no budget is broken, and the order of the rows that come in does not matter."""

import hashlib
import io
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoProcessor

from packing_udfs import assemble
from packing_udfs.collate import decode_images
from packing_udfs.config import Images
from packing_udfs.contract import IGNORE_INDEX, PACK_SCHEMA, QUARANTINE_SCHEMA, REASONS, SAMPLE_SCHEMA
from packing_udfs.encode import Encoder
from packing_udfs.images import read_size
from packing_udfs.knapsack import ALGORITHMS
from packing_udfs.outcomes import LEDGER_SCHEMA
from packing_udfs.pack import PackedShard, PackSettings, pack_shard
from packing_udfs.shard_file import write_shard
from tests.unit import nasty_images
from tests.unit.demo_samples import DEMO, as_spark_gives, content_id, demo_rows, message

END_OF_TURN = "<end_of_utterance>"
DEMO_SETTINGS = PackSettings(
    seq_len=4096, max_vision_cost=56, max_images_per_pack=10, max_images_per_sample=8, num_packs_per_row_group=4
)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(AutoProcessor.from_pretrained(DEMO / "processor"))


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return demo_rows()


@pytest.fixture(scope="module")
def packed(rows, encoder) -> PackedShard:
    return pack_shard(as_spark_gives(rows), encoder, DEMO_SETTINGS)


def packs_of(packed: PackedShard) -> list[dict]:
    return [row for group in packed.row_groups() for row in group.to_pylist()]


def file_bytes(packed: PackedShard, tmp_path) -> bytes:
    path = tmp_path / "shard.parquet"
    write_shard(str(path), "data/train/00000.parquet", packed.row_groups())
    return path.read_bytes()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def provenance(row: dict) -> tuple:
    return row["source"], row["file"], row["row"], row["copy"]


def content(row: dict) -> tuple:
    """What a pack tells of a sample: id, source, image bytes in order, and what the assistant says without spaces.

    The space before an answer belongs to its first token where the tokenizer joins the two, and is then trained.
    """
    images = tuple(image["bytes"] for image in row["images"] or [] if image and image["bytes"])
    said = [m["content"] for m in row["messages"] or [] if m and m["role"] == "assistant"]
    text = "".join(
        part["text"] + END_OF_TURN for parts in said for part in parts or [] if part and part["text"] is not None
    )
    return row["sample_id"], row["source"], images, text.replace(" ", "")


def samples_in(packs: list[dict], encoder: Encoder) -> list[tuple]:
    """`content` of every sample in packs; checks on the way that each pack agrees with itself."""
    image_token = encoder.tokenizer.convert_tokens_to_ids("<image>")
    found = []
    for row in packs:
        ids, labels = np.asarray(row["input_ids"]), np.asarray(row["labels"])
        images, counts = row["images"], row["image_num_tokens"]
        assert len(ids) == len(labels) == sum(row["sample_lengths"]) == row["num_tokens"]
        assert (
            len(images) == len(counts) == len(row["image_sizes"]) == sum(row["sample_num_images"]) == row["num_images"]
        )
        assert row["num_label_tokens"] == (labels != IGNORE_INDEX).sum() > 0
        assert set(labels[labels != ids]) <= {IGNORE_INDEX}
        assert not (labels == image_token).any()
        per_sample = [row[name] for name in ("sample_lengths", "sample_num_images", "sample_ids", "sample_sources")]
        start = image = cost = 0
        for length, num_images, sample_id, source in zip(*per_sample, strict=True):
            sample, trained = ids[start : start + length], labels[start : start + length]
            mine = slice(image, image + num_images)
            assert (sample == image_token).sum() == sum(counts[mine])
            assert trained[0] == IGNORE_INDEX
            for size, stored, count in zip(row["image_sizes"][mine], images[mine], counts[mine], strict=True):
                assert (size["height"], size["width"]) == read_size(stored["bytes"])
                expansion = encoder.expand((size["height"], size["width"]))
                assert count == expansion.num_placeholders
                cost += expansion.vision_cost
            said = encoder.tokenizer.decode(trained[trained != IGNORE_INDEX], clean_up_tokenization_spaces=False)
            found.append((sample_id, source, tuple(stored["bytes"] for stored in images[mine]), said.replace(" ", "")))
            start, image = start + length, image + num_images
        assert row["vision_cost"] == cost
    return found


def assert_within_budgets(packs: list[dict], settings: PackSettings) -> None:
    for row in packs:
        assert 0 < row["num_tokens"] <= settings.seq_len
        assert settings.max_vision_cost is None or row["vision_cost"] <= settings.max_vision_cost
        assert settings.max_images_per_pack is None or row["num_images"] <= settings.max_images_per_pack
        assert settings.max_images_per_sample is None or max(row["sample_num_images"]) <= settings.max_images_per_sample


def duplicates_among(rows: list[dict]) -> list[dict]:
    """Rows that repeat an earlier one, in order of id and provenance: the slow and obvious way."""
    found, seen = [], []
    for row in sorted(rows, key=lambda row: (row["sample_id"], *provenance(row))):
        if row["reason"] is None:
            same = (row["sample_id"], row["copy"], [i and i["bytes"] for i in row["images"] or []], row["messages"])
            if same in seen:
                found.append(row)
            seen.append(same)
    return found


def assert_nothing_is_lost(rows: list[dict], packed: PackedShard, packs: list[dict], encoder: Encoder, dropped) -> None:
    """Every row is in a pack, in the quarantine or a duplicate, once; and the ledger counts them so."""
    quarantine = packed.quarantine.to_pylist()
    by_provenance = {provenance(row): row for row in rows}
    set_aside = [provenance(row) for row in quarantine] + [provenance(row) for row in dropped]
    assert len(set(set_aside)) == len(set_aside)
    in_packs = samples_in(packs, encoder)
    left = [content(row) for place, row in by_provenance.items() if place not in set_aside]
    assert Counter(in_packs) == Counter(left)
    counted = Counter()
    for line in packed.ledger.to_pylist():
        counted[line["source"], line["outcome"], line["reason"]] += line["num_rows"]
    expected = Counter((source, "packed", "") for _, source, _, _ in in_packs)
    expected.update((row["source"], "quarantined", row["reason"]) for row in quarantine)
    expected.update((row["source"], "duplicate", "") for row in dropped)
    assert counted == expected
    ledger = packed.ledger.to_pylist()
    assert sum(line["num_rows"] for line in ledger) == len(rows)
    assert sum(line["num_images"] for line in ledger) == sum(len(row["images"] or []) for row in rows)
    assert sum(line["num_turns_dropped"] for line in ledger) == sum(row["num_turns_dropped"] or 0 for row in rows)
    tokens = sum(row["num_tokens"] for row in packs) + sum(row["num_tokens"] or 0 for row in quarantine)
    assert sum(line["num_tokens"] for line in ledger) == tokens


# The demo


def test_demo(rows, packed, encoder):
    """229 rows: two repeat another, seven are bad on purpose (jobs/demo/README.md), two lose their only turn."""
    packs = packs_of(packed)
    dropped = duplicates_among(rows)
    assert (len(rows), len(dropped), packed.quarantine.num_rows) == (229, 2, 9)
    assert_within_budgets(packs, DEMO_SETTINGS)
    assert_nothing_is_lost(rows, packed, packs, encoder, dropped)
    assert sum(len(row["sample_ids"]) for row in packs) == 218
    assert packed.num_packs == len(packs)


def test_demo_quarantine(rows, packed):
    """Each bad row by its provenance, with what is known of it."""
    found = packed.quarantine.to_pylist()
    assert packed.quarantine.schema == QUARANTINE_SCHEMA
    assert Counter((row["source"], row["reason"]) for row in found) == {
        ("photos_and_drawings", "image_broken"): 1,
        ("photos_and_drawings", "image_missing"): 1,
        ("photos_and_drawings", "image_unidentified"): 1,
        ("photos_and_drawings", "ratings"): 1,
        ("charts_and_pages", "ratings"): 3,
        ("charts_and_pages", "texts_missing"): 1,
        ("charts_and_pages", "too_long"): 1,
    }
    by_provenance = {provenance(row): row for row in rows}
    for row in found:
        original = by_provenance[provenance(row)]
        assert row["sample_id"] == original["sample_id"]
        assert row["num_images"] == len(original["images"] or [])
        assert (row["num_tokens"] is not None) == (row["reason"] == "too_long")
    (long,) = [row for row in found if row["reason"] == "too_long"]
    assert long["num_tokens"] > 10_000
    assert long["detail"] == f"{long['num_tokens']} tokens, at most 4096"
    (html,) = [row for row in found if row["reason"] == "image_unidentified"]
    assert "starting b'<" in html["detail"]


def test_demo_row_groups(packed):
    """Sizes differ by at most one, none above R; costs at one position are neighbours."""
    sizes = [table.num_rows for table in packed.row_groups()]
    assert sum(sizes) == packed.num_packs
    assert max(sizes) <= 4
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-packed.num_packs // 4) > 2
    assert all(table.schema == PACK_SCHEMA for table in packed.row_groups())


def test_demo_sums(packed):
    packs = packs_of(packed)
    lengths = [length for row in packs for length in row["sample_lengths"]]
    assert packed.sums["num_samples"] == 218 == len(lengths)
    assert packed.sums["num_packs"] == len(packs)
    assert packed.sums["num_tokens"] == sum(lengths)
    assert packed.sums["attention_cost"] == sum(length**2 for length in lengths)
    assert packed.sums["vision_cost"] == sum(row["vision_cost"] for row in packs)
    assert max(-(-sum(lengths) // 4096), -(-packed.sums["vision_cost"] // 56)) <= packed.sums["bound"] <= len(packs)
    assert sum(lengths) < packed.sums["naive_tokens"]


def test_the_order_of_rows_leaves_no_trace(rows, packed, encoder, tmp_path):
    expected = file_bytes(packed, tmp_path), packed.quarantine, packed.ledger, packed.sums
    for order in (reversed(range(len(rows))), np.random.default_rng(0).permutation(len(rows))):
        again = pack_shard(as_spark_gives([rows[i] for i in order]), encoder, DEMO_SETTINGS)
        assert (file_bytes(again, tmp_path), again.quarantine, again.ledger, again.sums) == expected


def test_the_index_and_the_form_of_the_frame_leave_no_trace(rows, packed, encoder, tmp_path):
    """Lists instead of arrays, NaN instead of None, floats instead of integers, more columns, an index of its own."""
    frame = pd.DataFrame(rows, index=range(1000, 1000 + len(rows)))[::-1]
    frame["copy"] = frame["copy"].astype(float)
    frame["num_turns_dropped"] = frame["num_turns_dropped"].astype(float)
    frame["reason"] = [np.nan if value is None else value for value in frame["reason"]]
    frame["shard"] = 3
    again = pack_shard(frame, encoder, DEMO_SETTINGS)
    assert file_bytes(again, tmp_path) == file_bytes(packed, tmp_path)
    assert (again.quarantine, again.ledger) == (packed.quarantine, packed.ledger)


def test_a_pack_reads_in_the_order_of_ids(packed):
    """Not in the order in which an algorithm found its samples."""
    packs = packs_of(packed)
    assert all(row["sample_ids"] == sorted(row["sample_ids"]) for row in packs)
    assert sum(len(row["sample_ids"]) > 2 for row in packs) > 10


def test_the_seed_changes_places_only(rows, packed, encoder, tmp_path):
    again = pack_shard(as_spark_gives(rows), encoder, replace(DEMO_SETTINGS, seed=1))
    assert file_bytes(again, tmp_path) != file_bytes(packed, tmp_path)
    assert sorted(row["sample_ids"] for row in packs_of(again)) == sorted(row["sample_ids"] for row in packs_of(packed))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_keeps_every_sample(rows, encoder, algorithm):
    settings = replace(DEMO_SETTINGS, algorithm=algorithm)
    packed = pack_shard(as_spark_gives(rows), encoder, settings)
    packs = packs_of(packed)
    assert_within_budgets(packs, settings)
    assert sum(len(row["sample_ids"]) for row in packs) == 218


# Made-up rows


def picture(height: int, width: int, colour: int) -> bytes:
    return nasty_images.save(Image.new("RGB", (width, height), (colour, 0, 0)), "PNG")


def sample(number: int, images=(), turns=(("Why?", "So."),), **changes) -> dict:
    images = [{"bytes": data, "path": f"{number}-{i}"} for i, data in enumerate(images)]
    messages = []
    for i, (question, answer) in enumerate(turns):
        messages += [message("user", question, len(images) if i == 0 else 0), message("assistant", answer)]
    row = {"source": "made", "file": "a.parquet", "row": number, "copy": 0, "messages": messages, "images": images}
    row |= {"reason": None, "num_turns_dropped": 0} | changes
    return {"sample_id": content_id(row["images"], row["messages"])} | row


def pack_rows(rows: list[dict], encoder, **changes) -> PackedShard:
    return pack_shard(as_spark_gives(rows), encoder, PackSettings(**{"seq_len": 2048} | changes))


def outcomes(packed: PackedShard) -> dict:
    return {(line["outcome"], line["reason"]): line["num_rows"] for line in packed.ledger.to_pylist()}


def test_no_rows(encoder):
    for frame in (as_spark_gives([]), pd.DataFrame(columns=SAMPLE_SCHEMA.names)):
        packed = pack_shard(frame, encoder, PackSettings(seq_len=64))
        assert (packed.num_packs, list(packed.row_groups())) == (0, [])
        assert packed.quarantine == QUARANTINE_SCHEMA.empty_table()
        assert packed.ledger == LEDGER_SCHEMA.empty_table()
        sums = packed.sums
        histograms = sums.pop("histograms")
        assert set(sums.values()) == {0}
        assert len(histograms) == 6
        assert not any(histograms.values())


def test_everything_in_quarantine(encoder):
    nothing = {"reason": "ratings", "images": None, "messages": None, "num_turns_dropped": 2}
    rows = [sample(i) | nothing for i in range(3)]
    packed = pack_rows(rows, encoder)
    assert packed.num_packs == 0
    assert packed.ledger.to_pylist() == [
        {"source": "made", "outcome": "quarantined", "reason": "ratings", "num_rows": 3}
        | {"num_copies": 0, "num_tokens": 0, "num_images": 0, "num_images_reencoded": 0}
        | {"num_turns_dropped": 6, "num_turns_cut": 0, "num_tokens_cut": 0}
    ]


def test_paths_make_no_difference_to_duplicates(encoder):
    data = picture(8, 8, 1)
    rows = [sample(0, [data]), sample(1, [data]) | {"file": "b.parquet"}, sample(2, [picture(8, 8, 2)])]
    assert rows[0]["images"] != rows[1]["images"]
    assert outcomes(pack_rows(rows, encoder)) == {("duplicate", ""): 1, ("packed", ""): 2}
    assert outcomes(pack_rows(rows, encoder, duplicates="keep")) == {("packed", ""): 3}


def test_the_first_by_provenance_is_kept(encoder):
    rows = [sample(0, [picture(8, 8, 1)], file=name) for name in ("c", "a", "b")]
    (row,) = packs_of(pack_rows(rows, encoder, num_packs_per_row_group=1))
    assert len(row["sample_ids"]) == 1
    rows = [row | {"images": [row["images"][0] | {"path": row["file"]}]} for row in rows]
    (row,) = packs_of(pack_rows(rows, encoder))
    assert row["images"][0]["path"] == "a"


def test_equal_ids_of_different_samples_are_no_duplicates(encoder):
    """A collision of hashes: confirmed by bytes, by messages, and by where the images stand."""
    rows = [
        sample(0, [picture(8, 8, 1)]),
        sample(1, [picture(8, 8, 2)]),
        sample(2, [picture(8, 8, 1), picture(8, 8, 2)]),
        sample(3, [picture(8, 8, 2), picture(8, 8, 1)]),
        sample(4, [picture(8, 8, 1)], [("Why?", "No.")]),
        sample(5, [], [("Why?", "So.")]),
    ]
    rows = [row | {"sample_id": 7} for row in rows]
    assert outcomes(pack_rows(rows, encoder, seq_len=4096)) == {("packed", ""): 6}


def test_copies_are_no_duplicates_of_each_other(encoder):
    rows = [sample(0, [picture(8, 8, 1)], copy=copy) for copy in (0, 1, 1)]
    rows[2] = rows[2] | {"row": 9}
    assert outcomes(pack_rows(rows, encoder)) == {("duplicate", ""): 1, ("packed", ""): 2}


def test_null_images_of_different_samples_are_no_duplicates(encoder):
    """Bytes missing and image missing are two contents; both are quarantined for what they are."""
    rows = [sample(0, [None]), sample(1, images=[None]), sample(2, [None])]
    rows[1] = rows[1] | {"images": [None]}
    assert outcomes(pack_rows(rows, encoder)) == {("duplicate", ""): 2, ("quarantined", "image_missing"): 1}


def test_an_image_that_the_processor_refuses(encoder, monkeypatch):
    """A family's ValueError is about the one sample; it does not end the shard."""
    expand = encoder.family.expand

    def refuse(sizes):
        if (8, 9) in sizes:
            raise ValueError("aspect ratio above 200")
        return expand(sizes)

    monkeypatch.setattr(encoder.family, "expand", refuse)
    rows = [sample(0, [picture(9, 8, 1)]), sample(1, [picture(9, 8, 2), picture(8, 9, 1)])]
    packed = pack_rows(rows, encoder, seq_len=4096)
    assert outcomes(packed) == {("packed", ""): 1, ("quarantined", "image_shape"): 1}
    assert packed.quarantine["detail"].to_pylist() == ["aspect ratio above 200"]


def test_a_combination_of_images_that_the_processor_refuses(encoder, monkeypatch):
    """Each passes alone; what is said of the two together sets one sample aside and does not end the shard."""
    expand = encoder.family.expand

    def refuse(sizes):
        if {(9, 7), (7, 9)} <= set(sizes):
            raise ValueError("a flat and a tall image together")
        return expand(sizes)

    monkeypatch.setattr(encoder.family, "expand", refuse)
    flat, tall = picture(7, 9, 1), picture(9, 7, 1)
    rows = [sample(0, [flat]), sample(1, [tall]), sample(2, [flat, tall]), sample(3, [flat, flat])]
    packed = pack_rows(rows, encoder, seq_len=4096)
    assert outcomes(packed) == {("packed", ""): 3, ("quarantined", "image_shape"): 1}
    assert packed.quarantine["row"].to_pylist() == [2]
    assert packed.quarantine["detail"].to_pylist() == ["a flat and a tall image together"]


# What is done to images


def stored_images(packed: PackedShard) -> list[dict]:
    return [image for row in packs_of(packed) for image in row["images"]]


def test_image_bytes_are_those_of_the_source(rows, packed):
    """By hash, of everything packed in the demo."""
    given = {digest(image["bytes"]) for row in rows for image in row["images"] or [] if image and image["bytes"]}
    stored = [digest(image["bytes"]) for image in stored_images(packed)]
    assert len(stored) > 200
    assert set(stored) <= given
    assert {line["num_images_reencoded"] for line in packed.ledger.to_pylist()} == {0}


def test_a_cut_body_is_found_by_decoding(encoder):
    """The header of half a JPEG still tells its size."""
    cut = nasty_images.files()["JPEG cut in half"].data
    rows = [sample(0, [picture(8, 8, 1), cut]), sample(1, [picture(8, 8, 2)])]
    assert outcomes(pack_rows(rows, encoder, seq_len=4096)) == {("packed", ""): 2}
    packed = pack_rows(rows, encoder, seq_len=4096, images=Images(verify="decode"))
    assert outcomes(packed) == {("packed", ""): 1, ("quarantined", "image_broken"): 1}
    (row,) = packed.quarantine.to_pylist()
    assert (row["row"], row["num_images"], row["num_tokens"]) == (0, 2, None)
    assert row["detail"].startswith("OSError: image file is truncated")


def test_a_large_image_is_scaled_down(encoder, tmp_path):
    """What is stored decodes, in the reader, to the size that was encoded; its path stays, small images stay."""
    turned = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 1200, 3), np.uint8))
    large = nasty_images.save(turned, "JPEG", exif=nasty_images.exif(6))  # upright: 1200 high, 300 wide
    small = picture(8, 600, 1)
    rows = [sample(0, [large, small]), sample(1, [large], copy=1), sample(2, [small])]
    packed = pack_rows(rows, encoder, seq_len=4096, images=Images(max_side=600))
    packs = packs_of(packed)
    found = {
        image["path"]: (image["bytes"], (size["height"], size["width"]))
        for row in packs
        for image, size in zip(row["images"], row["image_sizes"], strict=True)
    }
    assert {path: size for path, (_, size) in found.items()} == {
        "0-0": (600, 150), "0-1": (8, 600), "1-0": (600, 150), "2-0": (8, 600)
    }  # fmt: skip
    assert found["0-1"][0] == found["2-0"][0] == small
    assert found["0-0"][0] == found["1-0"][0] != large
    assert Image.open(io.BytesIO(found["0-0"][0])).format == "JPEG"
    for row in packs:
        pack = row | {"images": [image["bytes"] for image in row["images"]]}
        pack["image_sizes"] = [(size["height"], size["width"]) for size in row["image_sizes"]]
        decoded = decode_images(pack)  # raises for an image of another size
        assert [(image.height, image.width) for image in decoded] == pack["image_sizes"]
    (line,) = packed.ledger.to_pylist()
    assert (line["outcome"], line["num_images"], line["num_images_reencoded"]) == ("packed", 4, 2)
    assert len(samples_in(packs, encoder)) == 3  # placeholders are those of the new sizes
    again = pack_rows(rows[::-1], encoder, seq_len=4096, images=Images(max_side=600))
    assert file_bytes(again, tmp_path) == file_bytes(packed, tmp_path)


def test_duplicates_are_by_the_bytes_of_the_source(encoder):
    """Two files of the same picture are two samples, though both are scaled down to the same bytes."""
    image = Image.new("RGB", (64, 64), (9, 9, 9))
    rows = [sample(i, [nasty_images.save(image, "PNG", compress_level=level)]) for i, level in enumerate((1, 9, 9))]
    packed = pack_rows(rows, encoder, seq_len=4096, images=Images(max_side=32))
    assert outcomes(packed) == {("duplicate", ""): 1, ("packed", ""): 2}
    first, second = (image["bytes"] for image in stored_images(packed))
    assert first == second
    counts = {line["outcome"]: line["num_images_reencoded"] for line in packed.ledger.to_pylist()}
    assert counts == {"duplicate": 0, "packed": 2}


def test_a_row_with_a_broken_image_has_none_reencoded(encoder):
    large, cut = picture(64, 64, 1), nasty_images.files()["JPEG cut in its header"].data
    packed = pack_rows([sample(0, [large, cut])], encoder, images=Images(max_side=32))
    (line,) = packed.ledger.to_pylist()
    assert (line["reason"], line["num_images"], line["num_images_reencoded"]) == ("image_broken", 2, 0)


BUDGET_CASES = [
    # settings, number of images, answer's words, the reason
    ({"max_images_per_sample": 1}, 2, 1, "too_many_images", "2 images, at most 1"),
    ({"max_images_per_pack": 1}, 2, 1, "too_many_images", "2 images, at most 1"),
    ({"max_images_per_pack": 3, "max_images_per_sample": 1}, 2, 1, "too_many_images", "2 images, at most 1"),
    ({"max_vision_cost": 33}, 2, 1, "too_much_vision", "vision cost 34, at most 33"),
    ({"seq_len": 64}, 0, 100, "too_long", None),
]


@pytest.mark.parametrize(("changes", "num_images", "num_words", "reason", "detail"), BUDGET_CASES)
def test_what_fits_no_pack(encoder, changes, num_images, num_words, reason, detail):
    """A square picture is 4 × 4 tiles and the whole: 17."""
    rows = [sample(0, [picture(8, 8, 1)] * num_images, [("Why?", "so " * num_words)]), sample(1)]
    packed = pack_rows(rows, encoder, **{"seq_len": 4096} | changes)
    assert outcomes(packed) == {("packed", ""): 1, ("quarantined", reason): 1}
    (row,) = packed.quarantine.to_pylist()
    assert row["num_tokens"] > 64
    assert detail is None or row["detail"] == detail


def test_too_long_a_sample_is_cut_between_turns(encoder):
    """Forty turns of about 12 tokens against 120: the ledger counts what is lost, and answers stay whole."""
    turns = [(f"What is number {i}?", f"It is {i}.") for i in range(40)]
    whole = pack_rows([sample(0, turns=turns)], encoder, seq_len=4096)
    num_tokens = whole.sums["num_tokens"]

    truncated = pack_rows([sample(0, turns=turns)], encoder, seq_len=120, over_length="truncate_turns")
    (ledger,) = truncated.ledger.to_pylist()
    assert (ledger["outcome"], ledger["num_rows"], ledger["num_tokens"]) == ("packed", 1, num_tokens)
    assert 0 < truncated.sums["num_tokens"] <= 120
    assert truncated.sums["num_tokens"] + ledger["num_tokens_cut"] == num_tokens
    assert 0 < ledger["num_turns_cut"] < 40

    split = pack_rows([sample(0, turns=turns)], encoder, seq_len=120, over_length="split_turns")
    (ledger,) = split.ledger.to_pylist()
    assert (ledger["num_turns_cut"], ledger["num_tokens_cut"]) == (0, 0)
    packs = packs_of(split)
    assert len({sample_id for row in packs for sample_id in row["sample_ids"]}) == 1  # parts keep their sample's id
    texts = [encoder.tokenizer.decode([t for t in row["labels"] if t >= 0]) for row in packs]
    said = [int(number) for text in texts for number in re.findall(r"It is (\d+)\.", text)]
    assert sorted(said) == list(range(40))
    assert all(row["num_tokens"] <= 120 for row in packs)


def test_a_turn_that_fits_alone_nowhere_is_quarantined(encoder):
    packed = pack_rows([sample(0, turns=[("Why?", "so " * 500)])], encoder, seq_len=120, over_length="split_turns")
    assert packed.quarantine["reason"].to_pylist() == ["too_long"]
    assert packed.num_packs == 0


def test_as_many_images_as_allowed(encoder):
    rows = [sample(0, [picture(8, 8, 1)] * 2)]
    limits = {"max_images_per_sample": 2, "max_images_per_pack": 2, "max_vision_cost": 34, "seq_len": 4096}
    assert outcomes(pack_rows(rows, encoder, **limits)) == {("packed", ""): 1}


def test_a_sample_of_exactly_seq_len_is_packed(encoder):
    length = packs_of(pack_rows([sample(0)], encoder))[0]["num_tokens"]
    assert outcomes(pack_rows([sample(0)], encoder, seq_len=length)) == {("packed", ""): 1}
    assert outcomes(pack_rows([sample(0)], encoder, seq_len=length - 1)) == {("quarantined", "too_long"): 1}


NULL_MESSAGES = {
    "null": None,
    "empty": [],
    "null message": [None],
    "null content": [{"role": "user", "content": None}],
    "null part": [{"role": "user", "content": [None]}],
    "null text": [message("user", "Why?"), message("assistant", None)],
}


@pytest.mark.parametrize("name", NULL_MESSAGES)
def test_nulls_in_messages(encoder, name):
    row = sample(0) | {"messages": NULL_MESSAGES[name]}
    packed = pack_rows([row, sample(1)], encoder)
    assert outcomes(packed) == {("packed", ""): 1, ("quarantined", "texts_missing"): 1}


def test_too_many_bytes_in_a_row_group(encoder, monkeypatch):
    monkeypatch.setattr(assemble, "MAX_ROW_GROUP_BYTES", 100)
    packed = pack_rows([sample(0, [picture(8, 8, 1), picture(8, 8, 2)])], encoder, seq_len=4096)
    with pytest.raises(
        ValueError, match=r"shards\.num_packs_per_row_group: 1 packs have \d+ bytes of images, .* use fewer"
    ):
        list(packed.row_groups())


def test_two_images_that_only_a_pack_of_their_own_takes(encoder):
    """Images stand in the order of their placeholders, and sizes differ, so a swap would show."""
    first, second = picture(8, 16, 1), picture(16, 8, 2)
    (row,) = packs_of(pack_rows([sample(0, [first, second])], encoder, seq_len=4096))
    assert [image["bytes"] for image in row["images"]] == [first, second]
    assert row["image_sizes"] == [{"height": 8, "width": 16}, {"height": 16, "width": 8}]


# Any shard

TEXTS = st.sampled_from(["So.", "", "What is <image>?", f"It is{END_OF_TURN}", "漢字 ünïcödé\n\n", "a b " * 30])
GOOD_IMAGES = [
    picture(8, 8, 1),
    picture(8, 40, 2),
    picture(40, 8, 3),
    nasty_images.files()["JPEG of orientation 6"].data,
]
BAD_IMAGES = {
    "image_missing": [None, {"bytes": None, "path": "x"}, {"bytes": b"", "path": None}],
    "image_unidentified": [{"bytes": b"<html>", "path": None}],
    "image_broken": [{"bytes": nasty_images.files()["JPEG cut in its header"].data, "path": "b"}],
}


@st.composite
def dirty_row(draw) -> tuple[dict, str | None]:
    """A row without provenance, and the reason for which it has to be quarantined, if any."""
    images = [{"bytes": draw(st.sampled_from(GOOD_IMAGES)), "path": draw(st.sampled_from(["p", "q", None]))}
              for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2])))]  # fmt: skip
    turns = draw(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=2))
    row = sample(0, [], turns) | {"num_turns_dropped": draw(st.sampled_from([0, 0, 1, None]))}
    row |= {"images": images, "source": draw(st.sampled_from("ab")), "copy": draw(st.sampled_from([0, 0, 0, 1]))}
    row["messages"][0] = message("user", turns[0][0], len(images))
    reason = None
    match draw(st.integers(0, 9)):
        case 0:
            reason = "ratings"
            row |= {"reason": reason, "images": None, "messages": None}
        case 1:
            reason = "texts_missing"
            row["messages"] = draw(st.sampled_from([NULL_MESSAGES[name] for name in sorted(NULL_MESSAGES)]))
        case 2:
            reason = draw(st.sampled_from(sorted(BAD_IMAGES)))
            images.insert(0, draw(st.sampled_from(BAD_IMAGES[reason])))
        case 3:
            reason = "image_count"
            row["messages"][0] = message("user", turns[0][0], len(images) + 1)
        case 4:
            reason = "no_assistant_tokens"
            row["messages"] = row["messages"][:1]
    collides = draw(st.integers(0, 4)) == 0
    row["sample_id"] = draw(st.sampled_from([-1, 5])) if collides else content_id(row["images"], row["messages"])
    return row, reason


@st.composite
def dirty_shard(draw) -> list[tuple[dict, str | None]]:
    """Rows with distinct provenance, some with the content of another."""
    drawn = draw(st.lists(dirty_row(), max_size=8))
    repeated = draw(st.lists(st.sampled_from(drawn), max_size=4)) if drawn else []
    return [
        (row | {"file": "f" * (i % 2 + 1), "row": i}, reason) for i, (row, reason) in enumerate([*drawn, *repeated])
    ]


SETTINGS = st.builds(
    PackSettings,
    seq_len=st.sampled_from([60, 1100, 1200, 2500]),
    max_vision_cost=st.sampled_from([None, 17, 30]),
    max_images_per_pack=st.sampled_from([None, 1, 3]),
    max_images_per_sample=st.sampled_from([None, 1]),
    algorithm=st.sampled_from(sorted(ALGORITHMS)),
    num_packs_per_row_group=st.integers(1, 3),
    duplicates=st.sampled_from(["drop", "drop", "keep"]),
    seed=st.integers(0, 3),
)
FITS_NO_PACK = {"too_many_images", "too_long", "too_much_vision"}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shard=dirty_shard(), packing=SETTINGS, data=st.data())
def test_any_shard(encoder, tmp_path_factory, shard, packing, data):
    tmp_path = tmp_path_factory.getbasetemp()
    rows = [row for row, _ in shard]
    packed = pack_shard(as_spark_gives(rows), encoder, packing)
    packs = packs_of(packed)
    dropped = duplicates_among(rows) if packing.duplicates == "drop" else []
    assert_within_budgets(packs, packing)
    assert_nothing_is_lost(rows, packed, packs, encoder, dropped)
    reasons = {provenance(row): row["reason"] for row in packed.quarantine.to_pylist()}
    assert set(reasons.values()) <= set(REASONS)
    for row, reason in shard:
        if row not in dropped:
            given_reason = reasons.get(provenance(row))
            assert given_reason == reason or (reason is None and given_reason in FITS_NO_PACK)
    again = pack_shard(as_spark_gives(data.draw(st.permutations(rows))), encoder, packing)
    assert (again.quarantine, again.ledger, again.sums) == (packed.quarantine, packed.ledger, packed.sums)
    assert pa.concat_tables([PACK_SCHEMA.empty_table(), *again.row_groups()]) == pa.concat_tables(
        [PACK_SCHEMA.empty_table(), *packed.row_groups()]
    )
    if packed.num_packs:
        assert digest(file_bytes(again, tmp_path)) == digest(file_bytes(packed, tmp_path))
