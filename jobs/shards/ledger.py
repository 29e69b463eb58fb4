"""The proof that nothing is lost: what became of every row, and that the packs hold what is counted as packed.

For every source, with the rows in its files counted at the pinned commit and not by the job:

    rows + copies = packed + quarantined + duplicates + not sampled

and what is counted as packed is what the files' row groups hold, shard by shard (`check_packed`).
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from jobs.output.finished_shard import from_ipc
from jobs.sources.pinned import PinnedSource
from packing_udfs import metrics
from packing_udfs.shard.outcomes import LEDGER_SCHEMA, NOT_SAMPLED

NUM_EXAMPLES = 3  # of each reason in the report
MERGED_AT_ONCE = 256  # ledgers
_COUNTS = tuple(name for name in LEDGER_SCHEMA.names if name.startswith("num_"))


class LedgerError(RuntimeError):
    """Rows that went in and did not come out: a fault of this project. Nothing is published."""


class QualityError(RuntimeError):
    """A run that is not worth publishing by the configuration's own measure. Nothing is published."""


@dataclass(frozen=True)
class Ledger:
    """Counts by source, outcome and reason (`outcomes.LEDGER_SCHEMA`, one row each, sorted)."""

    table: pa.Table

    @classmethod
    def merge(cls, tables: Iterable[pa.Table]) -> "Ledger":
        """Add up the ledgers of shards, MERGED_AT_ONCE at a time: ten thousand of them have millions of rows."""
        merged, tables = LEDGER_SCHEMA.empty_table(), iter(tables)
        while some := list(islice(tables, MERGED_AT_ONCE)):
            merged = _summed(pa.concat_tables([merged, *some]))
        return cls(merged)

    def count(self, column: str = "num_rows", **where: str) -> int:
        """Sum of a column over the rows that match: `count(source="a", outcome="packed")`."""
        mask = pa.scalar(True)
        for name, value in where.items():
            mask = pc.and_(mask, pc.equal(self.table[name], value))
        table = self.table.filter(mask) if where else self.table
        return pc.sum(table[column]).as_py() or 0

    def reasons(self) -> dict[str, int]:
        """Quarantined rows by reason."""
        rows = [row for row in self.table.to_pylist() if row["outcome"] == "quarantined"]
        return metrics.add({row["reason"]: row["num_rows"]} for row in rows)

    def check(self, sources: Sequence[PinnedSource]) -> None:
        """Raises LedgerError unless every row of every source has exactly one outcome, beside those of its copies."""
        for pinned in sources:
            name = pinned.source.name
            came_out, copies = self.count(source=name), self.count("num_copies", source=name)
            if came_out != pinned.num_rows + copies:
                raise LedgerError(
                    f"source {name}: {pinned.num_rows} rows in its files and {copies} copies, {came_out} accounted for"
                )

    def check_quarantine(self, max_fraction: float, quarantine: pa.Table) -> None:
        """Raises QualityError, with the reasons and a row of each, when too large a share of rows is quarantined.

        `quarantine` has `contract.QUARANTINE_SCHEMA`.
        """
        num_rows = self.count() - self.count(outcome=NOT_SAMPLED)
        quarantined = self.count(outcome="quarantined") - self.count(reason="taken_down")
        if quarantined > max_fraction * num_rows:
            lines = [
                f"  {count:>10,}  {reason:<20} {_place(_first(quarantine, reason))}"
                for reason, count in sorted(self.reasons().items())
            ]
            raise QualityError(
                f"quality.max_quarantine_fraction: {quarantined} of {num_rows} rows ({quarantined / num_rows:.1%}) "
                f"are quarantined, more than {max_fraction:.1%}; nothing was published\n" + "\n".join(lines)
            )


def check_packed(shards: Iterable[dict], *, makes_parts: bool = False) -> None:
    """Raises LedgerError unless the packs of each shard, as they were written, hold what its ledger counts as packed.

    shards: rows of `results.RESULT`. What was written is counted in the row groups, what was to be packed in the sums
    and in the ledger, so that no plan of packs vouches for itself. makes_parts: whether a row may be several samples.
    """
    counts: dict[int, Counter] = {}
    for row in shards:
        found = counts.setdefault(row["shard"], Counter())
        for name in ("num_samples", "num_tokens"):
            found["sums", name] += json.loads(row["sums"]).get(name, 0)
            written = from_ipc(row["row_groups"])[name] if row["row_groups"] else None
            found["packs", name] += (pc.sum(written).as_py() or 0) if written else 0
        ledger = from_ipc(row["ledger"])
        found["rows"] += pc.sum(ledger.filter(pc.equal(ledger["outcome"], "packed"))["num_rows"]).as_py() or 0
    for shard, found in counts.items():
        for name in ("num_samples", "num_tokens"):
            if found["packs", name] != found["sums", name]:
                raise LedgerError(
                    f"shard {shard}: its packs hold {name}={found['packs', name]}, {found['sums', name]} were to be "
                    "packed; nothing was published"
                )
        in_packs, rows = found["packs", "num_samples"], found["rows"]
        if in_packs < rows or (in_packs > rows and not makes_parts):
            raise LedgerError(
                f"shard {shard}: {rows} rows are accounted for as packed, its packs hold {in_packs} samples; nothing "
                "was published"
            )


def _summed(ledgers: pa.Table) -> pa.Table:
    """One row for each source, outcome and reason, sorted."""
    keys = ["source", "outcome", "reason"]
    summed = ledgers.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in _COUNTS])
    table = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])
    return table.select(LEDGER_SCHEMA.names).cast(LEDGER_SCHEMA).sort_by([(key, "ascending") for key in keys])


def _first(quarantine: pa.Table, reason: str) -> dict | None:
    """The first row with a reason."""
    at = pc.index(quarantine["reason"], reason).as_py()
    return quarantine.slice(at, 1).to_pylist()[0] if at >= 0 else None


def _place(row: dict | None) -> str:
    """Where a quarantined row is and what is wrong with it, as an example of its reason."""
    if row is None:
        return ""
    detail = f": {row['detail']}" if row["detail"] else ""
    return f"as {row['source']}, {row['file']} row {row['row']}{detail}"


def examples(quarantines: Iterable[pa.Table], num: int = NUM_EXAMPLES) -> dict[str, list[dict]]:
    """The first rows of each reason, from tables of `contract.QUARANTINE_SCHEMA`: where they are and what is wrong."""
    found: dict[str, list[dict]] = {}
    for table in quarantines:
        for row in table.select(["reason", "source", "file", "row", "detail"]).to_pylist():
            of_reason = found.setdefault(row.pop("reason"), [])
            if len(of_reason) < num:
                of_reason.append(row)
    return found
