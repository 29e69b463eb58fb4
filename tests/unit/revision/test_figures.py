"""The ledger that must balance, figures from row groups, and the three forms of a report."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pytest

from jobs.output.finished_shard import ShardFile, to_ipc
from jobs.revision import figures as figures_module
from jobs.shards.ledger import Ledger, LedgerError, QualityError, check_packed, examples, ledger_of
from packing_udfs import contract
from packing_udfs.contract import QUARANTINE_SCHEMA
from packing_udfs.manifest import as_json
from packing_udfs.parquet.write import write_shard
from packing_udfs.published.shape import Report
from packing_udfs.shard.outcomes import LEDGER_SCHEMA
from tests.unit.made_packs import packs_table

COUNTS = [name for name in LEDGER_SCHEMA.names if name.startswith("num_")]


def ledger(*lines: tuple) -> pa.Table:
    """Lines of (source, outcome, reason, num_rows[, num_tokens]); other counts are 0."""
    rows = []
    for source, outcome, reason, num_rows, *num_tokens in lines:
        row = dict.fromkeys(COUNTS, 0) | {"source": source, "outcome": outcome, "reason": reason}
        rows.append(row | {"num_rows": num_rows, "num_tokens": sum(num_tokens)})
    return pa.Table.from_pylist(rows, schema=LEDGER_SCHEMA)


ONE = ledger(("a", "packed", "", 5, 50), ("a", "quarantined", "too_long", 1, 99), ("b", "packed", "", 2, 20))
OTHER = ledger(("b", "duplicate", "", 3), ("a", "quarantined", "ratings", 2), ("a", "packed", "", 4, 40))


@pytest.fixture
def merged() -> Ledger:
    return Ledger.merge([ONE, OTHER])


def pinned(**num_rows: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(source=SimpleNamespace(name=name), num_rows=rows) for name, rows in num_rows.items()]


def test_merge_adds_up_and_sorts(merged):
    assert merged.table == ledger(
        ("a", "packed", "", 9, 90),
        ("a", "quarantined", "ratings", 2),
        ("a", "quarantined", "too_long", 1, 99),
        ("b", "duplicate", "", 3),
        ("b", "packed", "", 2, 20),
    )


def test_merge_does_not_depend_on_order(merged):
    assert Ledger.merge([OTHER, ONE]).table == merged.table
    assert Ledger.merge([]).table == LEDGER_SCHEMA.empty_table()


def test_counts(merged):
    assert merged.count() == 17
    assert merged.count(outcome="packed") == 11
    assert merged.count(source="a", outcome="quarantined") == 3
    assert merged.count("num_tokens", source="a") == 189
    assert merged.count(source="c") == 0
    assert merged.reasons() == {"ratings": 2, "too_long": 1}


def test_a_ledger_that_balances(merged):
    merged.check(pinned(a=12, b=5))


@pytest.mark.parametrize(
    ("num_a", "num_b", "message"), [(13, 5, "source a: 13 .*12 acc"), (12, 4, "source b: 4 .*5 acc")]
)
def test_a_row_lost_and_a_row_too_many(merged, num_a, num_b, message):
    with pytest.raises(LedgerError, match=message):
        merged.check(pinned(a=num_a, b=num_b))


def test_a_source_of_which_nothing_came_out(merged):
    with pytest.raises(LedgerError, match=r"source c: 1 rows in its files.*0 accounted for"):
        merged.check(pinned(a=12, b=5, c=1))


def test_sources_do_not_make_up_for_each_other():
    """The total is right; one has a row too many."""
    moved = Ledger.merge([ledger(("a", "packed", "", 11), ("b", "packed", "", 6))])
    with pytest.raises(LedgerError):
        moved.check(pinned(a=12, b=5))


def result(shard: int, in_packs: tuple, in_sums: tuple, num_rows: int | None) -> ShardFile:
    """A shard's file: (samples, tokens) of what was written and of what was to be, and packed rows."""
    written = {"file": "f", "num_samples": in_packs[0], "num_tokens": in_packs[1]}
    row_groups = pa.Table.from_pylist([written] if in_packs[0] else [], schema=contract.MANIFEST_SCHEMA)
    lines = [] if num_rows is None else [("a", "packed", "", num_rows), ("a", "quarantined", "ratings", 7)]
    return ShardFile(
        shard=shard,
        path="f",
        row_groups=to_ipc(row_groups) if in_packs[0] else None,
        sums=json.dumps({"num_samples": in_sums[0], "num_tokens": in_sums[1]}),
        ledger=to_ipc(ledger(*lines)),
    )


def test_packs_that_hold_what_the_ledger_counts():
    """The ledger of a shard of two files is in its first row."""
    two_files = [result(1, (3, 30), (3, 30), 5), result(1, (2, 20), (2, 20), None)]
    check_packed(
        [result(0, (4, 40), (4, 40), 4), *two_files, result(2, (0, 0), (0, 0), 0), ShardFile(shard=3, path="f")]
    )
    check_packed([result(0, (6, 60), (6, 60), 4)], makes_parts=True)


@pytest.mark.parametrize(
    ("shards", "makes_parts", "message"),
    [
        ([((4, 40), (5, 50), 5)], False, "shard 0: its packs hold num_samples=4, 5 were to be packed"),
        ([((5, 40), (5, 50), 5)], False, "shard 0: its packs hold num_tokens=40, 50 were to be packed"),
        ([((4, 40), (4, 40), 5)], False, "shard 0: 5 rows are accounted for as packed, its packs hold 4 samples"),
        ([((4, 40), (4, 40), 5)], True, "shard 0: 5 rows are accounted for as packed, its packs hold 4 samples"),
        ([((6, 40), (6, 40), 5)], False, "shard 0: 5 rows are accounted for as packed, its packs hold 6 samples"),
        ([((0, 0), (5, 50), 5)], False, "shard 0: its packs hold num_samples=0, 5 were to be packed"),
        ([((6, 60), (6, 60), 5), ((4, 40), (4, 40), 5)], True, "shard 1: 5 rows are accounted for as packed"),
    ],
)
def test_packs_that_hold_something_else(shards, makes_parts, message):
    """In the last case shard 0 makes up for shard 1, in the sum over shards."""
    with pytest.raises(LedgerError, match=message):
        check_packed([result(i, *of_shard) for i, of_shard in enumerate(shards)], makes_parts=makes_parts)


def test_the_job_checks_what_was_written():
    settings = SimpleNamespace(pack=SimpleNamespace(over_length="quarantine"))
    with pytest.raises(LedgerError, match="its packs hold 4 samples"):
        ledger_of(settings, pinned(a=12), [result(0, (4, 40), (4, 40), 5)])


QUARANTINE = pa.Table.from_pylist(
    [
        {"reason": "ratings", "detail": "", "source": "photos", "file": "a.parquet", "row": 3},
        {"reason": "too_long", "detail": "99 tokens, at most 9", "source": "photos", "file": "b.parquet", "row": 0},
        {"reason": "ratings", "detail": "", "source": "photos", "file": "b.parquet", "row": 8},
    ],
    schema=QUARANTINE_SCHEMA,
)


def test_quarantine_up_to_the_fraction(merged):
    merged.check_quarantine(3 / 17, QUARANTINE)
    Ledger.merge([]).check_quarantine(0.0, QUARANTINE_SCHEMA.empty_table())


def test_too_much_quarantine_says_why(merged):
    with pytest.raises(QualityError) as refused:
        merged.check_quarantine(0.17, QUARANTINE)
    assert str(refused.value) == (
        "quality.max_quarantine_fraction: 3 of 17 rows (17.6%) are quarantined, more than 17.0%; nothing was "
        "published\n"
        "           2  ratings              as photos, a.parquet row 3\n"
        "           1  too_long             as photos, b.parquet row 0: 99 tokens, at most 9"
    )


@pytest.fixture
def row_groups(tmp_path) -> pa.Table:
    """Two files: packs 0, 1, 2 in two row groups, and 3, 4 in one. Their images number 0, 1, 2, 0, 1."""
    one = write_shard(str(tmp_path / "0"), "data/train/00000.parquet", [packs_table(0, 2), packs_table(2, 1)])
    other = write_shard(str(tmp_path / "1"), "data/train/00001.parquet", [packs_table(3, 2)])
    return pa.concat_tables([one, other])


def test_totals(row_groups, tmp_path):
    assert figures_module.totals(row_groups) == {
        "num_files": 2,
        "num_bytes": (tmp_path / "0").stat().st_size + (tmp_path / "1").stat().st_size,
        "num_row_groups": 3,
        "num_packs": 5,
        "num_samples": 10,
        "num_tokens": 25,
        "num_label_tokens": 15,
        "num_images": 4,
        "vision_cost": 40,
    }


def test_files_of_equal_size_both_count(row_groups):
    first = row_groups.slice(0, 1)
    twin = first.set_column(0, "file", pa.array(["data/train/00009.parquet"]))
    size = first["file_bytes"][0].as_py()
    assert figures_module.totals(pa.concat_tables([first, twin]))["num_bytes"] == 2 * size


def test_totals_of_nothing():
    assert set(figures_module.totals(contract.MANIFEST_SCHEMA.empty_table()).values()) == {0}


def test_quality(row_groups):
    """25 tokens in 5 packs of 10. Too few packs for a step of 8 ranks: nobody waits for anybody."""
    sums = {"num_tokens": 25, "num_packs": 5, "bound": 4, "naive_tokens": 100}
    figures = figures_module.quality(sums, row_groups, 10)
    expected = {"fill": 0.5, "over_bound": 0.25, "naive_waste": 0.75, "straggler_8": 1.0}
    assert {name: figures[name] for name in expected} == expected


def a_report() -> dict:
    counts = {"num_rows": 1234, "num_copies": 0, "num_packed": 1200, "num_quarantined": 30, "num_duplicates": 4}
    totals = {"num_packs": 600, "num_samples": 1200, "num_tokens": 2_400_000, "num_images": 900}
    quality = {"fill": 0.9876, "over_bound": 0.0123, "naive_waste": 0.5, "straggler_8": 1.0349}
    sums = {"num_samples": 1200, "num_packs": 600, "num_tokens": 2_400_000, "vision_cost": 900, "attention_cost": 9}
    return {
        "run": "f" * 64,
        "config": {"pack": {"seq_len": 4096}, "output": {"repo": "user/packed"}},
        "sources": [{"name": "charts", "commit": "abcdef0123456789", **counts, "num_not_sampled": 0}],
        "ledger": [],
        "quarantine": {"too_long": 10, "ratings": 20},
        "splits": {
            "train": {
                "totals": totals | {"num_files": 4, "num_bytes": 5_000_000},
                "quality": quality,
                "sums": sums | {"bound": 593, "naive_tokens": 4_800_000},
            }
        },
    }


def markdown(pictures=(), **fields) -> str:
    return figures_module.as_markdown(Report.model_validate(a_report() | fields), pictures)


def test_json_has_sorted_keys_and_no_clock():
    text = as_json({"b": "é", "a": 1})
    assert text.decode() == '{\n "a": 1,\n "b": "é"\n}\n'
    assert json.loads(as_json(a_report())) == a_report()


def test_a_report_is_written_as_it_was_read():
    more = {"field_of_another_release": [{"x": 1.5}], "versions": {"pyarrow": "1"}}
    assert Report.model_validate(a_report()).dump() == a_report()
    assert Report.model_validate(a_report() | more).dump() == a_report() | more


def test_markdown_has_a_line_for_each_split_and_source():
    lines = markdown().splitlines()
    assert "| train | 600 | 1,200 | 2,400,000 | 900 | 98.76% | 1.23% | 1.035 |" in lines
    (source,) = [line for line in lines if line.startswith("| charts")]
    cells = [cell.strip() for cell in source.split("|")]
    assert cells[1:4] == ["charts", "`abcdef012345`", "1,234"]
    assert {"1,200", "30", "4"} <= set(cells)
    (line,) = [line for line in lines if line.startswith("Quarantined rows")]
    assert line.endswith("ratings 20, too_long 10.")
    assert 'PackedDataset("user/packed")' in "\n".join(lines)


def test_markdown_tables_are_even():
    """Each row of a table has as many cells as its header."""
    widths: list[set[int]] = [set()]
    for line in markdown().splitlines():
        if line.startswith("|"):
            widths[-1].add(line.count("|"))
        elif widths[-1]:
            widths.append(set())
    assert [len(width) for width in widths if width] == [1, 1]


def test_markdown_says_nothing_of_an_empty_quarantine():
    assert "Quarantined" not in markdown(quarantine={})


def test_markdown_shows_the_pictures_that_there_are():
    text = markdown(["report/histograms.png", "report/packs.png"])
    assert "\n\n![histograms](report/histograms.png)\n\n![packs](report/packs.png)\n\n" in text
    assert "![" not in markdown()


def test_examples_are_the_first_of_each_reason():
    found = examples([QUARANTINE, QUARANTINE], num=3)
    assert list(found) == ["ratings", "too_long"]
    assert [(row["file"], row["row"]) for row in found["ratings"]] == [("a.parquet", 3), ("b.parquet", 8)] * 1 + [
        ("a.parquet", 3)
    ]
    assert found["too_long"][0] == {
        "source": "photos", "file": "b.parquet", "row": 0, "detail": "99 tokens, at most 9",
    }  # fmt: skip


def test_text_balances():
    text = figures_module.as_text(a_report())
    assert text.splitlines()[0] == "samples      1,234 in = 1,200 packed + 30 quarantined + 4 duplicates"
    assert "  quarantine 20 ratings\n  quarantine 10 too_long\n" in text
    assert "600 of 4,096 tokens, bound 593 (+1.23%)" in text
    assert "fill       98.76%" in text
