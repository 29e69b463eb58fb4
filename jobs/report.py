"""What a run did: the ledger that must balance, the figures of its quality, and both as text.

The ledger is the proof that nothing is lost. For every source, with the rows in its files counted at the pinned commit
and not by the job:

    rows + copies = packed + quarantined + duplicates + not sampled
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from jobs.sources import PinnedSource
from packing_udfs import balance, metrics
from packing_udfs.outcomes import LEDGER_SCHEMA, NOT_SAMPLED

_OUTCOMES = ("rows", "copies", "packed", "quarantined", "duplicates", "not_sampled")
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
        """Add up the ledgers of shards."""
        keys = ["source", "outcome", "reason"]
        merged = pa.concat_tables([LEDGER_SCHEMA.empty_table(), *tables]).group_by(keys, use_threads=False)
        summed = merged.aggregate([(name, "sum") for name in _COUNTS])
        table = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])
        return cls(table.select(LEDGER_SCHEMA.names).cast(LEDGER_SCHEMA).sort_by([(key, "ascending") for key in keys]))

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
        quarantined = self.count(outcome="quarantined")
        if quarantined > max_fraction * num_rows:
            first = {row["reason"]: row for row in reversed(quarantine.to_pylist())}
            lines = [
                f"  {count:>10,}  {reason:<20} {_place(first.get(reason))}"
                for reason, count in sorted(self.reasons().items())
            ]
            raise QualityError(
                f"quality.max_quarantine_fraction: {quarantined} of {num_rows} rows ({quarantined / num_rows:.1%}) "
                f"are quarantined, more than {max_fraction:.1%}; nothing was published\n" + "\n".join(lines)
            )


def _place(row: dict | None) -> str:
    """Where a quarantined row is and what is wrong with it, as an example of its reason."""
    if row is None:
        return ""
    detail = f": {row['detail']}" if row["detail"] else ""
    return f"as {row['source']}, {row['file']} row {row['row']}{detail}"


def quality(sums: dict[str, int], row_groups: pa.Table, seq_len: int) -> dict[str, float]:
    """The figures of a packed split: fill, distance from the bound, naive padding's waste, and balance over 8 ranks."""
    return metrics.summarise(sums, seq_len) | {
        "straggler_8": round(balance.straggler(row_groups, 8), 6),
        "attention_straggler_8": round(balance.straggler(row_groups, 8, cost="attention_cost"), 6),
        "step_cv_8": round(balance.step_cv(row_groups, 8), 6),
    }


def totals(row_groups: pa.Table) -> dict[str, int]:
    """Sums over a split's row groups."""
    files = set(zip(row_groups["file"].to_pylist(), row_groups["file_bytes"].to_pylist(), strict=True))
    names = ("num_samples", "num_tokens", "num_label_tokens", "num_images")
    return {
        "num_files": len(files),
        "num_bytes": sum(num_bytes for _, num_bytes in files),
        "num_row_groups": row_groups.num_rows,
        "num_packs": sum(row_groups["num_rows"].to_pylist()),
        **{name: sum(row_groups[name].to_pylist()) for name in names},
        "vision_cost": sum(map(sum, row_groups["vision_cost"].to_pylist())),
    }


def as_json(report: dict) -> bytes:
    """The published form: sorted keys, no clock, so that equal runs give equal bytes."""
    return json.dumps(report, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def as_markdown(report: dict) -> str:
    """The summary on the dataset card."""
    lines = ["## Packed for training", ""]
    lines += [
        f"Samples of up to {report['config']['pack']['seq_len']:,} tokens in packs without padding, made by "
        "packing-udfs and read with "
        f'`PackedDataset("{report["config"]["output"]["repo"]}")`.',
        "",
        "| split | packs | samples | tokens | images | fill | packs over bound | straggler, 8 ranks |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for split, part in report["splits"].items():
        total, figures = part["totals"], part["quality"]
        lines.append(
            f"| {split} | {total['num_packs']:,} | {total['num_samples']:,} | {total['num_tokens']:,} "
            f"| {total['num_images']:,} | {figures['fill']:.2%} | {figures['over_bound']:.2%} "
            f"| {figures['straggler_8']:.3f} |"
        )
    lines += ["", "| source | commit | rows | copies | packed | quarantined | duplicates | not sampled |"]
    lines += ["|---|---|---:|---:|---:|---:|---:|---:|"]
    for source in report["sources"]:
        lines.append(
            f"| {source['name']} | `{source['commit'][:12]}` | {source['num_rows']:,} | {source['num_copies']:,} "
            f"| {source['num_packed']:,} | {source['num_quarantined']:,} | {source['num_duplicates']:,} "
            f"| {source['num_not_sampled']:,} |"
        )
    if report["quarantine"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(report["quarantine"].items()))
        lines += ["", f"Quarantined rows are in the configuration `quarantine`, each with its reason: {reasons}."]
    return "\n".join(lines)


def _more(count: int, what: str) -> str:
    return f" + {count:,} {what}" if count else ""


def as_text(report: dict) -> str:
    """The result that a run prints."""
    total = {name: sum(source[f"num_{name}"] for source in report["sources"]) for name in _OUTCOMES}
    lines = [f"samples      {total['rows']:,} in{_more(total['copies'], 'copies')} = {total['packed']:,} packed "
             f"+ {total['quarantined']:,} quarantined + {total['duplicates']:,} duplicates"
             f"{_more(total['not_sampled'], 'not sampled')}"]  # fmt: skip
    lines += [f"  quarantine {count:,} {reason}" for reason, count in sorted(report["quarantine"].items())]
    for split, part in report["splits"].items():
        total, figures = part["totals"], part["quality"]
        lines += [
            f"{split}",
            f"  packs      {total['num_packs']:,} of {report['config']['pack']['seq_len']:,} tokens, "
            f"bound {part['sums']['bound']:,} (+{figures['over_bound']:.2%})",
            f"  fill       {figures['fill']:.2%}; padding each batch of {metrics.NAIVE_BATCH} samples to its longest "
            f"would waste {figures['naive_waste']:.1%}",
            f"  straggler  {figures['straggler_8']:.3f} (vision cost, max over 8 ranks / mean)",
            f"  files      {total['num_files']:,}, {total['num_bytes']:,} bytes",
        ]
    return "\n".join(lines)
