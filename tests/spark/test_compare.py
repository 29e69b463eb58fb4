"""The comparison on sources of a Hub: its rows are the job's rows, and its command line writes a page."""

import json

import pyarrow as pa
import pytest

from jobs import compare
from jobs.demo.start import DEMO
from jobs.sources import sample
from jobs.sources.pin import pin, read
from jobs.sources.sample import read_sample
from packing_udfs import config, config_file
from packing_udfs.contract import SAMPLE_SCHEMA

CONF = str(DEMO.parent.parent / "conf" / "jobs" / "demo.yaml")


@pytest.fixture(scope="module")
def pinned(source):
    return [pin(s, f"sources.{i}") for i, s in enumerate(config_file.load(CONF).sources)]


def rows_of(frame) -> dict[tuple, dict]:
    """Samples by their provenance, as plain values."""
    rows = pa.Table.from_pandas(frame, SAMPLE_SCHEMA, preserve_index=False).to_pylist()
    found = {(row["source"], row["file"], row["row"]): row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture(scope="module")
def of_job(spark, pinned) -> dict[tuple, dict]:
    """All the demo's samples as the job reads them."""
    return {key: row for source in pinned for key, row in rows_of(read(spark, source).toPandas()).items()}


def test_all_rows_are_the_jobs_rows(spark, pinned, of_job):
    sampled = read_sample(spark, pinned, 2000, seed=0)
    assert sampled.num_rows_read == [136, 93]
    assert rows_of(sampled.frame) == of_job
    assert {row["reason"] for row in of_job.values()} == {None, "texts_missing", "ratings"}


def test_some_rows_are_some_of_the_jobs_rows(spark, pinned, of_job):
    """40 of 229 rows: 23.8 and 16.2 of the two sources."""
    sampled = read_sample(spark, pinned, 40, seed=1)
    assert sampled.num_rows_read == [24, 16]
    found = rows_of(sampled.frame)
    assert len(found) == 40
    assert all(of_job[key] == row for key, row in found.items())
    assert {file for _, file, _ in found} == {file.path for source in pinned for file in source.files}


def test_the_seed_draws_files(spark, pinned, monkeypatch):
    monkeypatch.setattr(sample, "NUM_SLICES", 1)
    files = [
        {file for _, file, _ in rows_of(read_sample(spark, pinned[:1], 5, seed).frame)} for seed in (1, 1, 2, 3, 4, 5)
    ]
    assert files[0] == files[1]
    assert {len(drawn) for drawn in files} == {1}
    assert len(set.union(*files)) > 1


def test_bytes_are_bounded(spark, pinned, monkeypatch, of_job):
    monkeypatch.setattr(sample, "MAX_BYTES", 500_000)
    sampled = read_sample(spark, pinned, 2000, seed=0)
    assert 0 < sum(sampled.num_rows_read) < 229
    assert len(sampled.frame) == sum(sampled.num_rows_read)
    images = [image for row in rows_of(sampled.frame).values() for image in row["images"] or []]
    assert sum(len(image["bytes"] or b"") for image in images) < 1_000_000


def test_command_line(spark, source, tmp_path, capsys):
    arguments = ["--config", CONF, f"processor.path={DEMO}/processor", "--max-samples", "60"]
    for name in ("one", "two"):
        assert compare.main([*arguments, "--out", str(tmp_path / name)], spark) == 0
    printed = capsys.readouterr().out
    assert "Balanced packing" in printed
    for file in ("compare.html", "compare.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    figures = json.loads((tmp_path / "one" / "compare.json").read_text())
    assert sum(source["num_rows_read"] for source in figures["sources"]) == 60
    # A step has 32 rows: steps of all 229 rows are estimated from these 60.
    naive = figures["stages"][0]
    assert naive["num_steps"] == -(-naive["num_rows"] * 229 // (60 * 32))


def test_any_format_adapter_and_weight(spark, api):
    """Ten conversations in a JSONL file, each used twice and some a third time."""
    rows = [{"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "Yes."}]}
            for i in range(10)]  # fmt: skip
    lines = "\n".join(map(json.dumps, rows)).encode()
    api.create_repo("user/compare-jsonl", repo_type="dataset", exist_ok=True)
    api.upload_file(
        path_or_fileobj=lines, path_in_repo="train.jsonl", repo_id="user/compare-jsonl", repo_type="dataset"
    )
    pinned = pin(config.Source(repo="user/compare-jsonl", weight=2.5), "sources.0")
    of_job = read(spark, pinned, 3).toPandas()
    sampled = read_sample(spark, [pinned], 100, seed=3)
    assert sampled.num_rows_read == [10]
    assert 20 < len(sampled.frame) < 30

    def plain(frame) -> list[dict]:
        table = pa.Table.from_pandas(frame, SAMPLE_SCHEMA, preserve_index=False)
        return table.sort_by([("row", "ascending"), ("copy", "ascending")]).to_pylist()

    assert plain(sampled.frame) == plain(of_job)
    assert read_sample(spark, [pinned], 4, seed=3).num_rows_read == [4]
