"""The data source `huggingface`: what is on the Hub comes out, and with provenance each row names its place."""

import hashlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfFileSystem
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.demo.start import DEMO
from jobs.sources.huggingface import HuggingFace
from packing_udfs import contract
from tests.spark.made_sources import parquet, upload


def test_rows_come_back_as_they_were(spark, api):
    table = pa.table({"id": pa.array(range(10), pa.int64()), "text": [f"row {i}" for i in range(10)]})
    upload("user/numbers", {"data/train-00000-of-00001.parquet": parquet(table)})
    rows = spark.read.format(HuggingFace.name()).load("user/numbers")
    assert rows.schema == from_arrow_schema(table.schema)
    assert sorted(map(tuple, rows.collect())) == [(i, f"row {i}") for i in range(10)]


@pytest.mark.parametrize(
    ("repo", "options"),
    [("user/3d-data", {}), ("user/revisions", {"revision": "1.0"}), ("user/folders", {"data_dir": "my data"})],
)
def test_options_are_text(spark, api, repo, options):
    path = f"{options.get('data_dir', 'data')}/train-00000-of-00001.parquet"
    upload(repo, {path: parquet(pa.table({"id": [1, 2]}))})
    if "revision" in options:
        api.create_branch(repo, branch=options["revision"], repo_type="dataset")
    rows = spark.read.format(HuggingFace.name()).options(**options).load(repo)
    assert sorted(row.id for row in rows.collect()) == [1, 2]


def test_images_of_the_demo_source_are_the_shipped_bytes(source):
    def digests(tables) -> list[list[str]]:
        rows = [row for table in tables for row in table.to_pylist()]
        return sorted(
            [hashlib.sha256(image["bytes"]).hexdigest() if image["bytes"] else "" for image in row["images"] or ()]
            for row in rows
        )

    fs = HfFileSystem()
    uploaded = (pq.read_table(fs.open(path)) for path in fs.glob(f"datasets/{source}/photos_and_drawings/*.parquet"))
    shipped = (pq.read_table(file) for file in (DEMO / "source" / "photos_and_drawings").glob("*.parquet"))
    found = digests(uploaded)
    assert found == digests(shipped)
    assert len(found) == 93


def test_packs_read_through_spark_follow_the_contract(spark, packed):
    packs = spark.read.format(HuggingFace.name()).load("user/packed")
    assert packs.schema.simpleString() == from_arrow_schema(contract.PACK_SCHEMA).simpleString()
    totals = packed["splits"]["train"]["totals"]
    row = packs.selectExpr("count(*) n", "sum(num_tokens) tokens", "sum(size(images)) images").first()
    assert (row.n, row.tokens, row.images) == (totals["num_packs"], totals["num_tokens"], totals["num_images"])


def test_provenance_numbers_the_rows_of_each_file(spark, source):
    options = {"config": "charts_and_pages", "provenance": "true"}
    rows = spark.read.format(HuggingFace.name()).options(**options).load(source).select("_file", "_row", "texts")
    found = {(row["_file"], row["_row"]): row.texts for row in rows.collect()}
    fs = HfFileSystem()
    expected = {}
    for path in fs.glob(f"datasets/{source}/charts_and_pages/*.parquet"):
        for number, row in enumerate(pq.read_table(fs.open(path), columns=["texts"]).to_pylist()):
            expected[path.removeprefix(f"datasets/{source}/"), number] = row["texts"]
    assert len(found) == len(expected) == 136
    for key, texts in expected.items():
        assert [tuple(t.values()) for t in texts or ()] == [(t.user, t.assistant) for t in found[key] or ()]
