"""The figures of a run: totals and quality of its packs, what was moved and reused, and their forms as text."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from jobs.output.finished_shard import ShardFile
from packing_udfs import metrics
from packing_udfs.published import straggler
from packing_udfs.published.shape import Report

__all__ = ["as_markdown", "as_text", "quality", "reuse", "totals", "transfer"]

_OUTCOMES = ("rows", "copies", "packed", "quarantined", "duplicates", "not_sampled")


def quality(sums: dict[str, Any], row_groups: pa.Table, seq_len: int) -> dict[str, float]:
    """The figures of a packed split: fill, distance from the bound, naive padding's waste, and balance over 8 ranks."""
    return metrics.summarise(sums, seq_len) | {
        "straggler_8": round(straggler.straggler(row_groups, 8), 6),
        "attention_straggler_8": round(straggler.straggler(row_groups, 8, cost="attention_cost"), 6),
        "step_cv_8": round(straggler.step_cv(row_groups, 8), 6),
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
        "vision_cost": int(row_groups["vision_cost"].combine_chunks().flatten().to_numpy().sum(dtype=np.int64)),
    }


def transfer(shards: Iterable[ShardFile]) -> dict[str, Any]:
    """Bytes of images read, of files written and of these uploaded, by finished shards.

    They are never published: what is new to Xet depends on the worker's cache. Uploaded bytes and the share that was
    deduplicated are None where nothing went through Xet.
    """
    rows = [row for row in shards if row.num_bytes]
    known = [(row.num_bytes, row.num_bytes_uploaded) for row in rows if row.num_bytes_uploaded is not None]
    written, uploaded = sum(num for num, _ in known), sum(num for _, num in known)
    return {
        "num_bytes_read": sum(row.num_bytes_read for row in rows),
        "num_bytes_written": sum(row.num_bytes for row in rows),
        "num_bytes_uploaded": uploaded if known else None,
        "share_deduplicated": round(max(0.0, 1 - uploaded / written), 6) if known else None,
    }


def reuse(shards: Iterable[ShardFile], why_afresh: Mapping[str, str]) -> dict[str, Any]:
    """What became of the packs of the last version: counts, and why some files were packed afresh.

    `why_afresh`: split → reason, of splits whose last version was of another kind. It is never published: a version
    has one report, whether it was reached in one step or in two.
    """
    found = [json.loads(row.reuse) for row in shards]
    whys = Counter(one.pop("why") for one in found if "why" in one)
    counts = metrics.add(found)
    return {**counts, "why_afresh": {**why_afresh, **{f"{n} files": why for why, n in sorted(whys.items())}}}


def as_markdown(report: Report, pictures: Sequence[str] = ()) -> str:
    """The summary on the dataset card. `pictures`: paths in the repository of those to show."""
    lines = [
        "## Packed for training",
        "",
        f"Samples of up to {report.config['pack']['seq_len']:,} tokens in packs without padding, made by packing-udfs "
        f'and read with `PackedDataset("{report.config["output"]["repo"]}")`.',
        "",
        "| split | packs | samples | tokens | images | fill | packs over bound | straggler, 8 ranks |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for split, part in report.splits.items():
        total, figures = part.totals, part.quality
        lines.append(
            f"| {split} | {total['num_packs']:,} | {total['num_samples']:,} | {total['num_tokens']:,} "
            f"| {total['num_images']:,} | {figures['fill']:.2%} | {figures['over_bound']:.2%} "
            f"| {figures['straggler_8']:.3f} |"
        )
    lines += ["", "| source | commit | rows | copies | packed | quarantined | duplicates | not sampled |"]
    lines += ["|---|---|---:|---:|---:|---:|---:|---:|"]
    for source in report.sources:
        counts = " | ".join(f"{getattr(source, f'num_{name}'):,}" for name in _OUTCOMES)
        lines.append(f"| {source.name} | `{source.commit[:12]}` | {counts} |")
    if report.quarantine:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(report.quarantine.items()))
        lines += ["", f"Quarantined rows are in the configuration `quarantine`, each with its reason: {reasons}."]
    lines += [f"\n![{Path(path).stem}]({path})" for path in pictures]
    lines += ["", "`report.html` has all figures and draws some packs: download it and open it in a browser."]
    return "\n".join(lines)


def _more(count: int, what: str) -> str:
    return f" + {count:,} {what}" if count else ""


def as_text(result: Mapping[str, Any]) -> str:
    """The text that a run prints. `result`: what `jobs.pack.run` returns, or the values of a report."""
    report = Report.model_validate(result)
    total = dict.fromkeys(_OUTCOMES, 0)
    for source in report.sources:
        for name in _OUTCOMES:
            total[name] += getattr(source, f"num_{name}")
    lines = [
        f"samples      {total['rows']:,} in{_more(total['copies'], 'copies')} = {total['packed']:,} packed "
        f"+ {total['quarantined']:,} quarantined + {total['duplicates']:,} duplicates"
        f"{_more(total['not_sampled'], 'not sampled')}",
        *(f"  quarantine {count:,} {reason}" for reason, count in sorted(report.quarantine.items())),
        *(f"  unused     {source.name}: {', '.join(source.unused)}" for source in report.sources if source.unused),
    ]
    for split, part in report.splits.items():
        total, figures = part.totals, part.quality
        lines += [
            f"{split}",
            f"  packs      {total['num_packs']:,} of {report.config['pack']['seq_len']:,} tokens, "
            f"bound {part.sums.bound:,} (+{figures['over_bound']:.2%})",
            f"  fill       {figures['fill']:.2%}; padding each batch of {metrics.NAIVE_BATCH} samples to its longest "
            f"would waste {figures['naive_waste']:.1%}",
            f"  straggler  {figures['straggler_8']:.3f} (vision cost, max over 8 ranks / mean)",
            f"  files      {total['num_files']:,}, {total['num_bytes']:,} bytes",
        ]
    return "\n".join(lines + _transferred(result.get("transfer"), result.get("reuse", {})))


def _transferred(moved: Mapping[str, Any] | None, reused: Mapping[str, Any]) -> list[str]:
    """Lines on what was moved and reused, where that is known."""
    lines = []
    if moved:
        sent = moved["num_bytes_uploaded"]
        share = "" if sent is None else f", {sent:,} uploaded ({moved['share_deduplicated']:.1%} deduplicated)"
        lines.append(f"bytes        {moved['num_bytes_read']:,} read, {moved['num_bytes_written']:,} written{share}")
    if reused.keys() - {"why_afresh"}:
        counts = (f"{reused.get(f'num_packs_{name}', 0):,} {name}" for name in ("kept", "moved", "changed", "new"))
        lines.append(f"reuse        packs: {', '.join(counts)}")
    return lines + [f"  afresh     {where}: {why}" for where, why in reused.get("why_afresh", {}).items()]
