"""Runs that write to a folder, made without packing anything, for its tests."""

import hashlib
import pickle

from jobs.output.finished_shard import ShardFile
from jobs.output.folder import Folder
from jobs.output.interface import Run
from packing_udfs import contract, manifest
from packing_udfs.storage import hub

RUN = Run(run="a" * 64, shards="b" * 64, num_shards=2)


INFO = {"run": "a" * 64, "runs": [{"run": "a" * 64}], "totals": {}, "seq_len": 32}


REPORT = b'{"n": 1}\n'


def run_of(name: str) -> Run:
    """A run of a fingerprint of its own."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return Run(run=digest, shards=digest[::-1], num_shards=2)


def shard_rows(folder: Folder, tmp_path, shard: int, data: bytes) -> list[ShardFile]:
    """What the driver is given of a finished shard, whose file a worker has uploaded."""
    file = tmp_path / "shard.parquet"
    file.write_bytes(data)
    path = f"data/train/{shard:05d}.parquet"
    operation = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(folder)).upload(path, file)))
    return [ShardFile(shard=shard, path=path, num_bytes=len(data), num_bytes_read=1, operation=operation)]


def small_files(text: str) -> dict[str, bytes]:
    info, table = manifest.dump(INFO | {"note": text}, contract.MANIFEST_SCHEMA.empty_table())
    return {
        "manifest/train.json": info,
        "manifest/train.parquet": table,
        "README.md": text.encode(),
        "report.json": REPORT,
    }


def publish(folder: Folder, tmp_path, name: str, shards: dict[int, bytes], delete=()) -> str:
    """A whole run."""
    draft = folder.draft(folder.create(False), run_of(name))
    assert draft.published is None
    for shard, data in shards.items():
        draft.add(shard_rows(folder, tmp_path, shard, data))
    return draft.publish(small_files(name), delete)


def shown(folder: Folder) -> dict[str, bytes]:
    """What a reader sees: path → content."""
    source = hub.open_source(folder.folder, retry_seconds=0)
    tree = folder.tree()
    return {path: source.read_file(path) for path in tree.files} if tree else {}
