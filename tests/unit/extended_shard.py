"""Packs the demo with a copy of the code that has one more axis or column, and checks what became of it.

Run by `tests/unit/test_extending.py` inside the copy: python -m tests.unit.extended_shard axis | column.
"""

import sys
from collections.abc import Iterator

import pyarrow as pa
from transformers import AutoProcessor

from packing_udfs import walk
from packing_udfs.encode.encoder import Encoder
from packing_udfs.parquet.ranges import read_footer
from packing_udfs.parquet.read import Packs, read_row_group
from packing_udfs.parquet.write import write_shard
from packing_udfs.published.check import Limits, check_row_group
from packing_udfs.shard.assemble import assemble, units_of
from packing_udfs.shard.pack_shard import PackedShard, PackSettings, pack_shard
from packing_udfs.storage.byte_source import Stop
from packing_udfs.storage.hub import open_source
from tests.unit.demo_samples import DEMO, as_spark_gives, demo_rows

LIMITS = {"seq_len": 4096, "max_vision_cost": 56}
MOST = 2_000**2


def pack(encoder: Encoder, limits: dict) -> PackedShard:
    return pack_shard(as_spark_gives(demo_rows()), encoder, PackSettings(**limits))


def row_groups(packed: PackedShard, encoder: Encoder, limits: dict) -> Iterator[tuple[pa.Table, dict, Packs]]:
    """(table, its row of the manifest, its packs as the reader gives them), which hold what they should."""
    places = write_shard("shard.parquet", "shard.parquet", packed.row_groups()).to_pylist()
    source, stop = open_source(".", retry_seconds=0), Stop()
    for table, place in zip(packed.row_groups(), places, strict=True):
        assert list(check_row_group(table, Limits(pack=limits, family=encoder.family))) == []
        assert taken_apart(table, encoder).equals(table)
        data = source.read(place["file"], place["offset"], place["bytes"], stop)
        read, images = read_row_group(data, place, read_footer(source, place, stop))
        yield table, place, Packs(read, images, place["file"], place["row_group"])


def taken_apart(table: pa.Table, encoder: Encoder) -> pa.Table:
    """A row group whose packs were taken apart and packed again, as a takedown does."""

    def vision_cost(sizes: tuple) -> int:
        return sum(image.vision_cost for image in encoder.family.expand(sizes))

    return pa.Table.from_batches([assemble([units_of(pack, vision_cost) for pack in walk.packs(table)])])


def check_axis(encoder: Encoder) -> None:
    """The limit holds in each pack; a sample over it is in the quarantine; histograms and checks know it."""
    limits = LIMITS | {"max_attention_cost": MOST}
    packed = pack(encoder, limits)
    for table, place, packs in row_groups(packed, encoder, limits):
        costs = [sum(n * n for n in lengths) for lengths in table["sample_lengths"].to_pylist()]
        assert max(costs) <= MOST
        assert costs == table["attention_cost"].to_pylist() == place["attention_cost"]
        assert costs == [packs[i]["attention_cost"] for i in range(table.num_rows)]
        fault = next(check_row_group(table, Limits(pack={"max_attention_cost": max(costs) - 1})))
        assert fault.field == "attention_cost"
        assert fault.message == f"{max(costs)}, max_attention_cost is {max(costs) - 1}"
    over = [row for row in packed.quarantine.to_pylist() if row["reason"] == "too_much_attention"]
    assert over
    for row in over:
        assert row["num_tokens"] ** 2 > MOST
        assert row["detail"] == f"attention cost {row['num_tokens'] ** 2}, at most {MOST}"
    lengths = [n for table in pack(encoder, LIMITS).row_groups() for n in table["sample_lengths"].to_pylist()]
    assert any(sum(n * n for n in of_pack) > MOST >= max(of_pack) ** 2 for of_pack in lengths)
    assert sum(packed.sums["histograms"]["pack_attention"].values()) == packed.num_packs
    assert sum(packed.sums["histograms"]["sample_attention"].values()) == packed.sums["num_samples"]


def check_column(encoder: Encoder) -> None:
    """Each sample's copy is in its pack and reaches the reader; checks know how many there must be."""
    rows = [row | {"copy": row["row"] % 3} for row in demo_rows()]
    copies_of = {(row["sample_id"], row["source"], row["copy"]) for row in rows}
    found = set()
    for table, _, packs in row_groups(
        pack_shard(as_spark_gives(rows), encoder, PackSettings(**LIMITS)), encoder, LIMITS
    ):
        for i, stored in enumerate(table.to_pylist()):
            names = ("sample_ids", "sample_sources", "sample_copies")
            assert copies_of.issuperset(zip(*(stored[name] for name in names), strict=True))
            assert list(packs[i]["sample_copies"]) == stored["sample_copies"]
            found |= set(stored["sample_copies"])
        copies = table["sample_copies"].to_pylist()
        lists = pa.array([c[:-1] for c in copies], pa.list_(pa.int32()))
        short = table.set_column(table.column_names.index("sample_copies"), "sample_copies", lists)
        fault = next(check_row_group(short, Limits(pack={})))
        assert fault.field == "sample_copies"
        assert fault.message == f"{len(copies[0]) - 1} values, sample_ids has {len(copies[0])}"
    assert found == {0, 1, 2}


if __name__ == "__main__":
    check = {"axis": check_axis, "column": check_column}[sys.argv[1]]
    check(Encoder(AutoProcessor.from_pretrained(DEMO / "processor")))
