"""The writer of a revision's small files: manifests, quarantine, report, page, pictures and card.

A run writes them for its splits (`jobs.revision.build`), a takedown for all splits (`jobs.published.take_out`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from jobs.output.interface import Head
from jobs.pages import run as run_page
from jobs.revision import card, figures
from packing_udfs import contract, manifest
from packing_udfs.published.shape import ManifestInfo, Report

__all__ = ["Revision", "small_files"]


@dataclass(frozen=True, kw_only=True)
class Revision:
    """What the small files say, and what they replace."""

    manifests: Mapping[str, tuple[ManifestInfo, pa.Table]]
    """Split → its info and row groups (contract.MANIFEST_SCHEMA)."""
    report: Report
    drawn: Mapping[str, list[dict[str, Any]]]
    """Packs of the report's splits (`published.pictures.draw`)."""
    quarantine: Mapping[str, pa.Table]
    """Path → its rows (contract.QUARANTINE_SCHEMA); a table without rows is not written."""
    licenses: Sequence[str]
    head: Head
    deleted: Collection[str]
    """Paths of the head that go."""


def small_files(revision: Revision) -> dict[str, bytes]:
    """Path → bytes of all files but the packs. Raises OutputError for a card that cannot be merged."""
    files: dict[str, bytes] = {}
    for split, (info, row_groups) in revision.manifests.items():
        names = (contract.MANIFEST_JSON.format(split=split), contract.MANIFEST_PARQUET.format(split=split))
        files |= dict(zip(names, manifest.dump(info.dump(), row_groups), strict=True))
    files |= {path: manifest.as_parquet(table) for path, table in revision.quarantine.items() if table.num_rows}
    manifests = {split: manifest.read(files.__getitem__, split) for split in revision.manifests}
    pictures = run_page.pictures(revision.report, manifests, revision.drawn)
    page = run_page.page(revision.report, manifests, revision.drawn)
    files |= {contract.REPORT: manifest.as_json(revision.report.dump()), "report.html": page.encode(), **pictures}
    paths = {path for path in revision.head.paths if path not in revision.deleted} | files.keys()
    summary = figures.as_markdown(revision.report, sorted(pictures))
    files["README.md"] = card.render(
        revision.head.readme, _splits(revision, paths), revision.licenses, summary
    ).encode()
    return files


def _splits(revision: Revision, paths: Collection[str]) -> list[card.Split]:
    """All splits of the new revision, first those that stay as they are."""
    totals = {
        split: info["totals"]
        for split, info in revision.head.manifests
        if contract.MANIFEST_JSON.format(split=split) in paths and split not in revision.manifests
    }
    totals |= {split: info.totals for split, (info, _) in revision.manifests.items()}
    splits = []
    for split, total in totals.items():
        folder = f"{contract.QUARANTINE_DIR.format(split=split)}/"
        has_quarantine = any(path.startswith(folder) for path in paths)
        sizes = {"num_bytes": total["num_bytes"], "num_packs": total["num_packs"]}
        splits.append(card.Split(name=split, **sizes, has_quarantine=has_quarantine))
    return splits
