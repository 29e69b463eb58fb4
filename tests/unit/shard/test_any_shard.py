"""Any shard: generated rows with every fault, any settings, and the invariants of packing."""

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packing_udfs.contract import PACK_SCHEMA, REASONS
from packing_udfs.knapsack import ALGORITHMS
from packing_udfs.shard.pack_shard import PackSettings, pack_shard
from tests.unit import nasty_images
from tests.unit.demo_samples import as_spark_gives, content_id, message
from tests.unit.packed_shards import (
    END_OF_TURN,
    NULL_MESSAGES,
    assert_nothing_is_lost,
    assert_within_budgets,
    digest,
    duplicates_among,
    file_bytes,
    packs_of,
    picture,
    provenance,
    sample,
)

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
