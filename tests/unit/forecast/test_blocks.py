"""Which rows are looked at before a job, and that each is read as the job reads it."""

import json
from pathlib import Path

import httpx2
import pyarrow as pa
import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from jobs.adapters.provenance import FILE, ROW
from jobs.forecast import blocks
from jobs.forecast.blocks import _choose, _read, draw_blocks
from jobs.shards.settings import settings
from jobs.sources.pin import open_reader, pin
from jobs.sources.pinned import SourceError
from jobs.sources.reading import Slice
from packing_udfs import config
from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.processor import fetch
from tests import drawn_sources

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<:DeprecationWarning", "ignore::ResourceWarning")
PROCESSOR = str(Path(__file__).parents[3] / "jobs" / "demo" / "processor")


@pytest.fixture(scope="module")
def parquet(session_hub):
    """Three files of 70 rows, in row groups of 30, 30 and 10."""
    made = drawn_sources.rows(210, 5)
    return pinned(drawn_sources.upload("user/blocks", made, num_files=3, row_group_size=30))


@pytest.fixture(scope="module")
def lines(session_hub):
    """Two files of 40 rows each that are read from their start alone."""
    api, repo = HfApi(), "user/blocks-of-lines"
    api.create_repo(repo, repo_type="dataset")
    rows = [{"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": "yes"}]}
            for i in range(80)]  # fmt: skip
    files = ["".join(json.dumps(row) + "\n" for row in part).encode() for part in (rows[:40], rows[40:])]
    operations = [CommitOperationAdd(f"{i}.jsonl", data) for i, data in enumerate(files)]
    api.create_commit(repo, operations, commit_message="add", repo_type="dataset")
    return pinned(repo)


def pinned(repo: str):
    tree = {"sources": [{"repo": repo}], "processor": {"path": PROCESSOR}, "output": {"repo": "user/out"}}
    return pin(config.parse(tree).sources[0], "sources.0")


def draw(source, num_rows: int, seed: int = 0, max_bytes: int = 1 << 30, **pack) -> list:
    tree = {"sources": [{"repo": "user/x"}], "processor": {"path": PROCESSOR}, "output": {"repo": "user/out"}}
    how = settings(config.parse(tree | {"pack": pack}))
    return list(draw_blocks(source, num_rows, max_bytes, Encoder(fetch(PROCESSOR).load()), how, (seed,)))


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 70), (0, 1), (69, 70), (29, 31), (30, 60), (10, 65), (60, None), (0, None)]
)
def test_a_slice_of_a_parquet_file_is_those_rows(parquet, start, stop):
    reader = open_reader(parquet)
    rows = [row for batch in reader.read(Slice(1, start, stop)) for row in batch.to_pylist()]
    assert [row[ROW] for row in rows] == list(range(70))[start:stop]
    assert {row[FILE] for row in rows} == {"data/train-00001-of-00003.parquet"}
    expected = drawn_sources.rows(210, 5)[70:140][start:stop]
    assert [row["texts"] for row in rows] == [row["texts"] for row in expected]
    assert [row["images"] for row in rows] == [row["images"] for row in expected]


@pytest.mark.parametrize("num_rows", [1, 40, 209, 210])
def test_so_many_rows_are_drawn_and_none_twice(parquet, num_rows):
    reader = open_reader(parquet)
    parts = _choose(reader, parquet, num_rows, (3,))
    rows = [(row[FILE], row[ROW]) for part in parts for row in _read(reader, part)]
    assert len(set(rows)) == len(rows)
    assert num_rows <= len(rows) < num_rows + max(1, num_rows // 16)
    assert len({part.file for part in parts}) == (1 if num_rows == 1 else 3)


def test_a_seed_draws_its_own_rows(parquet):
    reader = open_reader(parquet)
    one, again, other = (_choose(reader, parquet, 40, (seed,)) for seed in (1, 1, 2))
    assert one == again != other


def test_files_without_random_access_give_their_first_rows(lines):
    reader = open_reader(lines)
    parts = _choose(reader, lines, 20, (0,))
    rows = {(row[FILE], row[ROW]) for part in parts for row in _read(reader, part)}
    assert rows == {(f"{i}.jsonl", row) for i in range(2) for row in range(10)}
    whole = _choose(reader, lines, 80, (0,))
    assert sum(part.stop - part.start for part in whole) == 80


def test_blocks_say_what_is_in_their_rows(lines):
    blocks = draw(lines, 80)
    assert sum(block.num_rows for block in blocks) == 80
    assert sum(len(block.amounts) for block in blocks) == 80
    assert sum(block.num_bytes for block in blocks) == sum(len(f"{i}?yes") for i in range(80))
    assert {int(n) for block in blocks for n in block.amounts["num_images"]} == {0}
    assert all(0 < block.num_label_tokens < block.amounts["num_tokens"].sum() for block in blocks)


def test_a_row_that_was_seen_is_a_duplicate(session_hub):
    """Ten rows, eight times: blocks of five see each one twice before the others do."""
    repo = drawn_sources.upload("user/blocks-again", drawn_sources.rows(10, 6) * 8, num_files=1)
    source = pinned(repo)
    assert sum(block.num_duplicates for block in draw(source, 80)) == 70
    assert sum(len(block.amounts) for block in draw(source, 80)) == 10


def test_reading_stops_at_so_many_bytes(parquet):
    whole = draw(parquet, 210)
    num_bytes = sum(block.num_bytes for block in whole)
    part = draw(parquet, 210, max_bytes=num_bytes // 3)
    assert 0 < len(part) < len(whole)
    assert part[-1] != whole[-1]
    assert sum(block.num_bytes for block in part[:-1]) < num_bytes // 3 <= sum(block.num_bytes for block in part)


def test_a_busy_moment_is_waited_for_and_an_answer_is_not(parquet, monkeypatch):
    """Each block is read again by itself, and the rows are those of an undisturbed draw."""
    read, expected, asked = blocks._read, draw(parquet, 70), []

    def busy_at_times(reader, part):
        asked.append(part)
        if len(asked) in (1, 2, 5):
            raise httpx2.ConnectError("busy")
        return read(reader, part)

    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    monkeypatch.setattr(blocks, "_read", busy_at_times)
    found = draw(parquet, 70)
    assert len(asked) == len(expected) + 3
    assert [block.amounts["num_tokens"].tolist() for block in found] == [
        block.amounts["num_tokens"].tolist() for block in expected
    ]
    for error in (OSError("cut"), pa.ArrowInvalid("no page"), RuntimeError("xet")):
        monkeypatch.setattr(blocks, "_read", lambda *args, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(SourceError, match=f"sources.0.repo: rows of user/blocks cannot be read: {error}"):
            draw(parquet, 70)
