"""The proof that nothing is lost: what became of every row, and that the packs hold what is counted as packed.

For every source, with the rows in its files counted at the pinned commit and not by the job:

    rows + copies = packed + quarantined + duplicates + not sampled

and the row groups of a shard's files hold what its ledger counts as packed (`check_packed`).
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from jobs.output.finished_shard import ShardFile, from_ipc
from jobs.sources.pinned import PinnedSource
from packing_udfs import contract, metrics
from packing_udfs.config import Config
from packing_udfs.shard.outcomes import LEDGER_SCHEMA, NOT_SAMPLED

__all__ = ["Ledger", "LedgerError", "QualityError", "check_packed", "examples", "ledger_of"]

NUM_EXAMPLES = 3  # of each reason in the report
MERGED_AT_ONCE = 256  # ledgers
_COUNTS = tuple(name for name in LEDGER_SCHEMA.names if name.startswith("num_"))


class LedgerError(RuntimeError):
    """Rows that went in and did not come out: a fault of this project. Nothing is published."""


class QualityError(RuntimeError):
    """A run whose result the configuration does not accept. Nothing is published."""


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
        matches = np.ones(len(self.table), bool)
        for name, value in where.items():
            matches &= self.table[name].to_numpy() == value
        return int(self.table[column].to_numpy()[matches].sum())

    def reasons(self) -> dict[str, int]:
        """Quarantined rows by reason."""
        rows = [row for row in self.table.to_pylist() if row["outcome"] == "quarantined"]
        return metrics.add({row["reason"]: row["num_rows"]} for row in rows)

    def check(self, sources: Sequence[PinnedSource]) -> None:
        """Raises LedgerError unless every row of every source, and every copy, has exactly one outcome."""
        for pinned in sources:
            name = pinned.source.name
            came_out, copies = self.count(source=name), self.count("num_copies", source=name)
            if came_out != pinned.num_rows + copies:
                raise LedgerError(
                    f"source {name}: {pinned.num_rows} rows in its files and {copies} copies, {came_out} accounted for"
                )

    def check_quarantine(self, max_fraction: float, quarantine: pa.Table) -> None:
        """Raises QualityError, with each reason and one of its rows, when too large a share of rows is quarantined, or
        all that there is.

        `quarantine`: contract.QUARANTINE_SCHEMA.
        """
        num_rows = self.count() - self.count(outcome=NOT_SAMPLED)
        quarantined = self.count(outcome="quarantined") - self.count(reason="taken_down")
        is_all = quarantined > 0 and not self.count(outcome="packed")
        if quarantined > max_fraction * num_rows or is_all:
            lines = [
                f"  {count:>10,}  {reason:<20} {_example(quarantine, reason)}"
                for reason, count in sorted(self.reasons().items())
            ]
            raise QualityError(
                f"quality.max_quarantine_fraction: {quarantined} of {num_rows} rows ({quarantined / num_rows:.1%}) "
                f"are quarantined, {'and none is left' if is_all else f'more than {max_fraction:.1%}'}; nothing was "
                "published\n" + "\n".join(lines)
            )


def ledger_of(config: Config, sources: Sequence[PinnedSource], files: Sequence[ShardFile]) -> Ledger:
    """The shards' ledgers as one. Raises LedgerError when a row is lost, QualityError when too many are quarantined."""
    ledger = Ledger.merge(from_ipc(file.ledger) for file in files)
    ledger.check(sources)
    check_packed(files, makes_parts=config.pack.over_length == "split_turns")
    empty = contract.QUARANTINE_SCHEMA.empty_table()
    quarantine = pa.concat_tables([empty, *(from_ipc(file.quarantine) for file in files)])
    ledger.check_quarantine(config.quality.max_quarantine_fraction, quarantine)
    return ledger


def check_packed(files: Iterable[ShardFile], *, makes_parts: bool = False) -> None:
    """Raises LedgerError unless the packs of each shard, as they were written, hold what its ledger counts as packed.

    The row groups count what was written, the sums and the ledger what was to be packed, so that no plan of packs is
    compared with itself. makes_parts: whether one row may become several samples.
    """
    counts: dict[int, Counter] = {}
    for file in files:
        found = counts.setdefault(file.shard, Counter())
        sums, row_groups = json.loads(file.sums), file.read_row_groups()
        for name in ("num_samples", "num_tokens"):
            found["sums", name] += sums.get(name, 0)
            found["packs", name] += sum(row_groups[name].to_pylist())
        found["rows"] += Ledger(from_ipc(file.ledger)).count(outcome="packed")
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


def _example(quarantine: pa.Table, reason: str) -> str:
    """Where the first row with a reason is and what is wrong with it, "" for no such row."""
    at = quarantine["reason"].index(reason).as_py()
    if at < 0:
        return ""
    (row,) = quarantine.slice(at, 1).to_pylist()
    detail = f": {row['detail']}" if row["detail"] else ""
    return f"as {row['source']}, {row['file']} row {row['row']}{detail}"


def examples(quarantines: Iterable[pa.Table], num: int = NUM_EXAMPLES) -> dict[str, list[dict]]:
    """The first `num` rows of each reason, from tables of contract.QUARANTINE_SCHEMA: their place and their detail."""
    found: dict[str, list[dict]] = {}
    for table in quarantines:
        for row in table.select(["reason", "source", "file", "row", "detail"]).to_pylist():
            of_reason = found.setdefault(row.pop("reason"), [])
            if len(of_reason) < num:
                of_reason.append(row)
    return found
