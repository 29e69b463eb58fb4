"""The main job: datasets on the Hub in, packed and balanced training data on the Hub out.

    python -m jobs.pack --config conf/jobs/demo.yaml pack.seq_len=8192
    spark-submit --properties-file conf/spark/standalone.conf jobs/pack.py --config conf/jobs/demo.yaml

`run` reads as the data flows: pin the sources, plan the shards, pack them in Spark, check the ledger, publish.
All that can be wrong with the input is said before Spark starts; from then on the repository changes once, at the end.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # spark-submit puts this folder first on the path, where its modules shadow others
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse
import functools
import hashlib
import io
import json
import logging
from collections.abc import Sequence
from importlib.metadata import version

import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars
from pyspark.sql import SparkSession

from jobs import adapters, card, publish, report
from jobs.java import JavaError
from jobs.plan import plan_shards, splits_of
from jobs.progress import collect
from jobs.session import get_session
from jobs.shards import ShardPlan, ShardWork, from_ipc, pack_shards
from jobs.sources import PinnedSource, pin, read
from packing_udfs import contract, manifest
from packing_udfs.config import Config, ConfigError, describe, load
from packing_udfs.encode import Encoder
from packing_udfs.metrics import add
from packing_udfs.pack import PackSettings
from packing_udfs.processor import ProcessorFiles, fetch

VERSIONS = ("packing-udfs", "pyspark", "pyarrow", "numpy", "transformers", "tokenizers", "pillow")
USER_ERRORS = (ValueError, JavaError, publish.PublishError, report.QualityError, report.LedgerError)


def run(config: Config, spark: SparkSession | None = None, *, spark_conf: str | None = None) -> dict:
    """Run a job and return its report (the published `report.json` plus `output.commit`).

    Raises ValueError for what is wrong with the configuration or the sources, before Spark starts; PublishError,
    QualityError or LedgerError when nothing could be published, with the repository unchanged.
    """
    processor = fetch(config.processor.path, config.processor.revision)
    vision_unit = _check_budgets(config, processor)
    publish.check_token()
    sources = [pin(source, f"sources.{i}") for i, source in enumerate(config.sources)]
    head = publish.read_head(config.output.repo)
    card.read_front_matter(head.readme)  # one that cannot be merged is refused before hours of work
    plan = plan_shards(config, sources, head)
    head = publish.create(config.output.repo, config.output.private)
    repository = publish.Repository(config.output.repo, config.output.retry_seconds)
    spark = spark or get_session(spark_conf)
    samples = functools.reduce(lambda a, b: a.unionByName(b), [read(spark, s, config.shards.seed) for s in sources])
    work = ShardWork(_settings(config, sources), processor, plan, repository.upload)
    shards = sorted(collect(pack_shards(samples, work), len(plan.paths)), key=lambda shard: shard["shard"])
    ledger = report.Ledger.merge(from_ipc(shard["ledger"]) for shard in shards)
    ledger.check(sources)
    empty = contract.QUARANTINE_SCHEMA.empty_table()
    quarantine = pa.concat_tables([empty, *(from_ipc(shard["quarantine"]) for shard in shards)])
    ledger.check_quarantine(config.quality.max_quarantine_fraction, quarantine)
    return Publication(config, sources, processor, plan, head, shards, ledger, vision_unit).publish(repository)


def _check_budgets(config: Config, processor: ProcessorFiles) -> str:
    """Refuse budgets that no image fits, and name the unit of vision cost."""
    encoder = Encoder(processor.load(), config.pack.train_on)
    image = encoder.expand((64, 64))
    if len(image.ids) >= config.pack.seq_len:
        raise ConfigError(
            f"pack.seq_len: {config.pack.seq_len} is too small: one small image takes {len(image.ids)} tokens with "
            f"{config.processor.path}; use more"
        )
    return encoder.family.vision_unit


def _settings(config: Config, sources: Sequence[PinnedSource] = ()) -> PackSettings:
    return PackSettings(
        **config.pack.model_dump(),
        num_packs_per_row_group=config.shards.num_packs_per_row_group,
        duplicates=config.shards.duplicates,
        seed=config.shards.seed,
        images=config.images,
        videos={pinned.source.name: pinned.source.video for pinned in sources if pinned.has_videos},
    )


class Publication:
    """What the shards' results become: manifests, report, card, quarantine, and the commit of them all."""

    def __init__(self, config, sources, processor, plan, head, shards, ledger, vision_unit):
        self.config: Config = config
        self.sources: list[PinnedSource] = sources
        self.processor: ProcessorFiles = processor
        self.plan: ShardPlan = plan
        self.head: publish.Head = head
        self.shards: list[dict] = shards
        self.ledger: report.Ledger = ledger
        self.vision_unit: str = vision_unit

    def publish(self, repository: publish.Repository) -> dict:
        """Publish and return the report."""
        files: dict[str, bytes] = {}
        infos = {split: self._manifest(split, files) for split in splits_of(self.config)}
        quarantined = [split for split in infos if self._quarantine(split, files)]
        result = self._report(infos)
        files["report.json"] = report.as_json(result)
        delete = self._replaced_files() if self.config.output.mode == "overwrite" else []
        files["README.md"] = self._card(infos, quarantined, set(delete), report.as_markdown(result)).encode()
        commit = publish.publish(
            repository,
            self.head,
            [shard["operation"] for shard in self.shards if shard["operation"]],
            files,
            delete,
            run=self.run_fingerprint,
            manifest_path=contract.MANIFEST_JSON.format(split=self.config.output.split),
            max_operations=self.config.output.max_operations_per_commit,
        )
        return result | {"commit": commit}

    @functools.cached_property
    def run_fingerprint(self) -> str:
        """SHA-256 of all that determines the output: contract, configuration, source commits, processor."""
        text = json.dumps(
            [contract.VERSION, self._config, [s.commit for s in self.sources], self.processor.fingerprint],
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def _config(self) -> dict:
        return self.config.model_dump(mode="json")

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
        before = self._appended_to(split)
        if before:
            new = pa.concat_tables([before.row_groups, new])
            sums = add([before.info["sums"], sums])
            runs = [*before.info["runs"], *runs]
        if not new.num_rows:
            raise report.QualityError(f"split {split}: no sample could be packed; nothing was published")
        info = {
            "run": self.run_fingerprint,
            "runs": runs,
            "split": split,
            "seq_len": self.config.pack.seq_len,
            "vision_unit": self.vision_unit,
            "num_shards": len(shards) if before else self._num_shards(split),
            "processor": {
                "name": self.processor.name,
                "revision": self.processor.revision,
                "fingerprint": self.processor.fingerprint,
            },
            "totals": report.totals(new),
            "sums": sums,
            "quality": report.quality(sums, new, self.config.pack.seq_len),
        }
        info_json, parquet = manifest.dump(info, new)
        files[contract.MANIFEST_JSON.format(split=split)] = info_json
        files[contract.MANIFEST_PARQUET.format(split=split)] = parquet
        return info

    def _num_shards(self, split: str) -> int:
        return self.plan.num_train if split == self.config.output.split else self.plan.num_validation

    def _appended_to(self, split: str) -> manifest.Manifest | None:
        """The manifest that an append adds to. Raises OutputError when its packs are of another kind."""
        if self.config.output.mode != "append" or split not in dict(self.head.manifests):
            return None
        before = publish.read_manifest(self.config.output.repo, self.head.commit, split)
        for name, ours in (("seq_len", self.config.pack.seq_len), ("vision_unit", self.vision_unit)):
            if before.info[name] != ours:
                raise publish.OutputError(
                    f"output.mode: cannot append to {split}: its {name} is {before.info[name]}, not {ours}; overwrite"
                )
        if before.info["processor"]["fingerprint"] != self.processor.fingerprint:
            raise publish.OutputError(
                f"output.mode: cannot append to {split}: it was packed with {before.info['processor']['name']} of "
                "another content; overwrite"
            )
        return before

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
        return {
            "contract": contract.VERSION,
            "run": self.run_fingerprint,
            "config": self._config,
            "sources": self._sources(),
            "ledger": self.ledger.table.to_pylist(),
            "quarantine": self.ledger.reasons(),
            "splits": {s: {name: i[name] for name in ("totals", "sums", "quality")} for s, i in infos.items()},
            "versions": {name: version(name) for name in VERSIONS},
        }

    def _replaced_files(self) -> list[str]:
        """Files of the splits that this run replaces, with those that the replaced run made beside them."""
        manifests = dict(self.head.manifests)
        before = manifests.get(self.config.output.split, {}).get("run")
        siblings = [split for split, info in manifests.items() if before and info.get("run") == before]
        splits = sorted({*splits_of(self.config), *siblings})
        return [path for split in splits for path in self.head.files_of(split)]

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
        licenses = sorted({name for source in self.sources for name in source.licenses})
        return card.render(self.head.readme, kept | infos, licenses, summary, with_quarantine)


def main(argv: list[str] | None = None, spark: SparkSession | None = None) -> int:
    """Command line; returns the exit code. `spark`: a session to use, as in a notebook."""
    parser = argparse.ArgumentParser(
        prog="python -m jobs.pack",
        description="Pack datasets of images and chat turns on the Hub into training data on the Hub.",
        epilog="Fields of the configuration:\n" + "\n".join(describe()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, help="YAML file with the fields below")
    parser.add_argument("--spark-conf", help="Spark properties of a session made here; default conf/spark/local.conf")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="override a field, as in pack.seq_len=8192")
    args = parser.parse_args(argv)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    disable_progress_bars()  # of the Hub's client; the job has one bar over shards
    logging.getLogger("huggingface_hub").propagate = False  # it has its own handler; twice is once too many
    try:
        result = run(load(args.config, args.overrides), spark, spark_conf=args.spark_conf)
    except USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(report.as_text(result))
    repo = result["config"]["output"]["repo"]
    print(f"published    {repo} at {result['commit'][:12]}")
    print(f"             {constants.ENDPOINT}/datasets/{repo}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
