"""The `huggingface` source and writer, repaired: what the released 2.1.0 gets wrong, and what goes in comes out."""

import hashlib

import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from huggingface_hub import HfFileSystem
from pyspark.sql.pandas.types import from_arrow_schema

from jobs.demo.__main__ import DEMO
from jobs.sources.huggingface import HuggingFace
from packing_udfs import contract
from tests.spark.conftest import files_of


@pytest.fixture(scope="module")
def numbers(spark):
    return spark.createDataFrame([(i, f"row {i}") for i in range(10)], "id long, text string").coalesce(1)


def write(rows, repo: str, mode: str = "overwrite", **options) -> None:
    rows.write.format(HuggingFace.name()).mode(mode).options(**options).save(repo)


def ids(repo: str, split: str = "train") -> list[int]:
    return [row["id"] for row in load_dataset(repo, split=split, streaming=True)]


def test_rows_come_back_as_they_were(spark, numbers, api):
    api.create_repo("user/numbers", repo_type="dataset")
    write(numbers, "user/numbers")
    rows = spark.read.format(HuggingFace.name()).load("user/numbers")
    assert rows.schema == numbers.schema
    assert sorted(rows.collect()) == sorted(numbers.collect())


def test_overwriting_train_leaves_train_extra(numbers, api):
    api.create_repo("user/prefixes", repo_type="dataset")
    write(numbers, "user/prefixes", split="train_extra")
    write(numbers.where("id < 3"), "user/prefixes", split="train")
    write(numbers.where("id < 5"), "user/prefixes", split="train")
    assert ids("user/prefixes") == [0, 1, 2, 3, 4]
    assert [path for path in files_of(api, "user/prefixes") if path.startswith("data/train_extra-")]


def test_append_keeps_what_was_there(numbers, api):
    api.create_repo("user/appended", repo_type="dataset")
    write(numbers.where("id < 3"), "user/appended")
    write(numbers.where("id >= 8"), "user/appended", mode="append")
    assert ids("user/appended") == [0, 1, 2, 8, 9]


@pytest.mark.parametrize(
    ("repo", "options"),
    [("user/3d-data", {}), ("user/revisions", {"revision": "1.0"}), ("user/folders", {"data_dir": "my data"})],
)
def test_options_are_text(numbers, api, repo, options):
    api.create_repo(repo, repo_type="dataset")
    if "revision" in options:
        api.create_branch(repo, branch=options["revision"], repo_type="dataset")
    write(numbers, repo, **options)
    paths = api.list_repo_files(repo, repo_type="dataset", revision=options.get("revision"))
    assert f"{options.get('data_dir', 'data')}/train-00000-of-00001.parquet" in paths


def test_a_failed_write_shows_its_own_error(spark, api):
    api.create_repo("user/failing", repo_type="dataset")
    rows = spark.range(4).selectExpr("assert_true(id < 3, 'row 3 is bad') a")
    with pytest.raises(Exception, match="row 3 is bad"):
        write(rows, "user/failing")
    assert list(files_of(api, "user/failing")) == [".gitattributes"]


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
