"""The revision that a run publishes: its shards' results as manifests, report, card and quarantine, in one commit."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs import adapters
from jobs.output.finished_shard import ShardFile, from_ipc
from jobs.output.interface import Head
from jobs.output.open import Draft
from jobs.pages.run import PICTURES
from jobs.revision import card, figures
from jobs.revision.append_rules import replaced_splits
from jobs.revision.fingerprints import plain, run_fingerprint, versions
from jobs.revision.write import Revision, small_files
from jobs.shards.ledger import Ledger, QualityError, examples
from jobs.shards.plan import ShardPlan, power_of_two, splits_of
from jobs.sources.pinned import PinnedSource
from packing_udfs import contract
from packing_udfs.config import Config
from packing_udfs.encode.processor import ProcessorFiles
from packing_udfs.manifest import Manifest
from packing_udfs.metrics import add
from packing_udfs.published import shape

__all__ = ["Publication"]


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A run whose shards are all packed."""

    config: Config
    sources: Sequence[PinnedSource]
    processor: ProcessorFiles
    plan: ShardPlan
    head: Head
    appended: Mapping[str, Manifest]
    shards: Sequence[ShardFile]
    ledger: Ledger
    vision_unit: str

    def publish(self, draft: Draft) -> dict[str, Any]:
        """Publish it and return the report with the commit. Raises QualityError for a split without a pack."""
        replaced = replaced_splits(self.config, self.head)
        delete = [path for split in replaced for path in self.head.files_of(split)]
        delete += [path for path in PICTURES.values() if path in self.head.paths]
        delete += self.head.left
        run = shape.RunOfSplit(
            run=run_fingerprint(self.config, self.sources, self.processor),
            config=shape.RunConfig.model_validate(plain(self.config, self.processor)),
            sources=[_counts(source, self.ledger) for source in self.sources],
        )
        shards = {split: self._of_split(split) for split in splits_of(self.config)}
        manifests = {split: self._manifest(split, run, shards[split]) for split in shards}
        drawn = {split: _first_drawn(of_split) for split, of_split in shards.items()}
        stays = [split for split, _ in self.head.manifests if split not in replaced]
        licenses = {*(card.licenses_of(self.head.readme) if stays else ())}
        revision = Revision(
            manifests=manifests,
            report=self._report(run, {split: info for split, (info, _) in manifests.items()}, drawn),
            drawn={split: json.loads(shard.drawn) for split, shard in drawn.items() if shard and shard.drawn},
            quarantine={_quarantine_path(split, shards[split]): _quarantine(shards[split]) for split in shards},
            licenses=sorted(licenses.union(*(source.licenses for source in self.sources))),
            head=self.head,
            deleted=set(delete),
        )
        return revision.report.dump() | {"commit": draft.publish(small_files(revision), delete)}

    def _of_split(self, split: str) -> list[ShardFile]:
        is_first = split == self.config.output.split
        return [shard for shard in self.shards if (shard.shard < self.plan.num_train) == is_first]

    def _manifest(
        self, split: str, run: shape.RunOfSplit, shards: Sequence[ShardFile]
    ) -> tuple[shape.ManifestInfo, pa.Table]:
        """A split's info and row groups; an append adds its own behind those that are there."""
        empty = contract.MANIFEST_SCHEMA.empty_table()
        row_groups = pa.concat_tables([empty, *(shard.read_row_groups() for shard in shards)])
        sums, runs = add(json.loads(shard.sums) for shard in shards), [run]
        num_shards = self.plan.num_train if split == self.config.output.split else self.plan.num_validation
        if before := self.appended.get(split):
            info = shape.ManifestInfo.of(before)
            row_groups = pa.concat_tables([before.row_groups, row_groups])
            sums, runs = add([info.sums.dump(), sums]), [*info.runs, run]
            num_shards = power_of_two(num_shards + info.num_shards)  # a rewrite of all that the split holds keeps it
        if not row_groups.num_rows:
            more = "; use another shards.validation_fraction" if self.config.shards.validation_fraction else ""
            raise QualityError(f"split {split}: no sample could be packed; nothing was published{more}")
        seq_len, taken_down = self.config.pack.seq_len, self.head.taken_down
        processor = self.processor
        info = shape.ManifestInfo(
            run=run.run,
            runs=runs,
            split=split,
            seq_len=seq_len,
            vision_unit=self.vision_unit,
            num_shards=num_shards,
            processor=shape.ProcessorName(
                name=processor.published_name, revision=processor.revision, fingerprint=processor.fingerprint
            ),
            totals=figures.totals(row_groups),
            sums=shape.Sums(**sums),
            quality=figures.quality(sums, row_groups, seq_len),
            **({"taken_down": taken_down} if taken_down else {}),
        )
        return info, row_groups

    def _report(
        self, run: shape.RunOfSplit, infos: Mapping[str, shape.ManifestInfo], drawn: Mapping[str, ShardFile | None]
    ) -> shape.Report:
        places = {split: shape.Drawn(file=shard.path, row_group=0) if shard else None for split, shard in drawn.items()}
        return shape.Report(
            contract=contract.VERSION,
            run=run.run,
            config=run.config.dump(),
            sources=run.sources,
            ledger=[shape.LedgerRow(**row) for row in self.ledger.table.to_pylist()],
            quarantine=self.ledger.reasons(),
            quarantine_examples=examples(from_ipc(shard.quarantine) for shard in self.shards),
            splits={split: shape.SplitOfReport.of(info, places[split]) for split, info in infos.items()},
            metrics=add(shard.counts for shard in self.shards),
            versions=versions(),
        )


def _counts(pinned: PinnedSource, ledger: Ledger) -> shape.SourceCounts:
    """A source and what became of its rows."""
    source = pinned.source
    return shape.SourceCounts(
        name=source.name,
        repo=source.repo,
        config=source.config,
        split=source.split,
        commit=pinned.commit,
        adapter=adapters.name_of(pinned.adapter),
        unused=list(pinned.unused),
        num_bytes=pinned.num_bytes,
        num_rows=pinned.num_rows,
        num_copies=ledger.count("num_copies", source=source.name),
        num_packed=ledger.count(source=source.name, outcome="packed"),
        num_quarantined=ledger.count(source=source.name, outcome="quarantined"),
        num_duplicates=ledger.count(source=source.name, outcome="duplicate"),
        num_not_sampled=ledger.count(source=source.name, outcome="not_sampled"),
    )


def _quarantine(shards: Sequence[ShardFile]) -> pa.Table:
    tables = [from_ipc(shard.quarantine) for shard in shards]
    return pa.concat_tables([contract.QUARANTINE_SCHEMA.empty_table(), *tables])


def _first_drawn(shards: Sequence[ShardFile]) -> ShardFile | None:
    return next((shard for shard in shards if shard.drawn), None)


def _quarantine_path(split: str, shards: Sequence[ShardFile]) -> str:
    """The file is named after the split's first data file."""
    return f"{contract.QUARANTINE_DIR.format(split=split)}/{Path(shards[0].path).stem}.parquet"
