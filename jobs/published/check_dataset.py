"""Check a packed dataset against its contract, manifest, ledger and hashes: one line a finding, and an exit code.

    python -m jobs.validate user/packed

Everything is compared: what the manifest says of a file with the file, what a file says of its packs with the packs,
sums with their parts, the run's fingerprint with its configuration. Row groups are read one at a time with their pages'
checksums, so memory is one row group and eight bytes a sample. One thing cannot be checked from the dataset alone: that
`sample_ids` are hashes of their samples, since texts are stored as tokens.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from jobs.output.interface import OutputError
from jobs.output.retries import one_line
from jobs.published.check_split import DAMAGED, Finding, Seen, check_data, check_manifest, check_shape, limits_of
from jobs.published.dataset import Packed
from jobs.revision import card
from packing_udfs import contract, metrics
from packing_udfs.contract import REPORT
from packing_udfs.manifest import Manifest
from packing_udfs.published.shape import ManifestInfo, Report, RunOfSplit, faults_of

__all__ = ["validate"]


def validate(packed: Packed, processor: str | None = None, *, decodes: bool = False) -> Iterator[Finding]:
    """What is wrong with a packed dataset; nothing for a sound one.

    processor: path or repository of the one it is packed for, to count images' tokens and vision cost again. decodes:
    decode every image instead of reading its header. Raises ProcessorError for another processor.
    """
    manifests: dict[str, Manifest] = {}
    if not packed.splits:
        yield Finding("manifest/", "no manifest; is it a dataset that jobs.pack has published?")
    for split in packed.splits:
        try:
            found = packed.manifest(split)
        except DAMAGED as error:
            yield Finding(contract.MANIFEST_JSON.format(split=split), one_line(error))
            continue
        faults = check_shape(found, split)
        yield from faults
        if not faults:  # otherwise the split cannot be checked any further
            manifests[split] = found
    infos = {split: ManifestInfo.of(found) for split, found in manifests.items()}
    yield from _files(packed, manifests)
    seen: dict[str, Seen] = {}
    for split, found in manifests.items():
        yield from check_manifest(found, split)
        seen[split] = Seen()
        yield from check_data(packed, found, limits_of(packed, found, processor, decodes), seen[split])
    if seen.keys() == set(packed.splits):  # a run counts the samples of all its splits
        yield from _twice(infos, seen)
        yield from _ledgers(packed, infos, seen)
    yield from _report(packed, manifests, infos)
    yield from _card(packed)


def _files(packed: Packed, manifests: Mapping[str, Manifest]) -> Iterator[Finding]:
    """Files that are missing, of another size, or that no manifest names."""
    named: dict[str, int | None] = {}  # path → its size, where a manifest has it
    known = tuple(f"{contract.QUARANTINE_DIR.format(split=split)}/" for split in packed.splits)
    for split in packed.splits:
        paths = (contract.MANIFEST_JSON.format(split=split), contract.MANIFEST_PARQUET.format(split=split))
        if split in manifests:
            files, sizes = (manifests[split].row_groups[name].to_pylist() for name in ("file", "file_bytes"))
            named |= dict(zip(files, sizes, strict=True)) | dict.fromkeys(paths)
        else:
            known += (*paths, f"{contract.DATA_DIR.format(split=split)}/")
    for path, size in named.items():
        if path not in packed.paths:
            yield Finding(path, "missing; the manifest names it")
        elif size not in (None, packed.paths[path]):
            yield Finding(path, f"{packed.paths[path]} bytes, the manifest says {size}", field="file_bytes")
    for path in packed.paths:
        is_ours = path.startswith(("data/", "manifest/", "quarantine/"))
        if is_ours and path not in named and not path.startswith(known):
            yield Finding(path, "extra; no manifest names it")
    for path in ("README.md", REPORT, "report.html"):
        if path not in packed.paths:
            yield Finding(path, "missing")


def _twice(infos: Mapping[str, ManifestInfo], seen: Mapping[str, Seen]) -> Iterator[Finding]:
    """Samples that are twice in a split where duplicates are dropped, or in two splits of one run."""
    ids = {split: np.concatenate([np.empty(0, np.int64), *found.ids]) for split, found in seen.items()}
    for split, info in infos.items():
        num_twice = len(ids[split]) - len(np.unique(ids[split]))
        if num_twice and _has_each_once(info):
            message = f"{num_twice} samples stand in it twice, where duplicates are dropped"
            yield Finding(contract.DATA_DIR.format(split=split), message, field="sample_ids")
    for part in _parts(infos):
        for i, split in enumerate(part):
            for other in part[i + 1 :]:
                if num_shared := len(np.intersect1d(ids[split], ids[other])):
                    message = f"{num_shared} samples are in {other} too"
                    yield Finding(contract.DATA_DIR.format(split=split), message, field="sample_ids")


def _has_each_once(info: ManifestInfo) -> bool:
    """Whether no sample may be in a split twice: one run, no copies, no parts, no duplicates."""
    config = info.runs[0].config
    has_copies = any(source.weight > 1 for source in config.sources)
    return len(info.runs) == 1 and config.shards.duplicates == "drop" and not info.makes_parts and not has_copies


def _parts(infos: Mapping[str, ManifestInfo]) -> list[list[str]]:
    """Splits that runs wrote together."""
    parts: list[tuple[set[str], list[str]]] = []  # runs and splits of each part
    for split, info in infos.items():
        runs, splits = {run.run for run in info.runs}, [split]
        for part in [part for part in parts if part[0] & runs]:
            parts.remove(part)
            runs, splits = runs | part[0], splits + part[1]
        parts.append((runs, sorted(splits)))
    return [splits for _, splits in parts]


def _ledgers(packed: Packed, infos: Mapping[str, ManifestInfo], seen: Mapping[str, Seen]) -> Iterator[Finding]:
    """The ledger of each run: rows in are rows out, and what it packed and set aside exists."""
    for part in _parts(infos):
        path = contract.MANIFEST_JSON.format(split=part[0])
        runs: dict[str, RunOfSplit] = {}
        for split in part:
            for run in infos[split].runs:
                if runs.setdefault(run.run, run) != run:
                    other = contract.MANIFEST_JSON.format(split=split)
                    yield Finding(other, f"run {run.run} is not as {path} has it", field="runs")
        sources = [source for run in runs.values() for source in run.sources]
        for source in sources:
            num_in = source.num_rows + source.num_copies
            if num_in != source.num_accounted:
                message = f"{num_in} rows and copies in, {source.num_accounted} accounted for, of {source.name}"
                yield Finding(path, message, field="runs.sources")
        in_packs = sum((seen[split].sources for split in part), Counter[str]())
        in_quarantine, faults = _quarantines(packed, part)
        yield from faults
        outcomes = [("num_quarantined", in_quarantine, "the quarantine holds")] if not faults else []
        if not any(infos[split].makes_parts for split in part):  # else there are several samples of a row
            outcomes.append(("num_packed", in_packs, "the packs hold"))
        for name in sorted({source.name for source in sources}):
            for outcome, found, what in outcomes:
                stated = sum(getattr(source, outcome) for source in sources if source.name == name)
                if stated != found[name]:
                    yield Finding(path, f"{stated} of {name}, {what} {found[name]}", field=f"runs.sources.{outcome}")


def _quarantines(packed: Packed, splits: list[str]) -> tuple[Counter[str], list[Finding]]:
    """Quarantined rows by source, and what is wrong with their files."""
    counts, faults = Counter[str](), []
    folders = tuple(f"{contract.QUARANTINE_DIR.format(split=split)}/" for split in splits)
    for path in (path for path in packed.paths if path.startswith(folders)):
        try:
            table = packed.table(path)
        except DAMAGED as error:
            faults.append(Finding(path, f"cannot be read: {one_line(error)}"))
            continue
        if not table.schema.equals(contract.QUARANTINE_SCHEMA):
            faults.append(Finding(path, "its columns are not those of the contract", field="schema"))
            continue
        counts.update(table["source"].to_pylist())
        unknown = sorted({str(reason) for reason in table["reason"].to_pylist()} - contract.REASONS.keys())
        faults += [Finding(path, f"{reason!r} is no reason of the contract", field="reason") for reason in unknown]
    return counts, faults


def _report(packed: Packed, manifests: Mapping[str, Manifest], infos: Mapping[str, ManifestInfo]) -> Iterator[Finding]:
    """report.json against its own ledger and the manifests of its splits."""
    if REPORT not in packed.paths:
        return  # reported with the files
    try:
        told = packed.report()
    except DAMAGED as error:
        yield Finding(REPORT, one_line(error))
        return
    faults = [Finding(REPORT, message, field=name) for name, message in faults_of(Report, told)]
    yield from faults
    if faults:
        return
    report = Report.model_validate(told)
    for split in report.splits:
        if split not in packed.splits:
            yield Finding(REPORT, "no manifest is of this split", field=f"splits.{split}")
        if split in infos:  # otherwise its manifest has a finding
            yield from _split_of_report(report, split, infos[split], manifests[split])
    for split, info in infos.items():
        if info.run == report.run and split not in report.splits:
            yield Finding(REPORT, f"lacks {split}, which its run has packed", field="splits")
    reasons = metrics.add({row.reason: row.num_rows} for row in report.ledger if row.outcome == "quarantined")
    if reasons != report.quarantine:
        yield Finding(REPORT, f"{report.quarantine}, its ledger makes {reasons}", field="quarantine")
    for source in report.sources:
        num_rows = sum(row.num_rows for row in report.ledger if row.source == source.name)
        if num_rows != source.num_rows + source.num_copies:
            message = f"{num_rows} rows of {source.name}, which has {source.num_rows} and its copies"
            yield Finding(REPORT, message, field="ledger")


def _split_of_report(report: Report, split: str, info: ManifestInfo, found: Manifest) -> Iterator[Finding]:
    """A split of the report against its manifest: figures, run and drawn packs."""
    part, where = report.splits[split], f"splits.{split}"
    for name in ("totals", "sums", "quality"):
        if getattr(part, name) != getattr(info, name):
            yield Finding(REPORT, f"not what the manifest of {split} has", field=f"{where}.{name}")
    config, sources = info.runs[-1].config.dump(), info.runs[-1].sources
    if report.run != info.run:
        yield Finding(REPORT, f"{report.run}, the manifest of {split} has {info.run}", field="run")
    elif report.config != config:
        yield Finding(REPORT, f"not what the manifest of {split} has of its last run", field="config")
    if report.run == info.run and report.sources != sources:
        yield Finding(REPORT, f"not what the manifest of {split} has of its last run", field="sources")
    groups = zip(*(found.row_groups[name].to_pylist() for name in ("file", "row_group")), strict=True)
    drawn = part.drawn
    if drawn and (drawn.file, drawn.row_group) not in set(groups):
        message = f"row group {drawn.row_group} of {drawn.file} is not in the manifest of {split}"
        yield Finding(REPORT, message, field=f"{where}.drawn")


def _card(packed: Packed) -> Iterator[Finding]:
    """The card's configuration `packed`: it has the dataset's splits."""
    if "README.md" not in packed.paths:
        return  # reported with the files
    try:
        named = card.packed_splits(packed.read("README.md").decode())
    except (OutputError, UnicodeDecodeError) as error:
        yield Finding("README.md", one_line(error))
        return
    if named != sorted(packed.splits):
        yield Finding("README.md", f"splits {named}, there are {sorted(packed.splits)}", field="configs")
