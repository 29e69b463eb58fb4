"""Limits and weights: how often each row is used, which rows, and a ledger that counts the rest."""

from collections import Counter
from itertools import pairwise

import pytest

from jobs.adapters.copies import with_copies
from jobs.shards.ledger import Ledger, LedgerError
from jobs.sources.pin import pin, read
from packing_udfs.shard.outcomes import NOT_SAMPLED
from tests.spark.made_sources import VQA, parquet, source, upload, vqa_rows
from tests.spark.test_job import read_packs

NUM_ROWS = 400


@pytest.fixture(scope="module")
def weighed(spark) -> str:
    """400 rows, of which row 7 has no answer and row 8 repeats row 9."""
    rows = vqa_rows(0, NUM_ROWS, side=8)
    rows[7]["answer"] = None
    rows[8] = rows[9]
    return upload(
        "user/weighed", {"data/a.parquet": parquet(rows[:150], VQA), "data/b.parquet": parquet(rows[150:], VQA)}
    )


@pytest.fixture(scope="module")
def rows(spark, weighed):
    return read(spark, pin(source(weighed), "sources.0")).cache()


def used(rows, seed: int = 0, **fields) -> Counter:
    """How often each row is used, by (file, row); 0 for those that are not."""
    found = with_copies(rows, source("user/weighed", **fields), NUM_ROWS, seed).collect()
    places = Counter()
    for row in found:
        is_used = row.reason != NOT_SAMPLED
        places[row.file, row.row] += is_used
        assert (row.messages is None) == (row.images is None) == (row.reason is not None)
    copies = Counter((row.file, row.row, row.copy) for row in found)
    assert set(copies.values()) == {1}
    assert all(copies[file, row, copy - 1] for file, row, copy in copies if copy)  # 0, 1, 2 …
    assert len(places) == NUM_ROWS
    return places


def test_all_rows_once(rows):
    assert set(used(rows).values()) == {1}


def test_a_quarter(rows):
    places = used(rows, weight=0.25)
    assert set(places.values()) == {0, 1}
    assert 75 <= sum(places.values()) <= 125
    assert rows.where("row in (8, 9) and file = 'data/a.parquet'").select("sample_id").distinct().count() == 1
    assert places["data/a.parquet", 8] == places["data/a.parquet", 9]  # equal content, equal fate


def test_two_copies_and_half_a_third(rows):
    places = used(rows, weight=2.5)
    counts = Counter(places.values())
    assert set(counts) == {1, 2, 3}
    assert counts[1] == places["data/a.parquet", 7] == 1  # no sample: once, for the quarantine
    assert 160 <= counts[3] <= 240


def test_a_limit(rows):
    places = used(rows, limit=100)
    assert 75 <= sum(places.values()) <= 125
    assert set(used(rows, limit=NUM_ROWS).values()) == {1}
    assert set(used(rows, limit=10 * NUM_ROWS).values()) == {1}
    both = used(rows, limit=100, weight=3.0)
    assert {place: 3 * num for place, num in places.items() if place[1] != 7} == {
        place: num for place, num in both.items() if place[1] != 7
    }


def test_the_choice_depends_on_the_seed_and_on_nothing_around_it(rows):
    first = used(rows, weight=0.5)
    assert used(rows.repartition(7), weight=0.5) == first
    assert used(rows, seed=1, weight=0.5) != first
    part = rows.where("file = 'data/b.parquet'")
    alone = with_copies(part, source("user/weighed", weight=0.5), NUM_ROWS, 0).collect()
    assert {(r.file, r.row): int(r.reason != NOT_SAMPLED) for r in alone} == {
        place: num for place, num in first.items() if place[0] == "data/b.parquet"
    }


def test_more_weight_keeps_what_less_has(rows):
    chosen = [used(rows, weight=weight) for weight in (0.2, 0.6, 1.0, 1.4, 2.0)]
    for less, more in pairwise(chosen):
        assert all(less[place] <= more[place] for place in less)


def test_a_weighed_job(run_demo, weighed):
    """Copies are packed and no duplicates of each other; every row is accounted for."""
    report = run_demo(
        "user/packed-weighed",
        sources=[
            {"repo": weighed, "name": "more", "weight": 2.5},
            {"repo": weighed, "name": "fewer", "weight": 0.25},
            {"repo": weighed, "name": "some", "limit": 40},
        ],
    )
    more, fewer, some = report["sources"]
    for counts in report["sources"]:
        came_out = sum(counts[f"num_{name}"] for name in ("packed", "quarantined", "duplicates", "not_sampled"))
        assert counts["num_rows"] + counts["num_copies"] == came_out
        assert counts["num_rows"] == NUM_ROWS
    # Of the sources with equal samples the first by name has them; of "more" these are the second and third copies.
    assert more["num_not_sampled"] == 0
    assert more["num_copies"] == pytest.approx(NUM_ROWS * 1.5, abs=60)
    assert fewer["num_copies"] == some["num_copies"] == 0
    assert fewer["num_not_sampled"] == pytest.approx(300, abs=40)
    assert some["num_not_sampled"] == pytest.approx(360, abs=25)
    packed = Counter(sample_id for pack in read_packs("user/packed-weighed") for sample_id in pack["sample_ids"])
    assert len(packed) == NUM_ROWS - 2
    assert set(packed.values()) == {2, 3}
    assert sum(packed.values()) == sum(counts["num_packed"] for counts in report["sources"])


def test_the_ledger_counts_copies():
    """A row that is lost shows, whatever the number of copies."""

    class Pinned:
        source = source("user/x")
        num_rows = 10

    def ledger(num_rows: int, num_copies: int) -> Ledger:
        line = {"source": "x", "outcome": "packed", "reason": "", "num_rows": num_rows, "num_copies": num_copies}
        table = Ledger.merge([]).table
        return Ledger(table.from_pylist([line], schema=table.schema))

    ledger(15, 5).check([Pinned])
    with pytest.raises(LedgerError, match="source x: 10 rows in its files and 5 copies, 14 accounted for"):
        ledger(14, 5).check([Pinned])
