"""The demo as the job publishes it, in a folder, without Spark or a Hub."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs import pack, report
from jobs.adapters.finevision import FineVision
from jobs.outputs import Head
from jobs.pinned import PinnedSource, SourceFile
from jobs.plan import plan_shards
from jobs.publication import Publication
from jobs.results import from_ipc
from jobs.shards import ShardPlan, ShardWork, run_shard
from packing_udfs import config, config_file
from packing_udfs.processor import fetch
from tests.unit.demo_samples import DEMO, as_spark_gives, demo_rows

CONF = DEMO.parents[1] / "conf" / "jobs" / "demo.yaml"


def publish_demo(folder: Path, *overrides: str, rows: Sequence[dict] | None = None) -> dict:
    """Pack the demo's rows, or others of its two sources, and write all that a run publishes; its report."""
    settings = config_file.load(CONF, [f"processor.path={DEMO / 'processor'}", *overrides])
    rows = demo_rows() if rows is None else rows
    sources = [_pinned(source, rows) for source in settings.sources]
    plan = plan_shards(settings, sources, Head(None))
    processor = fetch(settings.processor.path)

    def keep(path: str, file: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / path)

    work = ShardWork(pack.settings(settings), processor, plan, keep)
    of_shard = _by_shard(rows, plan)
    shards = [row for s in sorted(of_shard) for row in run_shard(s, as_spark_gives(of_shard[s]), work)]
    publication = Publication(
        config=settings,
        sources=sources,
        processor=processor,
        plan=plan,
        head=Head(None),
        appended={},
        shards=shards,
        ledger=report.Ledger.merge(from_ipc(shard["ledger"]) for shard in shards),
        vision_unit="tiles",
    )

    return publication.publish(FolderDraft(folder))


class FolderDraft:
    """Publishes into a folder, where the shards' files are."""

    def __init__(self, folder: Path):
        self._folder = folder

    def publish(self, files: Mapping[str, bytes], delete: Sequence[str]) -> str:
        for path, data in files.items():
            (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self._folder / path).write_bytes(data)
        return "0" * 40


def _by_shard(rows: Sequence[dict], plan: ShardPlan) -> dict[int, list[dict]]:
    """Rows dealt to shards by their id, a tenth of them to the validation split when there is one."""
    found: dict[int, list[dict]] = {}
    for row in rows:
        number = row["sample_id"]
        is_validation = plan.num_validation and number % 10 == 0
        shard = plan.num_train + number % plan.num_validation if is_validation else number % plan.num_train
        found.setdefault(shard, []).append(row)
    return found


def _pinned(source: config.Source, rows: Sequence[dict]) -> PinnedSource:
    file = next((DEMO / "source" / source.config).glob("*.parquet"))
    num_rows = sum(row["source"] == source.name for row in rows)
    adapter = FineVision((), None, ())  # which has read them
    return PinnedSource(source, "c" * 40, (SourceFile(file.name, file.stat().st_size, num_rows),), adapter)
