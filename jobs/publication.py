"""What a run publishes: its shards' results as manifests, report, card, quarantine, and the commit of them all."""

import functools
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from jobs import adapters, card, report
from jobs.installed import version
from jobs.ledger import Ledger, QualityError, examples
from jobs.outputs import Draft, Head, Output, OutputError, at
from jobs.pages import run as run_page
from jobs.plan import VALIDATION, power_of_two, splits_of
from jobs.results import RESULT, count, from_ipc
from jobs.shards import ShardPlan
from jobs.sources import PinnedSource
from packing_udfs import contract, manifest
from packing_udfs.config import Config
from packing_udfs.metrics import add
from packing_udfs.processor import ProcessorFiles

VERSIONS = ("packing-udfs", "pyspark", "pyarrow", "numpy", "transformers", "tokenizers", "pillow")


def read_appended(
    config: Config, head: Head, output: Output, processor: ProcessorFiles, vision_unit: str
) -> dict[str, manifest.Manifest]:
    """The manifests that an append adds to, by split; none in a rewrite.

    Raises OutputError when the packs there are of another kind, or the files are not those that the manifest names.
    """
    splits = splits_of(config) if config.output.mode == "append" else []
    before = {s: _read(s, head, output) for s in splits if s in dict(head.manifests)}
    for split, found in before.items():
        _check_same_split(config, split, found.info["runs"])
        for name, ours in (("seq_len", config.pack.seq_len), ("vision_unit", vision_unit)):
            if at(found.info, name) != ours:
                raise OutputError(
                    f"output.mode: cannot append to {split}: its {name} is {at(found.info, name)}, not {ours}; "
                    "overwrite"
                )
        if at(found.info, "processor", "fingerprint") != processor.fingerprint:
            raise OutputError(
                f"output.mode: cannot append to {split}: it was packed with {at(found.info, 'processor', 'name')} of "
                "another content; overwrite"
            )
        data = {path for path in head.files_of(split) if path.startswith("data/")}
        odd = sorted(data ^ set(found.row_groups["file"].to_pylist()))
        if odd:
            why = "is in its manifest or in its folder and not in both; repair it or overwrite"
            if odd[0] in head.left:
                why = "was replaced by a run whose pull request was merged before it was done; overwrite"
            raise OutputError(f"output.mode: cannot append to {split}: {odd[0]} {why}")
    return before


def _read(split: str, head: Head, output: Output) -> manifest.Manifest:
    """The manifest of a split that is appended to. Raises OutputError for one that is not whole."""
    path = contract.MANIFEST_PARQUET.format(split=split)
    try:
        if path not in head.paths:
            raise contract.ContractError(f"{path} is not there")
        found = output.read_manifest(head.commit, split)
        lacks = [name for name in contract.MANIFEST_SCHEMA.names if name not in found.row_groups.column_names]
        lacks += [name for name in ("num_shards", "sums") if name not in found.info]
        if lacks:
            raise contract.ContractError(f"its manifest has no {lacks[0]}")
    except (contract.ContractError, FileNotFoundError) as error:
        raise OutputError(f"output.mode: cannot append to {split}: {error}; repair it or overwrite") from error
    return found


def _check_same_split(config: Config, split: str, runs: Sequence[dict]) -> None:
    """Refuse to draw the validation split otherwise than before: a sample could come to be in both splits."""
    for run in runs:
        ours = config.shards
        for name in ("validation_fraction", "seed") if ours.validation_fraction else ("validation_fraction",):
            drawn = at(run, "config", "shards", name)
            if drawn != getattr(ours, name):
                raise OutputError(
                    f"shards.{name}: {getattr(ours, name)} cannot be appended to {split}, which was packed with "
                    f"{drawn}: a sample could be in the validation split and in {config.output.split} too; use "
                    f"{drawn} or overwrite"
                )


def is_appended(config: Config, head: Head, run: str) -> bool:
    """Whether each of its splits ends with an append of this very run: a second would add every sample twice.

    Raises OutputError where others were appended behind it: what a run says of itself would be of those.
    """
    runs = [head.runs(split) for split in splits_of(config)]
    if config.output.mode != "append" or not all(run in of_split for of_split in runs):
        return False
    if all(of_split[-1] == run for of_split in runs):
        return True
    raise OutputError(
        f"output.mode: this very run ({run[:12]}) was appended to {config.output.split} before, and others behind it: "
        "its samples are there; append other sources, or overwrite"
    )


def replaced_splits(config: Config, head: Head) -> list[str]:
    """Splits that a run replaces: those it writes, and the validation split that the replaced run made beside its own.

    Raises OutputError when that takes samples from a split that stays: where `train` was packed with a validation
    split, packing `b` with one too would leave the samples that were set aside of `train` in neither.
    """
    if config.output.mode == "append":
        return []
    runs = {split: set(head.runs(split)) for split, _ in head.manifests}
    mine, of_validation = runs.get(config.output.split, set()), runs.get(VALIDATION, set())
    replaced = {*splits_of(config), *([VALIDATION] if mine & of_validation else [])}
    for split in sorted(replaced & runs.keys()):
        for other in sorted(runs.keys() - replaced):
            if runs[split] & runs[other]:
                zero = "" if mine & of_validation else "shards.validation_fraction=0 or "
                with_validation = f"shards.validation_fraction={config.shards.validation_fraction}"
                raise OutputError(
                    f"output.split: {config.output.split} with {with_validation} would replace the split {split}, "
                    f"which one run packed together with {other}: samples of {other} would be gone; use {zero}"
                    "another output.repo"
                )
    return sorted(replaced)


def run_fingerprint(config: Config, sources: Sequence[PinnedSource], processor: ProcessorFiles) -> str:
    """SHA-256 of all that determines the output: contract, configuration, source commits, processor."""
    return fingerprint_of(plain(config, processor), [s.commit for s in sources], processor.fingerprint)


def fingerprint_of(config: dict, commits: Sequence[str], processor: str) -> str:
    """The fingerprint of a run by what its manifest says of it: configuration, source commits, processor's files."""
    return _sha256([contract.VERSION, config, list(commits), processor])


def shards_fingerprint(
    config: Config, sources: Sequence[PinnedSource], processor: ProcessorFiles, plan: ShardPlan
) -> str:
    """SHA-256 of all that determines the shards' bytes: the same without what is decided later, and the versions.

    Shards of one fingerprint may be published together, whichever attempt packed them.
    """
    tree = plain(config, processor)
    del tree["quality"]
    tree["output"] = {name: tree["output"][name] for name in ("repo", "split", "mode", "reuse", "max_drift")}
    commits = [source.commit for source in sources]
    return _sha256([contract.VERSION, tree, commits, processor.fingerprint, plan.paths, RESULT.names, _versions()])


def plain(config: Config, processor: ProcessorFiles) -> dict:
    """The configuration as published files have it, with the processor's published name for its path."""
    tree = config.model_dump(mode="json")
    tree["processor"]["path"] = processor.published_name
    return tree


def _versions() -> dict[str, str]:
    return {name: version(name) for name in VERSIONS}


def _sha256(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Publication:
    """What the shards' results become: manifests, report, card, quarantine, and the commit of them all."""

    config: Config
    sources: Sequence[PinnedSource]
    processor: ProcessorFiles
    plan: ShardPlan
    head: Head
    appended: Mapping[str, manifest.Manifest]
    shards: Sequence[dict]
    ledger: Ledger
    vision_unit: str

    def publish(self, draft: Draft) -> dict:
        """Publish and return the report with the commit."""
        files: dict[str, bytes] = {}
        infos = {split: self._manifest(split, files) for split in splits_of(self.config)}
        quarantined = [split for split in infos if self._quarantine(split, files)]
        result = self._report(infos)
        pictures = self._pages(result, files)
        delete = self._replaced_files()
        delete += [path for path in run_page.PICTURES.values() if path in self.head.paths]
        delete += self.head.left
        summary = report.as_markdown(result, pictures)
        files["README.md"] = self._card(infos, quarantined, set(delete), summary).encode()
        return result | {"commit": draft.publish(files, delete)}

    @functools.cached_property
    def run_fingerprint(self) -> str:
        return run_fingerprint(self.config, self.sources, self.processor)

    @property
    def _config(self) -> dict:
        return plain(self.config, self.processor)

    def _of_split(self, split: str) -> list[dict]:
        is_first = split == self.config.output.split
        return [shard for shard in self.shards if (shard["shard"] < self.plan.num_train) == is_first]

    def _manifest(self, split: str, files: dict[str, bytes]) -> dict:
        """Add a split's two manifest files and return its info. In append mode the row groups before stay in it."""
        shards = self._of_split(split)
        empty = contract.MANIFEST_SCHEMA.empty_table()
        new = pa.concat_tables([empty, *(from_ipc(s["row_groups"]) for s in shards if s["row_groups"])])
        sums = add(json.loads(shard["sums"]) for shard in shards)
        runs = [{"run": self.run_fingerprint, "config": self._config, "sources": self._sources()}]
        before = self.appended.get(split)
        if before:
            new = pa.concat_tables([before.row_groups, new])
            sums = add([before.info["sums"], sums])
            runs = [*before.info["runs"], *runs]
        if not new.num_rows:
            more = "; use another shards.validation_fraction" if self.config.shards.validation_fraction else ""
            raise QualityError(f"split {split}: no sample could be packed; nothing was published{more}")
        info = {
            "run": self.run_fingerprint,
            "runs": runs,
            "split": split,
            "seq_len": self.config.pack.seq_len,
            "vision_unit": self.vision_unit,
            "num_shards": self._num_shards(split, before),
            "processor": {
                "name": self.processor.published_name,
                "revision": self.processor.revision,
                "fingerprint": self.processor.fingerprint,
            },
            "totals": report.totals(new),
            "sums": sums,
            "quality": report.quality(sums, new, self.config.pack.seq_len),
        }
        if self.head.taken_down:
            info["taken_down"] = self.head.taken_down
        info_json, parquet = manifest.dump(info, new)
        files[contract.MANIFEST_JSON.format(split=split)] = info_json
        files[contract.MANIFEST_PARQUET.format(split=split)] = parquet
        return info

    def _pages(self, result: dict, files: dict[str, bytes]) -> list[str]:
        """Add the report as JSON, as a page and as the card's pictures, and return these pictures' paths."""
        names = (contract.MANIFEST_JSON, contract.MANIFEST_PARQUET)
        manifests = {s: manifest.load(*(files[n.format(split=s)] for n in names)) for s in result["splits"]}
        drawn = {split: json.loads(shard["drawn"]) for split in manifests if (shard := self._drawn(split))}
        pictures = run_page.pictures(result, manifests, drawn)
        page = run_page.page(result, manifests, drawn)
        files |= {"report.json": report.as_json(result), "report.html": page.encode(), **pictures}
        return sorted(pictures)

    def _drawn(self, split: str) -> dict | None:
        """The shard whose packs the report draws: the first of the split's that has any."""
        return next((shard for shard in self._of_split(split) if shard["drawn"]), None)

    def _num_shards(self, split: str, before: manifest.Manifest | None) -> int:
        """The power of two that a rewrite of all that the split holds goes on with."""
        planned = self.plan.num_train if split == self.config.output.split else self.plan.num_validation
        return power_of_two(planned + before.info["num_shards"]) if before else planned

    def _quarantine(self, split: str, files: dict[str, bytes]) -> int:
        """Add the split's quarantine, when there is any, and return its number of rows."""
        empty = contract.QUARANTINE_SCHEMA.empty_table()
        table = pa.concat_tables([empty, *(from_ipc(shard["quarantine"]) for shard in self._of_split(split))])
        if table.num_rows:
            buffer = io.BytesIO()
            pq.write_table(table, buffer, compression="zstd")
            first = Path(self._of_split(split)[0]["path"]).stem
            files[f"{contract.QUARANTINE_DIR.format(split=split)}/{first}.parquet"] = buffer.getvalue()
        return table.num_rows

    def _sources(self) -> list[dict]:
        def describe_source(pinned: PinnedSource) -> dict:
            name = pinned.source.name
            return {
                **pinned.source.model_dump(mode="json", include={"name", "repo", "config", "split"}),
                "commit": pinned.commit,
                "num_rows": pinned.num_rows,
                "num_bytes": pinned.num_bytes,
                "adapter": adapters.name_of(pinned.adapter),
                "num_copies": self.ledger.count("num_copies", source=name),
                "num_packed": self.ledger.count(source=name, outcome="packed"),
                "num_quarantined": self.ledger.count(source=name, outcome="quarantined"),
                "num_duplicates": self.ledger.count(source=name, outcome="duplicate"),
                "num_not_sampled": self.ledger.count(source=name, outcome="not_sampled"),
            }

        return [describe_source(pinned) for pinned in self.sources]

    def _report(self, infos: dict[str, dict]) -> dict:
        splits = {s: {name: i[name] for name in ("totals", "sums", "quality")} for s, i in infos.items()}
        for split, part in splits.items():
            shard = self._drawn(split)
            part["drawn"] = shard and {"file": shard["path"], "row_group": 0}
        return {
            "contract": contract.VERSION,
            "run": self.run_fingerprint,
            "config": self._config,
            "sources": self._sources(),
            "ledger": self.ledger.table.to_pylist(),
            "quarantine": self.ledger.reasons(),
            "quarantine_examples": examples(from_ipc(shard["quarantine"]) for shard in self.shards),
            "splits": splits,
            "metrics": add(count(shard) for shard in self.shards),
            "versions": _versions(),
        }

    def _replaced_files(self) -> list[str]:
        """Files of the splits that this run replaces."""
        return [path for split in replaced_splits(self.config, self.head) for path in self.head.files_of(split)]

    def _card(self, infos: dict[str, dict], quarantined: list[str], deleted: set[str], summary: str) -> str:
        kept = {
            split: info
            for split, info in self.head.manifests
            if contract.MANIFEST_JSON.format(split=split) not in deleted and split not in infos
        }
        with_quarantine = [
            split
            for split in kept | infos
            if split in quarantined
            or any(p.startswith(f"quarantine/{split}/") and p not in deleted for p in self.head.paths)
        ]
        stays = card.licenses_of(self.head.readme) if kept or self.appended else []
        licenses = sorted({*stays, *(name for source in self.sources for name in source.licenses)})
        return card.render(self.head.readme, kept | infos, licenses, summary, with_quarantine)
