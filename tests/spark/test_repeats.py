"""A row that a source has many times sends its images to its shard once a file, and nothing else changes for it."""

import hashlib
from pathlib import Path

import pytest

from jobs import pack
from jobs.output.finished_shard import from_ipc
from jobs.output.interface import Head
from jobs.shards import settings
from jobs.shards.collect import collect
from jobs.shards.ledger import Ledger
from jobs.shards.plan import plan_shards
from jobs.shards.udf import ShardWork
from jobs.sources.pin import pin, read
from packing_udfs import config
from packing_udfs.encode.processor import fetch
from packing_udfs.shard.outcomes import REPEATED
from tests.spark.conftest import DEMO, demo_tree
from tests.spark.made_sources import VQA, parquet, source, upload, vqa_rows

X, A, B, UNANSWERED = (0, 1, 2, 3)
FILES = {"data/a.parquet": [X, A, X, UNANSWERED, X, UNANSWERED], "data/b.parquet": [X, B, X, B, X, X]}


@pytest.fixture(scope="module")
def repeating(spark) -> str:
    """Twelve rows, of which seven are X; X first stands in row 0 of file a."""
    rows = vqa_rows(0, 4)
    rows[UNANSWERED]["answer"] = None
    files = {path: parquet([rows[i] for i in order], VQA) for path, order in FILES.items()}
    return upload("user/repeating", files)


def test_repeats_come_without_their_images(spark, repeating):
    rows = read(spark, pin(source(repeating), "sources.0"), drops_duplicates=True).collect()
    found = {(row.file, row.row): row for row in rows}
    repeats = {place for place, row in found.items() if row.reason == REPEATED}
    assert repeats == {("data/a.parquet", 2), ("data/a.parquet", 4), *(("data/b.parquet", i) for i in (2, 3, 4, 5))}
    assert {(row.messages, bytes(row.images[0].bytes)) for row in rows if row.reason == REPEATED} == {(None, b"")}
    assert {row.reason for place, row in found.items() if place not in repeats} == {None, "texts_missing"}
    assert len({row.sample_id for row in rows}) == 2 + len(repeats) + 3  # X meets X, and A and B are themselves
    assert len({found[place].sample_id for place in (("data/a.parquet", 0), ("data/b.parquet", 0))}) == 1


def test_a_limit_a_weight_or_kept_duplicates_need_them(spark, repeating):
    for fields, drops in (({"limit": 10}, True), ({"weight": 2.0}, True), ({}, False)):
        rows = read(spark, pin(source(repeating, **fields), "sources.0"), drops_duplicates=drops).collect()
        assert REPEATED not in {row.reason for row in rows}
        assert all(row.row >= 0 for row in rows)


def test_the_dataset_and_its_counts_are_the_same(spark, repeating):
    tree = demo_tree("user/unrepeated", shards={"num_shards": 2}) | {"sources": [{"repo": repeating, "name": "s"}]}
    parsed = config.parse(tree)
    pinned = pin(parsed.sources[0], "sources.0")
    plan = plan_shards(parsed, [pinned], Head(None))
    work = ShardWork(settings.settings(parsed), fetch(str(DEMO / "processor")), plan, _digest)
    with_all, without = (collect(read(spark, pinned, drops_duplicates=drops), work) for drops in (False, True))
    assert [(row.path, row.operation) for row in with_all] == [(row.path, row.operation) for row in without]
    assert any(row.operation for row in without)
    ledgers = [Ledger.merge(from_ipc(row.ledger) for row in rows) for rows in (with_all, without)]
    assert ledgers[0].table.equals(ledgers[1].table)
    counts = {(line["outcome"], line["reason"]): line["num_rows"] for line in ledgers[1].table.to_pylist()}
    assert counts == {("packed", ""): 3, ("duplicate", ""): 7, ("quarantined", "texts_missing"): 2}
    ledgers[1].check([pinned])


def _digest(path: str, file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_each_byte_of_a_source_is_read_once(spark, session_hub):
    """Beside them only footers, in reads of 64 KiB: to see the columns, to count the rows, to read them."""
    files = {}
    for i in range(2):
        files[f"data/{i}.parquet"] = parquet(vqa_rows(100 * i, 100 * i + 60, side=300), VQA, row_group_size=20)
    num_bytes = sum(map(len, files.values()))
    assert num_bytes > 6e6
    repo = upload("user/read-once", files)
    tree = demo_tree("user/read-once-packed", shards={"num_shards": 2}) | {"sources": [{"repo": repo, "name": "s"}]}
    session_hub.requests.clear()
    pack.run(config.parse(tree), spark)
    sent = sum(record.bytes_out for record in session_hub.requests if f"/{repo}/resolve/" in record.path)
    assert num_bytes <= sent <= num_bytes + len(files) * 3 * (64 << 10)
