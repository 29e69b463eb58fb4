"""A shard packed again from its file: the same bytes for the same samples, and packs that stay when others change."""

from copy import deepcopy

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoProcessor

import packing_udfs.shard.pack_shard
from packing_udfs import contract
from packing_udfs.encode.encoder import Encoder
from packing_udfs.parquet.write import locations, write_shard
from packing_udfs.shard import keep_packs
from packing_udfs.shard.keep_packs import Key, checksum
from packing_udfs.shard.last_version import read_previous
from packing_udfs.shard.pack_shard import PackSettings, pack_shard
from packing_udfs.storage.byte_source import Source
from tests.unit.demo_samples import DEMO, as_spark_gives, demo_rows

SETTINGS = PackSettings(seq_len=4096, max_vision_cost=56, num_packs_per_row_group=4)
PATH = "data/train/00000.parquet"


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(AutoProcessor.from_pretrained(DEMO / "processor"))


def write(folder, packed) -> list[dict]:
    """Write a shard's file; its manifest rows."""
    (folder / PATH).parent.mkdir(parents=True, exist_ok=True)
    return write_shard(str(folder / PATH), PATH, packed.row_groups()).to_pylist()


def read(folder, rows, **options):
    return read_previous(Source(str(folder), 1.0), rows, **options)


def test_keys_are_what_the_packs_have(encoder, tmp_path):
    packed = pack_shard(as_spark_gives(demo_rows()), encoder, SETTINGS)
    rows = write(tmp_path, packed)
    previous = read(tmp_path, rows, with_tokens=True)
    assert previous.row_groups == [
        [
            [
                Key(u.sample_id, u.source, len(u.encoded.input_ids), len(u.sizes), checksum(u.encoded.input_ids))
                for u in pack
            ]
            for pack in group
        ]
        for group in packed.groups
    ]
    assert previous.vision_costs == [
        [sum(unit.encoded.vision_cost for unit in pack) for pack in group] for group in packed.groups
    ]
    assert {key.tokens for group in read(tmp_path, rows).row_groups for pack in group for key in pack} == {0}


@pytest.mark.parametrize("policy", ["quarantine", "split_turns"])
def test_the_same_samples_give_the_same_bytes(encoder, tmp_path, policy):
    settings = SETTINGS.model_copy(update={"over_length": policy, "seq_len": 2048})
    first = pack_shard(as_spark_gives(demo_rows()), encoder, settings)
    rows = write(tmp_path, first)
    before = (tmp_path / PATH).read_bytes()
    previous = read(tmp_path, rows, with_tokens=policy == "split_turns")
    again = pack_shard(as_spark_gives(demo_rows()[::-1]), encoder, settings, [previous])
    write(tmp_path, again)
    assert (tmp_path / PATH).read_bytes() == before
    assert again.files[0].plan.num_kept == first.num_packs
    assert first.files[0].plan is None


def test_one_edited_text_changes_one_pack(encoder, tmp_path):
    first = pack_shard(as_spark_gives(demo_rows()), encoder, SETTINGS)
    rows = write(tmp_path, first)
    before = pq.read_table(tmp_path / PATH).to_pylist()
    edited = deepcopy(demo_rows())
    wanted = first.groups[0][1][0].sample_id
    row = next(row for row in edited if row["sample_id"] == wanted)
    row["sample_id"] ^= 1
    row["messages"][-1]["content"][-1]["text"] = "No."
    previous = read(tmp_path, rows)
    again = pack_shard(as_spark_gives(edited), encoder, SETTINGS, [previous])
    write(tmp_path, again)
    after = pq.read_table(tmp_path / PATH).to_pylist()
    assert len(after) == len(before)
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert changed == [1]
    assert after[1]["images"] == before[1]["images"]  # at their places
    assert after[1]["sample_ids"][0] == wanted ^ 1


def test_a_file_that_is_damaged_is_an_error_that_names_it(encoder, tmp_path):
    packed = pack_shard(as_spark_gives(demo_rows()), encoder, SETTINGS)
    rows = write(tmp_path, packed)
    metadata = pq.read_metadata(tmp_path / PATH).row_group(1)
    ids = next(
        c for c in map(metadata.column, range(metadata.num_columns)) if c.path_in_schema.startswith("sample_ids")
    )
    data = bytearray((tmp_path / PATH).read_bytes())
    data[ids.data_page_offset + 40] ^= 1
    (tmp_path / PATH).write_bytes(data)
    with pytest.raises(contract.ContractError, match=r"00000.parquet row group 1: its bytes are damaged"):
        read(tmp_path, rows)


def test_only_light_columns_are_fetched(encoder, tmp_path):
    packed = pack_shard(as_spark_gives(demo_rows()), encoder, SETTINGS)
    rows = write(tmp_path, packed)
    fetched = []

    class Counting(Source):
        def read(self, path, offset, length, stop):
            fetched.append(length)
            return super().read(path, offset, length, stop)

    read_previous(Counting(str(tmp_path), 1.0), rows)
    assert len(fetched) == len(rows) + 1
    assert sum(fetched) < (tmp_path / PATH).stat().st_size / 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_group": 99}, "00000.parquet: it has no row group 99, which its manifest names"),
        ({"row_group": -1}, "00000.parquet: it has no row group -1, which its manifest names"),
        ({"footer_offset": 10**9}, "00000.parquet: its footer is not where"),
        ({"footer_offset": -1, "footer_bytes": 10, "file_bytes": 17}, "00000.parquet: its footer is not where"),
        ({"file_bytes": 10}, "00000.parquet: its footer is not where"),
    ],
)
def test_a_manifest_of_another_file_is_an_error_that_names_it(encoder, tmp_path, change, message):
    rows = write(tmp_path, pack_shard(as_spark_gives(demo_rows()), encoder, SETTINGS))
    with pytest.raises(contract.ContractError, match=message):
        read(tmp_path, [row | change for row in rows])


@pytest.mark.parametrize("name", ["sample_ids", "sample_sources", "sample_lengths", "sample_num_images"])
@pytest.mark.parametrize("change", [lambda value: value[1:], lambda value: [None, *value[1:]], lambda value: None])
def test_lists_of_samples_that_disagree_are_an_error(encoder, tmp_path, name, change):
    packed = pack_shard(as_spark_gives(demo_rows()), encoder, SETTINGS)
    rows = write(tmp_path, packed)
    table = next(packed.row_groups())
    lists = table[name].to_pylist()
    at = table.schema.get_field_index(name)
    odd = table.set_column(at, table.schema.field(at), pa.array([change(lists[0]), *lists[1:]], table.schema[at].type))
    schema = contract.PACK_SCHEMA.with_metadata(contract.parquet_metadata())
    with pq.ParquetWriter(tmp_path / PATH, schema, **contract.writer_options()) as writer:
        writer.write_table(odd.cast(schema))
    metadata = pq.read_metadata(tmp_path / PATH)
    rows = [rows[0] | place for place in locations(metadata, PATH, (tmp_path / PATH).stat().st_size)]
    with pytest.raises(contract.ContractError, match="row group 0: its lists of samples disagree"):
        read(tmp_path, rows)


def test_a_plan_that_loses_or_doubles_a_sample_is_never_written(encoder, monkeypatch):
    def lose(*args, **options):
        return keep_packs.Plan([[[0, 1], [2]]])

    def double(*args, **options):
        return keep_packs.Plan([[list(range(100)), list(range(100))]])

    previous = keep_packs.Previous([], [])
    for replan in (lose, double):
        monkeypatch.setattr(keep_packs, "replan", replan)
        with pytest.raises(AssertionError, match=r"\d+ samples came to be packed, \d+ are in packs"):
            pack_shard(as_spark_gives(demo_rows()), encoder, SETTINGS, [previous])


def test_a_part_of_a_shard_that_goes_to_no_file_is_never_written(encoder, monkeypatch):
    monkeypatch.setattr(packing_udfs.shard.pack_shard, "runs", lambda sizes, most: [slice(0, 5)])
    with pytest.raises(AssertionError, match=r"\d+ samples are counted as packed, 5 go to files"):
        pack_shard(as_spark_gives(demo_rows()), encoder, SETTINGS.model_copy(update={"max_file_bytes": 1}))
