"""What is left of a published dataset without some of its samples: manifests, ledger and report that stay true."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem

from jobs.output.interface import Head, OutputError
from jobs.published.dataset import Packed
from jobs.revision import card, figures, write
from jobs.shards.settings import settings
from packing_udfs import contract, metrics
from packing_udfs.config import parse
from packing_udfs.manifest import Manifest
from packing_udfs.published import shape
from packing_udfs.published.pictures import draw
from packing_udfs.published.shape import ManifestInfo, Report, RunOfSplit
from packing_udfs.shard.assemble import Unit
from packing_udfs.shard.pack_shard import PackSettings

__all__ = ["TAKEN_DOWN", "Gone", "NewRevision", "Remainder", "RewrittenFile", "settings_of", "small_files"]

TAKEN_DOWN = "taken_down"


@dataclass(frozen=True)
class Gone:
    """A sample that goes, from a pack or from the quarantine."""

    sample_id: int
    source: str
    num_tokens: int
    num_images: int
    reason: str = ""  # of its quarantine; empty for a sample of a pack
    images: frozenset[bytes] = frozenset()  # their SHA-256, of a sample of a pack

    @classmethod
    def of_pack(cls, unit: Unit) -> "Gone":
        images = frozenset(hashlib.sha256(image["bytes"]).digest() for image in unit.images)
        return cls(unit.sample_id, unit.source, len(unit.encoded.input_ids), len(unit.sizes), images=images)

    @classmethod
    def of_quarantine(cls, row: Mapping[str, Any]) -> "Gone":
        counts = (row["num_tokens"] or 0, row["num_images"] or 0)  # null for a row that failed early
        return cls(row["sample_id"], row["source"], *counts, reason=row["reason"])

    @property
    def outcome(self) -> str:
        """Its outcome in the ledger until now."""
        return "quarantined" if self.reason else "packed"


@dataclass(frozen=True, kw_only=True)
class RewrittenFile:
    """A data file that is packed again without the samples that go."""

    path: str
    gone: Sequence[Gone]
    before: dict[str, Any]  # its sums (`packing_udfs.metrics`) as it was …
    after: dict[str, Any] = field(default_factory=dict)  # … and as it is
    num_bytes: int = 0  # 0 for a file of which nothing is left
    row_groups: pa.Table = field(default_factory=contract.MANIFEST_SCHEMA.empty_table)


@dataclass(frozen=True, kw_only=True)
class Remainder:
    """A split without some of its samples."""

    manifest: Manifest  # as it was
    held: Mapping[str, list[int]] = field(default_factory=dict)  # files that hold some of them → their row groups
    files: Sequence[RewrittenFile] = ()  # these files, once they are packed again
    quarantine: Mapping[str, pa.Table] = field(default_factory=dict)  # path → what is left, where rows go
    set_aside: Sequence[Gone] = ()  # those rows

    @property
    def taken(self) -> list[Gone]:
        """The samples that go from packs."""
        return [gone for file in self.files for gone in file.gone]

    @property
    def gone(self) -> list[Gone]:
        """All samples that go."""
        return [*self.taken, *self.set_aside]

    @property
    def row_groups(self) -> pa.Table:
        """The new manifest's rows (contract.MANIFEST_SCHEMA), by file."""
        if not self.files:
            return self.manifest.row_groups
        stay = self.manifest.row_groups.filter(~pc.field("file").isin([file.path for file in self.files]))
        tables = pa.concat_tables([stay, *(file.row_groups for file in self.files)])
        return tables.sort_by([("file", "ascending"), ("row_group", "ascending")])


@dataclass(frozen=True)
class NewRevision:
    """The packs of the new revision: files that are packed again lie in a local folder, the others where they were."""

    packed: Packed
    splits: Mapping[str, Remainder]
    folder: Path

    @cached_property
    def written(self) -> dict[str, RewrittenFile]:
        """The files in the folder, by path."""
        return {file.path: file for part in self.splits.values() for file in part.files if file.num_bytes}

    def row_group(self, file: str, index: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Packs of one row group, all columns or some."""
        local = Packed("the new revision", None, LocalFileSystem(), str(self.folder))
        return (local if file in self.written else self.packed).row_group(file, index, columns)


def settings_of(info: ManifestInfo) -> PackSettings:
    """How files of a split are packed again: like those of its last run, with the loosest budgets of all runs."""
    last = settings(parse(info.runs[-1].config.dump()))
    over_length = "split_turns" if info.makes_parts else last.over_length
    return last.model_copy(update={"max_file_bytes": None, "over_length": over_length, **info.limits})


def small_files(new: NewRevision, head: Head, deleted: Collection[str]) -> dict[str, bytes]:
    """The small files of the new revision. Raises OutputError when it does not add up or a split would be empty."""
    runs = _runs(new.splits)
    manifests = {split: _manifest(part, runs[split]) for split, part in new.splits.items()}
    report = _report(new.packed.report(), new.splits, {split: info for split, (info, _) in manifests.items()})
    drawn = {}
    for split, part in report.splits.items():
        part.drawn = shape.Drawn(file=manifests[split][1]["file"][0].as_py(), row_group=0)
        drawn[split] = draw(new.row_group(part.drawn.file, part.drawn.row_group))
    quarantine = {path: table for part in new.splits.values() for path, table in part.quarantine.items()}
    return write.small_files(
        write.Revision(
            manifests=manifests,
            report=report,
            drawn=drawn,
            quarantine=quarantine,
            licenses=card.licenses_of(head.readme),
            head=head,
            deleted=deleted,
        )
    )


def _runs(splits: Mapping[str, Remainder]) -> dict[str, list[RunOfSplit]]:
    """Each split's runs, whose sources count what is taken down.

    Of each source the last run counts as many as it has, then the run before it. A run that wrote two splits counts
    those of both, and is the same in both manifests.
    """
    known: dict[tuple[str, int], RunOfSplit] = {}  # (run, which of a split's runs of this name)
    of_split: dict[str, list[RunOfSplit]] = {}
    for split, part in splits.items():
        seen, runs = Counter[str](), []
        for run in ManifestInfo.of(part.manifest).runs:
            runs.append(known.setdefault((run.run, seen[run.run]), run))
            seen[run.run] += 1
        left = Counter((gone.source, gone.outcome) for gone in part.gone)
        for source in (source for run in reversed(runs) for source in run.sources):
            _take(source, left)
        of_split[split] = runs
    return of_split


def _take(source: shape.SourceCounts, left: Counter[tuple[str, str]]) -> None:
    """Count samples of `left` as taken down from a run's source, as many as it has."""
    packed = min(left[source.name, "packed"], source.num_packed)
    quarantined = min(left[source.name, "quarantined"], source.num_quarantined)
    if packed or quarantined:
        source.num_packed -= packed
        source.num_quarantined -= quarantined
        source.num_taken_down += packed + quarantined
        left.subtract({(source.name, "packed"): packed, (source.name, "quarantined"): quarantined})


def _manifest(part: Remainder, runs: list[RunOfSplit]) -> tuple[ManifestInfo, pa.Table]:
    """The split's info and row groups without the samples. Raises OutputError when no sample would be left."""
    info, row_groups = ManifestInfo.of(part.manifest), part.row_groups
    info.runs = runs
    if part.gone:
        info.taken_down = sorted({*info.taken_down, *(gone.sample_id for gone in part.gone)})
    if not part.files:
        return info, row_groups
    if not row_groups.num_rows:
        raise OutputError(
            f"split {info.split}: no sample would be left, and the manifest of a split is what remembers the ids; "
            "append other samples first (output.mode=append), or pack the sources again without those rows"
        )
    _check_num_samples(part, info.split, row_groups)
    sums = metrics.add([info.sums.dump(), *(file.after for file in part.files)])
    for file in part.files:
        sums = _less(sums, file.before)
    info.totals, info.sums = figures.totals(row_groups), shape.Sums(**sums)
    info.quality = figures.quality(sums, row_groups, info.seq_len)
    return info, row_groups


def _check_num_samples(part: Remainder, split: str, row_groups: pa.Table) -> None:
    """Raises OutputError unless the new files hold all samples but those that went."""
    before, after = (sum(table["num_samples"].to_pylist()) for table in (part.manifest.row_groups, row_groups))
    if after != before - len(part.taken):
        raise OutputError(
            f"{contract.MANIFEST_PARQUET.format(split=split)}: num_samples is {before} in all, {len(part.taken)} were "
            f"taken out and {after} are left, which does not add up; nothing was published: see python -m jobs.validate"
        )


def _less(sums: dict[str, Any], gone: dict[str, Any]) -> dict[str, Any]:
    """Sums without those of a part; empty bins of histograms go."""
    left: dict[str, Any] = {}
    for name, value in sums.items():
        if isinstance(value, dict):
            left[name] = {key: n for key, n in _less(value, gone.get(name, {})).items() if n}
        else:
            left[name] = value - gone.get(name, 0)
    return left


def _report(told: object, splits: Mapping[str, Remainder], infos: Mapping[str, ManifestInfo]) -> Report:
    """The last run's report, without the samples. `told`: as it was; `infos`: of the new manifests."""
    report = shape.require_report(told)
    report.ledger = _ledger(report.ledger, [gone for split in report.splits for gone in splits[split].gone])
    report.quarantine = metrics.add({r.reason: r.num_rows} for r in report.ledger if r.outcome == "quarantined")
    report.quarantine_examples = {}
    for split in report.splits:
        info = infos[split]
        mine = [run.sources for run in info.runs if run.run == report.run]
        report.sources = mine[-1] if mine else report.sources
        report.splits[split] = shape.SplitOfReport.of(info, report.splits[split].drawn)
    return report


def _ledger(ledger: Iterable[shape.LedgerRow], gone: Iterable[Gone]) -> list[shape.LedgerRow]:
    """The last run's ledger with the outcome "taken_down"; other runs have no ledger."""
    rows = {(row.source, row.outcome, row.reason): row.dump() for row in ledger}
    for sample in gone:
        key = (sample.source, sample.outcome, sample.reason)
        if not rows.get(key, {}).get("num_rows"):
            continue  # of an earlier run, whose counts are in the manifest
        row = rows[key]
        zeros = {name: 0 for name, value in row.items() if isinstance(value, int)}
        empty = row | zeros | {"outcome": TAKEN_DOWN, "reason": ""}
        to = rows.setdefault((sample.source, TAKEN_DOWN, ""), empty)
        for name, count in (("num_rows", 1), ("num_tokens", sample.num_tokens), ("num_images", sample.num_images)):
            row[name] -= min(count, row[name])
            to[name] += count
    return [shape.LedgerRow.model_validate(rows[key]) for key in sorted(rows) if rows[key]["num_rows"]]
