"""Check a packed dataset against its contract, manifest, ledger and hashes: a line a finding, and an exit code.

    python -m jobs.validate user/packed

Nothing is taken on trust: what the manifest says of a file is compared with the file, what a file says of its packs
with the packs, sums with what they sum up, the run's fingerprint with the configuration it is made of. Row groups are
read one at a time with their pages' checksums, so memory is one row group and eight bytes a sample. What cannot be
checked from the dataset alone: that `sample_ids` are hashes of their samples, since texts are stored as tokens only.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from jobs.output.interface import OutputError
from jobs.output.retries import one_line
from jobs.published.check_split import DAMAGED, Finding, Seen, check_data, check_manifest, check_shape, limits_of
from jobs.published.dataset import Packed
from jobs.revision import card, shape
from packing_udfs import contract, metrics
from packing_udfs.contract import REPORT
from packing_udfs.manifest import Manifest

_OUTCOMES = ("num_packed", "num_quarantined", "num_duplicates", "num_not_sampled", "num_taken_down")


def validate(packed: Packed, processor: str | None = None, *, decodes: bool = False) -> Iterator[Finding]:
    """What is wrong with a packed dataset, nothing when it is sound.

    processor: path or repository of the one it is packed for, to count images' tokens and vision cost again; decodes:
    decode every image instead of reading its header. Raises ProcessorError when the processor is another one.
    """
    manifests: dict[str, Manifest] = {}
    if not packed.splits:
        yield Finding("manifest/", "no manifest; is it a dataset that jobs.pack has published?")
    for split in packed.splits:
        path = contract.MANIFEST_JSON.format(split=split)
        try:
            found = packed.manifest(split)
        except DAMAGED as error:
            yield Finding(path, one_line(error))
            continue
        faults = check_shape(found, split)
        yield from faults
        if not faults:  # else nothing more can be said of the split
            manifests[split] = found
    yield from _files(packed, manifests)
    seen: dict[str, Seen] = {}
    for split, found in manifests.items():
        yield from check_manifest(found, split)
        seen[split] = Seen()
        yield from check_data(packed, found, limits_of(packed, found, processor, decodes), seen[split])
    if seen.keys() == set(packed.splits):  # what a run counts is in all of its splits
        yield from _twice(manifests, seen)
        yield from _ledgers(packed, manifests, seen)
    yield from _report(packed, manifests)
    yield from _card(packed)


def _files(packed: Packed, manifests: dict[str, Manifest]) -> Iterator[Finding]:
    """Files that are missing, of another size, or that nothing names."""
    named: dict[str, int | None] = {}
    for split, found in manifests.items():
        rows = found.row_groups
        named |= dict(zip(rows["file"].to_pylist(), rows["file_bytes"].to_pylist(), strict=True))
        named |= {name.format(split=split): None for name in (contract.MANIFEST_JSON, contract.MANIFEST_PARQUET)}
    for path, size in named.items():
        if path not in packed.paths:
            yield Finding(path, "missing; the manifest names it")
        elif size not in (None, packed.paths[path]):
            yield Finding(path, f"{packed.paths[path]} bytes, the manifest says {size}", field="file_bytes")
    quarantines = [f"{contract.QUARANTINE_DIR.format(split=split)}/" for split in packed.splits]
    unread = [split for split in packed.splits if split not in manifests]  # of which nothing more can be said
    known = [f"{contract.DATA_DIR.format(split=split)}/" for split in unread]
    known += [
        name.format(split=split) for split in unread for name in (contract.MANIFEST_JSON, contract.MANIFEST_PARQUET)
    ]
    for path in packed.paths:
        is_ours = path.startswith(("data/", "manifest/", "quarantine/"))
        if is_ours and path not in named and not path.startswith((*quarantines, *known)):
            yield Finding(path, "extra; no manifest names it")
    for path in ("README.md", REPORT, "report.html"):
        if path not in packed.paths:
            yield Finding(path, "missing")


def _twice(manifests: dict[str, Manifest], seen: dict[str, Seen]) -> Iterator[Finding]:
    """Samples that stand twice in a split where duplicates are dropped, or in two splits of one run."""
    ids = {split: np.concatenate([np.empty(0, np.int64), *found.ids]) for split, found in seen.items()}
    for split, found in manifests.items():
        num_twice = len(ids[split]) - len(np.unique(ids[split]))
        if num_twice and _has_each_once(found.info["runs"]):
            message = f"{num_twice} samples stand in it twice, where duplicates are dropped"
            yield Finding(contract.DATA_DIR.format(split=split), message, field="sample_ids")
    for part in _parts(manifests):
        for at, split in enumerate(part):
            for other in part[at + 1 :]:
                num_shared = len(np.intersect1d(ids[split], ids[other]))
                if num_shared:
                    message = f"{num_shared} samples are in {other} too"
                    yield Finding(contract.DATA_DIR.format(split=split), message, field="sample_ids")


def _has_each_once(runs: list[dict]) -> bool:
    """Whether no sample may stand in a split twice: one run, no copies, no parts, no duplicates."""
    config = runs[0]["config"]
    return (
        len(runs) == 1
        and config["shards"]["duplicates"] == "drop"
        and config["pack"]["over_length"] != "split_turns"
        and all(source["weight"] <= 1 for source in config["sources"])
    )


def _parts(manifests: dict[str, Manifest]) -> list[list[str]]:
    """Splits that runs wrote together."""
    parts: list[tuple[set[str], list[str]]] = []
    for split, found in manifests.items():
        runs = {run["run"] for run in found.info["runs"]}
        joined = [part for part in parts if part[0] & runs]
        parts = [part for part in parts if not part[0] & runs]
        parts.append((runs.union(*(part[0] for part in joined)), sorted([split, *(s for _, p in joined for s in p)])))
    return [splits for _, splits in parts]


def _ledgers(packed: Packed, manifests: dict[str, Manifest], seen: dict[str, Seen]) -> Iterator[Finding]:
    """Each run's ledger: rows in are rows out, and what it packed and set aside is there."""
    for part in _parts(manifests):
        path = contract.MANIFEST_JSON.format(split=part[0])
        by_name: dict[str, dict] = {}
        for split in part:
            for run in manifests[split].info["runs"]:
                if by_name.setdefault(run["run"], run) != run:
                    other = contract.MANIFEST_JSON.format(split=split)
                    yield Finding(other, f"run {run['run']} is not as {path} has it", field="runs")
        runs = list(by_name.values())
        sources = [source for run in runs for source in run["sources"]]
        for source in sources:
            rows, out = source["num_rows"] + source["num_copies"], sum(source.get(name, 0) for name in _OUTCOMES)
            if rows != out:
                message = f"{rows} rows and copies in, {out} accounted for, of {source['name']}"
                yield Finding(path, message, field="runs.sources")
        in_packs = sum((seen[split].sources for split in part), Counter())
        in_quarantine, faults = _quarantines(packed, part)
        yield from faults
        makes_parts = any(run["config"]["pack"]["over_length"] == "split_turns" for run in runs)  # several of one row
        for name in sorted({source["name"] for source in sources}):
            for outcome, found, what, known in (
                ("num_packed", in_packs[name], "the packs hold", not makes_parts),
                ("num_quarantined", in_quarantine[name], "the quarantine holds", not faults),
            ):
                stated = sum(source[outcome] for source in sources if source["name"] == name)
                if known and stated != found:
                    yield Finding(path, f"{stated} of {name}, {what} {found}", field=f"runs.sources.{outcome}")


def _quarantines(packed: Packed, splits: list[str]) -> tuple[Counter, list[Finding]]:
    """Quarantined rows by source, and what is wrong with their files."""
    counts, faults = Counter(), []
    folders = tuple(f"{contract.QUARANTINE_DIR.format(split=split)}/" for split in splits)
    for path in packed.paths:
        if not path.startswith(folders):
            continue
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


def _report(packed: Packed, manifests: dict[str, Manifest]) -> Iterator[Finding]:
    """report.json against the manifests of its splits and against its own ledger."""
    if REPORT not in packed.paths:
        return  # said with the files
    try:
        found = packed.report()
    except DAMAGED as error:
        yield Finding(REPORT, one_line(error))
        return
    faults = [Finding(REPORT, message, field=name) for name, message in shape.faults_of(shape.Report, found)]
    yield from faults
    if faults:
        return
    yield from _splits_of_report(packed, found, manifests)
    reasons = metrics.add(
        {row["reason"]: row["num_rows"]} for row in found["ledger"] if row["outcome"] == "quarantined"
    )
    if reasons != found["quarantine"]:
        yield Finding(REPORT, f"{found['quarantine']}, its ledger makes {reasons}", field="quarantine")
    for source in found["sources"]:
        num_rows = sum(row["num_rows"] for row in found["ledger"] if row["source"] == source["name"])
        if num_rows != source["num_rows"] + source["num_copies"]:
            message = f"{num_rows} rows of {source['name']}, which has {source['num_rows']} and its copies"
            yield Finding(REPORT, message, field="ledger")


def _splits_of_report(packed: Packed, found: dict, manifests: dict[str, Manifest]) -> Iterator[Finding]:
    """The report's run and its splits: those that its run has packed, with the figures of their manifests."""
    for split, part in found["splits"].items():
        where = f"splits.{split}"
        if split not in packed.splits:
            yield Finding(REPORT, "no manifest is of this split", field=where)
        if split not in manifests:
            continue  # said of its manifest
        info, rows = manifests[split].info, manifests[split].row_groups
        for name in ("totals", "sums", "quality"):
            if part[name] != info[name]:
                yield Finding(REPORT, f"not what the manifest of {split} has", field=f"{where}.{name}")
        if found["run"] != info["run"]:
            yield Finding(REPORT, f"{found['run']}, the manifest of {split} has {info['run']}", field="run")
        else:
            for name in ("config", "sources"):
                if found[name] != info["runs"][-1][name]:
                    yield Finding(REPORT, f"not what the manifest of {split} has of its last run", field=name)
        groups = set(zip(rows["file"].to_pylist(), rows["row_group"].to_pylist(), strict=True))
        drawn = part.get("drawn")
        if drawn and (drawn["file"], drawn["row_group"]) not in groups:
            message = f"row group {drawn['row_group']} of {drawn['file']} is not in the manifest of {split}"
            yield Finding(REPORT, message, field=f"{where}.drawn")
    for split, of_split in manifests.items():
        if of_split.info["run"] == found["run"] and split not in found["splits"]:
            yield Finding(REPORT, f"lacks {split}, which its run has packed", field="splits")


def _card(packed: Packed) -> Iterator[Finding]:
    """The card's configuration `packed`: the splits that there are."""
    if "README.md" not in packed.paths:
        return  # said with the files
    try:
        front = card.read_front_matter(packed.read("README.md").decode())[0]
    except (OutputError, UnicodeDecodeError) as error:
        yield Finding("README.md", one_line(error))
        return
    configs = front.get("configs") or []  # one mapping, or a list of them
    files = [
        config.get("data_files")
        for config in ([configs] if isinstance(configs, dict) else configs)
        if config.get("config_name") == "packed"
    ]
    entries = [entry for some in files for entry in (some if isinstance(some, list) else [some])]
    named = sorted(str(entry["split"]) for entry in entries if isinstance(entry, dict) and "split" in entry)
    if named != sorted(packed.splits):
        yield Finding("README.md", f"splits {named}, there are {sorted(packed.splits)}", field="configs")
