"""The contract's own promises, and that `datasets`, Parquet and the code agree with them."""

import ast
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Features, Image, List, Value, load_dataset

from packing_udfs import contract
from packing_udfs.knapsack.axes import AXES
from packing_udfs.parquet.ranges import column_of
from packing_udfs.parquet.write import write_shard
from tests.unit.made_packs import packs_table

ROOT = Path(__file__).parents[2]
SCHEMAS = {
    "pack": contract.PACK_SCHEMA,
    "sample": contract.SAMPLE_SCHEMA,
    "quarantine": contract.QUARANTINE_SCHEMA,
    "manifest": contract.MANIFEST_SCHEMA,
}
PACK_FEATURES = Features(
    {
        "images": List(Image()),
        "input_ids": List(Value("int32")),
        "labels": List(Value("int32")),
        "sample_lengths": List(Value("int32")),
        "sample_num_images": List(Value("int32")),
        "image_num_tokens": List(Value("int32")),
        "image_sizes": List({"height": Value("int32"), "width": Value("int32")}),
        "sample_ids": List(Value("int64")),
        "sample_sources": List(Value("string")),
        "sample_files": List(Value("string")),
        "sample_rows": List(Value("int64")),
        "sample_kept": List(Value("string")),
        "num_tokens": Value("int32"),
        "num_label_tokens": Value("int32"),
        "num_images": Value("int32"),
        "vision_cost": Value("int32"),
    }
)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A shard of two row groups, 3 and 2 packs."""
    path = tmp_path_factory.mktemp("contract") / "00000.parquet"
    write_shard(str(path), "data/train/00000.parquet", [packs_table(0, 3), packs_table(3, 2)])
    return path


def test_features_are_those_of_datasets():
    assert contract.features() == PACK_FEATURES.to_dict()
    assert PACK_FEATURES.arrow_schema.remove_metadata() == contract.PACK_SCHEMA


@pytest.mark.parametrize("name", SCHEMAS)
def test_features_of_every_schema_lead_back_to_it(name):
    schema = SCHEMAS[name]
    assert Features.from_dict(contract.features(schema)).arrow_schema.remove_metadata() == schema


def test_load_dataset_finds_images_by_the_file_alone(file, tmp_path):
    """No card beside it: the `huggingface` key says what a struct of bytes and path is."""
    loaded = load_dataset("parquet", data_files=str(file), split="train", cache_dir=str(tmp_path))
    assert loaded.features == PACK_FEATURES
    expected = pa.concat_tables([packs_table(0, 3), packs_table(3, 2)]).to_pylist()
    assert loaded.cast_column("images", List(Image(decode=False))).to_list() == expected
    first = next(pack for pack in loaded if pack["images"])
    assert [(i.height, i.width) for i in first["images"]] == [(s["height"], s["width"]) for s in first["image_sizes"]]


def fields(kind: pa.DataType):
    """The fields inside a type, at every level."""
    inner = [kind.value_field] if pa.types.is_list(kind) else list(kind) if pa.types.is_struct(kind) else []
    for field in inner:
        yield field
        yield from fields(field.type)


@pytest.mark.parametrize("name", SCHEMAS)
def test_nullable_at_every_level(name):
    """`datasets` takes a struct for an Image only when nothing in it is declared non-null."""
    nested = [inner for field in SCHEMAS[name] for inner in fields(field.type)]
    assert all(field.nullable for field in [*SCHEMAS[name], *nested])


def test_leaf_paths_are_parquets_own(file):
    schema = pq.read_schema(file)
    metadata = pq.read_metadata(file)
    assert contract.leaf_paths(schema) == [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    assert contract.leaf_paths(pa.schema([("a", pa.list_(pa.list_(pa.struct([("b", pa.int8())]))))])) == [
        "a.list.element.list.element.b"
    ]


def test_every_leaf_is_stored_as_it_should_be(file):
    """Media: PLAIN and as they are. Else: zstd with a dictionary. Statistics on scalars. Offsets of pages on all."""
    metadata = pq.read_metadata(file)
    for group in range(metadata.num_row_groups):
        columns = {c.path_in_schema: c for c in map(metadata.row_group(group).column, range(metadata.num_columns))}
        media = columns.pop("images.list.element.bytes")
        assert (media.compression, media.has_dictionary_page) == ("UNCOMPRESSED", False)
        assert set(media.encodings) == {"PLAIN", "RLE"}  # RLE is of the repetition and definition levels
        assert {c.compression for c in columns.values()} == {"ZSTD"}
        assert all(c.has_dictionary_page for c in columns.values())
        assert all(c.has_offset_index for c in [media, *columns.values()])
        scalars = {"num_tokens", "num_label_tokens", "num_images", "vision_cost"}
        assert {path for path, c in columns.items() if c.is_stats_set} == scalars
        assert {path for path, c in columns.items() if c.has_column_index} == scalars
        assert not media.is_stats_set


def test_media_bytes_stand_in_the_file_as_they_came(file):
    """What content-defined chunks and Xet find again: the source's bytes, whole."""
    data = file.read_bytes()
    images = [image["bytes"] for pack in packs_table(0, 5).to_pylist() for image in pack["images"]]
    assert len(images) >= 4
    assert all(image in data for image in images)


def test_file_metadata(file):
    metadata = pq.read_metadata(file).metadata
    assert json.loads(metadata[b"content_defined_chunking"]) == {
        "min_chunk_size": 16_777_216,
        "max_chunk_size": 67_108_864,
        "norm_level": 0,
    }
    assert metadata[b"packing_contract"] == b"2"
    assert json.loads(metadata[b"huggingface"])["info"]["features"] == PACK_FEATURES.to_dict()


def test_chunking_is_in_force(tmp_path):
    """Pages of media end by content: a pack less at the front, and the last 70 MB are as they were, with the header of
    a page or more, as none is longer than 64 MiB. Without it, all are one page."""
    rng = np.random.default_rng(0)
    packs = [{"images": [{"bytes": rng.bytes(1_000_000), "path": None}]} for _ in range(128)]

    def column(version, cdc: bool) -> bytes:
        buffer = io.BytesIO()
        options = contract.writer_options() | ({} if cdc else {"use_content_defined_chunking": False})
        pq.write_table(pa.Table.from_pylist(version, schema=contract.PACK_SCHEMA), buffer, **options)
        chunk = column_of(pq.read_metadata(buffer).row_group(0), "images.list.element.bytes")
        return buffer.getvalue()[chunk.data_page_offset :][: chunk.total_compressed_size]

    whole, less = column(packs, True), column(packs[1:], True)
    assert len(whole) > len(column(packs, False)) > 128_000_000
    assert whole[-70_000_000:] == less[-70_000_000:]


def test_options_for_a_schema_without_media():
    options = contract.writer_options(contract.QUARANTINE_SCHEMA)
    assert options["column_encoding"] is None
    assert set(options["compression"].values()) == {"zstd"}
    assert options["write_statistics"] == options["use_dictionary"] == contract.QUARANTINE_SCHEMA.names


def reasons_in(path: Path) -> set[str]:
    """Reasons that a module gives: first arguments of ImageError and EncodeError, values of `when` in Spark SQL, and
    constants that a detail is joined to, as in "role_unknown: "."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", None))
            given = {"ImageError": node.args[:1], "EncodeError": node.args[:1], "when": node.args[1:2]}.get(name, [])
            texts = [arg.value for arg in given if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            joined = [arg.value for arg in node.args[:1] if name == "constant" and isinstance(arg, ast.Constant)]
            texts += [text for text in joined if isinstance(text, str) and ": " in text]
            found |= {text.partition(": ")[0] for text in texts}
    return found


def test_reasons_are_the_ones_in_use():
    modules = [*ROOT.glob("packing_udfs/**/*.py"), *ROOT.glob("jobs/adapters/*.py")]
    by_module = {path.stem: reasons_in(path) for path in modules}
    assert {module for module, reasons in by_module.items() if reasons} >= {
        "images",
        "encoder",
        "pack_shard",
        "finevision",
    }
    assert set.union({axis.reason for axis in AXES}, *by_module.values()) == set(contract.REASONS)
    assert all(contract.REASONS.values())
