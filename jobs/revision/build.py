"""What a run publishes: its shards' results as manifests, report, card, quarantine, and the commit of them all."""

import functools
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from jobs import adapters
from jobs.output.finished_shard import count, from_ipc
from jobs.output.interface import Draft, Head
from jobs.pages import run as run_page
from jobs.revision import card, figures
from jobs.revision.append_rules import replaced_splits
from jobs.revision.fingerprints import _versions, plain, run_fingerprint
from jobs.shards.ledger import Ledger, QualityError, examples
from jobs.shards.plan import ShardPlan, power_of_two, splits_of
from jobs.sources.pinned import PinnedSource
from packing_udfs import contract, manifest
from packing_udfs.config import Config
from packing_udfs.encode.processor import ProcessorFiles
from packing_udfs.metrics import add


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
        summary = figures.as_markdown(result, pictures)
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
            "totals": figures.totals(new),
            "sums": sums,
            "quality": figures.quality(sums, new, self.config.pack.seq_len),
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
        files |= {"report.json": figures.as_json(result), "report.html": page.encode(), **pictures}
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
