"""What a published dataset is without some of its samples: manifests, ledger, report, page and card that stay true."""

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from jobs.output.finished_shard import from_ipc
from jobs.output.interface import Head, OutputError
from jobs.pages import run as run_page
from jobs.published.dataset import Packed
from jobs.revision import card, figures
from jobs.shards.settings import settings
from packing_udfs import contract, manifest, metrics
from packing_udfs.config import parse
from packing_udfs.published.pictures import draw
from packing_udfs.shard.assemble import Unit
from packing_udfs.shard.pack_shard import PackSettings

TAKEN_DOWN = "taken_down"


@dataclass
class Remainder:
    """A split without some of its samples: what is written anew, and what went."""

    manifest: manifest.Manifest
    rows: list[dict] = field(default_factory=list)  # of `results.RESULT`, of files that are written anew
    gone: list[str] = field(default_factory=list)  # files of which nothing is left
    before: list[dict] = field(default_factory=list)  # sums of the files as they were …
    after: list[dict] = field(default_factory=list)  # … and as they are
    taken: list[Unit] = field(default_factory=list)  # the samples that went
    quarantine: dict[str, pa.Table] = field(default_factory=dict)  # path → what is left of it …
    set_aside: list[dict] = field(default_factory=list)  # … and its rows that went

    @property
    def files(self) -> set[str]:
        return {row["path"] for row in self.rows} | set(self.gone)


def settings_of(runs: Sequence[dict]) -> PackSettings:
    """How files of any of these runs are packed again: as the last run's, in the loosest budgets."""
    packs, last = [run["config"]["pack"] for run in runs], settings(parse(runs[-1]["config"]))
    names = ("max_vision_cost", "max_images_per_pack", "max_images_per_sample")
    values = {name: [pack[name] for pack in packs] for name in names}
    loosest = {name: None if None in of_run else max(of_run) for name, of_run in values.items()}
    makes_parts = any(pack["over_length"] == "split_turns" for pack in packs)
    over_length = "split_turns" if makes_parts else last.over_length
    return replace(last, max_file_bytes=None, over_length=over_length, **loosest)


def small_files(packed: Packed, splits: Mapping[str, Remainder], head: Head, folder: Path) -> dict[str, bytes]:
    """Manifests, report, page, card and quarantine of the new revision, whose written files lie in `folder`."""
    files: dict[str, bytes] = {}
    told, manifests = packed.report(), {}
    runs = _runs(splits)
    for split, part in splits.items():
        info, row_groups = _manifest(part)
        info |= {"runs": runs[split]}
        info_json, parquet = manifest.dump(info, row_groups)
        files[contract.MANIFEST_JSON.format(split=split)] = info_json
        files[contract.MANIFEST_PARQUET.format(split=split)] = parquet
        manifests[split] = manifest.load(info_json, parquet)
        files |= {path: _parquet(table) for path, table in part.quarantine.items() if table.num_rows}
    of_last = [split for split in told["splits"] if split in splits]  # what the report is of
    for split in of_last:
        told["sources"] = next((r["sources"] for r in runs[split][::-1] if r["run"] == told["run"]), told["sources"])
    told["ledger"] = _ledger(told["ledger"], [splits[split] for split in of_last])
    told["quarantine"] = metrics.add(
        {row["reason"]: row["num_rows"]} for row in told["ledger"] if row["outcome"] == "quarantined"
    )
    for split in of_last:
        told["splits"][split] |= {name: manifests[split].info[name] for name in ("totals", "sums", "quality")}
    drawn = _drawn(packed, told, splits, folder)
    told |= {"quarantine_examples": {}}
    pictures = run_page.pictures(told, manifests, drawn)
    page = run_page.page(told, manifests, drawn)
    files |= {"report.json": figures.as_json(told), "report.html": page.encode(), **pictures}
    infos = {split: found.info for split, found in manifests.items()}
    empty = {path for part in splits.values() for path, table in part.quarantine.items() if not table.num_rows}
    left = [path for path in head.paths if path not in empty]
    with_quarantine = [split for split in infos if any(path.startswith(f"quarantine/{split}/") for path in left)]
    summary = figures.as_markdown(told, list(pictures))
    licenses = card.licenses_of(head.readme)
    files["README.md"] = card.render(head.readme, infos, licenses, summary, with_quarantine).encode()
    return files


def _runs(splits: Mapping[str, Remainder]) -> dict[str, list[dict]]:
    """Each split's runs, whose sources count what was taken down: from the last run on, as much as it has of a source.

    A run that wrote two splits counts both of them, and is the same in both manifests.
    """
    known: dict[tuple[str, int], dict] = {}  # (run, which of a split's runs of this name)
    of_split: dict[str, list[dict]] = {}
    for split, part in splits.items():
        seen, runs = Counter(), []
        for run in part.manifest.info["runs"]:
            copy = run | {"sources": [dict(source) for source in run["sources"]]}
            runs.append(known.setdefault((run["run"], seen[run["run"]]), copy))
            seen[run["run"]] += 1
        packs = Counter(unit.source for unit in part.taken)
        aside = Counter(row["source"] for row in part.set_aside)
        for run in reversed(runs):
            for source in run["sources"]:
                for count, left in (("num_packed", packs), ("num_quarantined", aside)):
                    num = min(left[source["name"]], source[count])
                    left[source["name"]] -= num
                    source[count] -= num
                    if num:
                        source[f"num_{TAKEN_DOWN}"] = source.get(f"num_{TAKEN_DOWN}", 0) + num
        of_split[split] = runs
    return of_split


def _ledger(ledger: list[dict], parts: Iterable[Remainder]) -> list[dict]:
    """The last run's ledger, its rows that were taken down with an outcome of their own; of other runs it has none."""
    rows = {(row["source"], row["outcome"], row["reason"]): dict(row) for row in ledger}

    def move(key: tuple[str, str, str], counts: dict[str, int]) -> None:
        if not rows.get(key, {}).get("num_rows"):
            return  # of a run before it, whose counts are in the manifest
        to = rows.setdefault((key[0], TAKEN_DOWN, ""), _empty(key[0], rows[key]))
        for name, count in counts.items():
            rows[key][name] -= min(count, rows[key][name])
            to[name] += count

    for part in parts:
        for unit in part.taken:
            counts = {"num_rows": 1, "num_tokens": len(unit.encoded.input_ids), "num_images": len(unit.sizes)}
            move((unit.source, "packed", ""), counts)
        for row in part.set_aside:
            counts = {"num_rows": 1, "num_tokens": row["num_tokens"] or 0, "num_images": row["num_images"] or 0}
            move((row["source"], "quarantined", row["reason"]), counts)
    return [rows[key] for key in sorted(rows) if rows[key]["num_rows"]]


def _empty(source: str, like: dict) -> dict:
    zeros = {name: 0 for name, value in like.items() if isinstance(value, int)}
    return like | zeros | {"source": source, "outcome": TAKEN_DOWN, "reason": ""}


def _drawn(packed: Packed, told: dict, splits: Mapping[str, Remainder], folder: Path) -> dict[str, list[dict]]:
    """Packs for the page, drawn from the new revision."""
    drawn = {}
    for split, part in splits.items():
        kept = [f for f in part.manifest.row_groups["file"].to_pylist() if f not in part.gone]
        if split in told["splits"] and kept:
            where = Packed("", None, LocalFileSystem(), str(folder)) if kept[0] in part.files else packed
            drawn[split] = draw(where.row_group(kept[0], 0))
            told["splits"][split]["drawn"] = {"file": kept[0], "row_group": 0}
    return drawn


def _manifest(part: Remainder) -> tuple[dict, pa.Table]:
    """The split's info and row groups as they are without the samples; the same where there were none."""
    info, before = part.manifest.info, part.manifest.row_groups
    taken = {*(unit.sample_id for unit in part.taken), *(row["sample_id"] for row in part.set_aside)}
    if taken:
        info = info | {TAKEN_DOWN: sorted({*info.get(TAKEN_DOWN, ()), *taken})}
    if not part.files:
        return info, before
    stay = before.filter(pc.invert(pc.is_in(before["file"], pa.array(sorted(part.files)))))
    tables = [stay, *(from_ipc(row["row_groups"]) for row in part.rows)]
    row_groups = pa.concat_tables(tables).sort_by([("file", "ascending"), ("row_group", "ascending")])
    if not row_groups.num_rows:
        raise OutputError(
            f"split {info['split']}: no sample would be left, and the manifest of a split is what remembers the ids; "
            "append other samples first (output.mode=append), or pack the sources again without those rows"
        )
    _check_num_samples(part, row_groups)
    sums = metrics.add([info["sums"], *part.after])
    for gone in part.before:
        sums = _less(sums, gone)
    quality = figures.quality(sums, row_groups, info["seq_len"])
    return info | {"totals": figures.totals(row_groups), "sums": sums, "quality": quality}, row_groups


def _check_num_samples(part: Remainder, row_groups: pa.Table) -> None:
    """Raises OutputError unless the files as they are written hold all samples but those that went."""
    before, after = (pc.sum(table["num_samples"]).as_py() for table in (part.manifest.row_groups, row_groups))
    if after != before - len(part.taken):
        path = contract.MANIFEST_PARQUET.format(split=part.manifest.info["split"])
        raise OutputError(
            f"{path}: num_samples is {before} in all, {len(part.taken)} were taken out and {after} are left, which "
            "does not add up; nothing was published: see python -m jobs.validate"
        )


def _less(sums: dict, gone: dict) -> dict:
    """Sums without those of a part; empty bins of histograms go."""
    left = {}
    for name, value in sums.items():
        if isinstance(value, dict):
            left[name] = {key: n for key, n in _less(value, gone.get(name, {})).items() if n}
        else:
            left[name] = value - gone.get(name, 0)
    return left


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
