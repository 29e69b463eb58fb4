"""Packing one shard: nothing is lost, no budget is broken, and the order of the rows that come in does not matter."""

import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from packing_udfs.contract import PACK_SCHEMA, QUARANTINE_SCHEMA, SAMPLE_SCHEMA
from packing_udfs.knapsack import ALGORITHMS
from packing_udfs.shard import assemble
from packing_udfs.shard.outcomes import LEDGER_SCHEMA
from packing_udfs.shard.pack_shard import PackSettings, pack_shard
from tests.unit.demo_samples import as_spark_gives
from tests.unit.packed_shards import (
    DEMO_SETTINGS,
    NULL_MESSAGES,
    assert_nothing_is_lost,
    assert_within_budgets,
    duplicates_among,
    file_bytes,
    outcomes,
    pack_rows,
    packs_of,
    picture,
    provenance,
    sample,
)

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
    frame = pd.DataFrame(rows, columns=SAMPLE_SCHEMA.names, index=range(1000, 1000 + len(rows)))[::-1]
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
    again = pack_shard(as_spark_gives(rows), encoder, DEMO_SETTINGS.model_copy(update={"seed": 1}))
    assert file_bytes(again, tmp_path) != file_bytes(packed, tmp_path)
    assert sorted(row["sample_ids"] for row in packs_of(again)) == sorted(row["sample_ids"] for row in packs_of(packed))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_keeps_every_sample(rows, encoder, algorithm):
    settings = DEMO_SETTINGS.model_copy(update={"algorithm": algorithm})
    packed = pack_shard(as_spark_gives(rows), encoder, settings)
    packs = packs_of(packed)
    assert_within_budgets(packs, settings)
    assert sum(len(row["sample_ids"]) for row in packs) == 218


# Made-up rows


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
