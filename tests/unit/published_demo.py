"""The demo as the job publishes it, in a folder, without Spark or a Hub."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from jobs.adapters.finevision import FineVision
from jobs.output.finished_shard import from_ipc
from jobs.output.folder import Folder
from jobs.output.interface import Head
from jobs.revision.append_rules import read_appended
from jobs.revision.build import Publication
from jobs.shards import settings as settings_module
from jobs.shards.ledger import Ledger
from jobs.shards.plan import ShardPlan, plan_shards
from jobs.shards.udf import ShardWork, run_shard
from jobs.sources.pinned import PinnedSource, SourceFile
from packing_udfs import config, config_file, contract, manifest
from packing_udfs.encode.processor import fetch
from packing_udfs.storage.folder_state import PUBLISHED, Tree
from tests.unit.demo_samples import DEMO, as_spark_gives, demo_rows

CONF = DEMO.parents[1] / "conf" / "jobs" / "demo.yaml"


def publish_demo(folder: Path, *overrides: str, rows: Sequence[dict] | None = None) -> dict:
    """Pack the demo's rows, or others of its two sources, and write all that a run publishes; its report.

    What is in the folder already is the head of the run, which leaves out what was taken down from it.
    """
    settings = config_file.load(CONF, [f"processor.path={DEMO / 'processor'}", *overrides])
    rows = demo_rows() if rows is None else rows
    sources = [_pinned(source, rows) for source in settings.sources]
    head = head_of(folder)
    plan = plan_shards(settings, sources, head)
    processor = fetch(settings.processor.path)

    def keep(path: str, file: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / path)

    how = settings_module.settings(settings).model_copy(update={"taken_down": frozenset(head.taken_down)})
    work = ShardWork(how, processor, plan, keep)
    of_shard = _by_shard(rows, plan)
    shards = [row for s in sorted(of_shard) for row in run_shard(s, as_spark_gives(of_shard[s]), work)]
    publication = Publication(
        config=settings,
        sources=sources,
        processor=processor,
        plan=plan,
        head=head,
        appended=read_appended(settings, head, PlainFolder(folder), processor, "tiles"),
        shards=shards,
        ledger=Ledger.merge(from_ipc(shard.ledger) for shard in shards),
        vision_unit="tiles",
    )

    return publication.publish(FolderDraft(folder))


def head_of(folder: Path) -> Head:
    """What a folder holds that was published into before."""
    infos = tuple((path.stem, json.loads(path.read_bytes())) for path in sorted(folder.glob("manifest/*.json")))
    if not infos:
        return Head(None)
    paths = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    return Head("0" * 40, tuple(paths), (folder / "README.md").read_text(), infos)


def shown(plain: Path, to: Path) -> Folder:
    """What lies in a folder, as the packing job shows it in one."""
    folder = Folder(str(to))
    paths = [path.relative_to(plain).as_posix() for path in sorted(plain.rglob("*")) if path.is_file()]
    folder.store.put(PUBLISHED, Tree({path: folder.upload(path, plain / path) for path in paths}).dump())
    return folder


class PlainFolder:
    """Of `outputs.Output`, what an append reads of a folder."""

    def __init__(self, folder: Path):
        self._folder = folder

    def read_manifest(self, commit: str, split: str) -> manifest.Manifest:
        names = (contract.MANIFEST_JSON, contract.MANIFEST_PARQUET)
        return manifest.load(*((self._folder / name.format(split=split)).read_bytes() for name in names))


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
