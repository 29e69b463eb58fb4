"""What the job's bench measures, each in a process of its own that prints one line of JSON.

    python -m tests.bench.etl_runs job '{"source": "bench/source", …}'

- `job`: `jobs.pack.run` in a session that has packed a small source before.
- `floor`: the same rows from the same Hub into as many files, by two plain processes that each read half of the
  source's files with pyarrow and call the functions of the UDF: encode, pack, write, upload. No Spark, no shuffle; what
  it packs together are neighbours. It is what the machine must do at least for this output.
- `datasets_map`: what people write today: `datasets.map` in two processes with the same encoder, each batch of 1,000
  rows filled greedily in order, then `push_to_hub`.

CPU-seconds are user and system time of a process with all its descendants, living and dead, while it works; what is
loaded before (JVM, encoders) is left out of each.
"""

import functools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from huggingface_hub import HfApi, HfFileSystem

from packing_udfs import config
from packing_udfs.encode.encoder import EncodedSample, Encoder
from packing_udfs.encode.images import read_size
from packing_udfs.encode.processor import fetch
from packing_udfs.parquet import write
from packing_udfs.shard.pack_shard import PackSettings, pack_shard
from tests.bench.cpu import cpu_seconds

ROOT = Path(__file__).parents[2]
PROCESSOR = ROOT / "jobs" / "demo" / "processor"
SEQ_LEN = 4096
SETTINGS = PackSettings(seq_len=SEQ_LEN)


def job(source: str, out: str, num_shards: int, warm: str, cores: int = 2, spark: dict | None = None) -> dict:
    """Pack `source` into `out`; `warm` is a small source for what is done first. `spark`: further properties."""
    from jobs import pack
    from jobs.shards.session import LOCAL_CONF, get_session, read_properties

    properties = read_properties(LOCAL_CONF) | {"spark.master": f"local[{cores},4]"} | (spark or {})
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.writelines(f"{name} {value}\n" for name, value in properties.items())
        file.flush()
        session = get_session(file.name)

    def parsed(repo: str, to: str, num_shards: int) -> config.Config:
        tree = {"sources": [{"repo": repo, "name": "source"}], "processor": {"path": str(PROCESSOR)}}
        shards = {"num_shards": num_shards, "shard_bytes": config.GIB}
        return config.parse(tree | {"shards": shards, "pack": {"seq_len": SEQ_LEN}, "output": {"repo": to}})

    pack.run(parsed(warm, f"{out}-warm", 2), session)
    start, cpu = time.perf_counter(), cpu_seconds()
    report = pack.run(parsed(source, out, num_shards), session)
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - start
    exchanges = _exchanges(parsed(source, out, num_shards), session)
    session.stop()
    totals = report["splits"]["train"]["totals"]
    return {"cpu": cpu, "wall": wall, "exchanges": exchanges, **totals}


def _exchanges(parsed: config.Config, session) -> int:
    """Exchanges in the physical plan of the job."""
    from jobs.output import hub_repository
    from jobs.shards import settings
    from jobs.shards.plan import plan_shards
    from jobs.shards.udf import ShardWork, pack_shards
    from jobs.sources.pin import pin, read

    sources = [pin(source, "sources.0") for source in parsed.sources]
    work = ShardWork(
        settings.settings(parsed), fetch(str(PROCESSOR)), plan_shards(parsed, sources, hub_repository.Head(None)), print
    )
    shards = pack_shards(read(session, sources[0]), work, print)
    return shards._jdf.queryExecution().executedPlan().toString().count("Exchange")


def floor(source: str, out: str, num_shards: int) -> dict:
    """The same work in two plain processes."""
    HfApi().create_repo(out, repo_type="dataset", exist_ok=True)
    files = sorted(HfFileSystem().glob(f"datasets/{source}/data/*.parquet"))
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    with context.Pool(2, _open, (start,)) as pool:
        parts = [(files[i::2], out, i, num_shards // 2) for i in range(2)]
        pending = pool.map_async(_half, parts, chunksize=1)
        start.wait()
        began = time.perf_counter()
        found = pending.get()
        operations = [operation for result in found for operation in result["operations"]]
        cpu = cpu_seconds()
        HfApi().create_commit(out, operations, commit_message="floor", repo_type="dataset")
        cpu = cpu_seconds() - cpu + sum(result["cpu"] for result in found)
        wall = time.perf_counter() - began
    return {"cpu": cpu, "wall": wall, **{name: sum(r[name] for r in found) for name in ("num_packs", "num_samples")}}


def _open(start) -> None:
    _half.start, _half.encoder = start, Encoder(fetch(str(PROCESSOR)).load())


def _half(part: tuple) -> dict:
    files, out, half, num_shards = part
    fs = HfFileSystem()
    num_rows = sum(_metadata(fs, file).num_rows for file in files)
    _half.start.wait()
    cpu, operations, sums, rows = cpu_seconds(), [], [], []

    def flush() -> None:
        packed = pack_shard(pd.DataFrame(rows), _half.encoder, SETTINGS)
        rows.clear()
        name = f"data/train/{half}-{len(operations):05d}.parquet"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "shard.parquet")
            write.write_shard(str(path), name, packed.row_groups())
            operations.append(_upload(out, name, path))
        sums.append(packed.sums)

    for file in files:
        with fs.open(file, cache_type="none") as opened:
            parquet = pq.ParquetFile(opened, pre_buffer=True)
            for group in range(parquet.num_row_groups):
                for row in parquet.read_row_group(group, columns=["images", "texts"], use_threads=False).to_pylist():
                    rows.append(_sample(row, file, len(rows)))
                    if len(rows) == -(-num_rows // num_shards):
                        flush()
    if rows:
        flush()
    cpu = cpu_seconds() - cpu
    return {
        "operations": operations,
        "cpu": cpu,
        "num_packs": sum(s["num_packs"] for s in sums),
        "num_samples": sum(s["num_samples"] for s in sums),
    }


def _metadata(fs: HfFileSystem, file: str):
    with fs.open(file, block_size=1 << 16) as opened:
        return pq.read_metadata(opened)


def _upload(out: str, name: str, path: Path):
    from jobs.output.hub_repository import Repository

    return Repository(out, 60).upload(name, path)


def _sample(row: dict, file: str, number: int) -> dict:
    """A row as a sample; its id is any 64 bits of its content."""
    return {
        "sample_id": hash(row["images"][0]["bytes"]),
        "source": "source",
        "file": file,
        "row": number,
        "copy": 0,
        "messages": _messages(row),
        "images": row["images"],
        "reason": None,
        "num_turns_dropped": 0,
    }


def _messages(row: dict) -> list[dict]:
    messages = []
    for turn in row["texts"]:
        images = [{"type": "image", "text": None}] * (0 if messages else len(row["images"]))
        messages.append({"role": "user", "content": [*images, {"type": "text", "text": turn["user"]}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": turn["assistant"]}]})
    return messages


def datasets_map(source: str, out: str, num_shards: int) -> dict:
    """`datasets.map` + greedy packing + `push_to_hub`."""
    import datasets

    _encoder()
    start, cpu = time.perf_counter(), cpu_seconds()
    rows = datasets.load_dataset(source, split="train").cast_column(
        "images", datasets.List(datasets.Image(decode=False))
    )
    packs = rows.map(_pack_greedily, batched=True, batch_size=1000, num_proc=2, remove_columns=rows.column_names)
    packs = packs.cast_column("images", datasets.List(datasets.Image()))
    packs.push_to_hub(out, num_shards=num_shards)
    return {"cpu": cpu_seconds() - cpu, "wall": time.perf_counter() - start, "num_packs": len(packs)}


@functools.lru_cache(maxsize=1)
def _encoder() -> Encoder:
    return Encoder(fetch(str(PROCESSOR)).load())


def _pack_greedily(batch: dict) -> dict:
    rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
    sizes = [[read_size(image["bytes"]) for image in row["images"]] for row in rows]
    encoded = _encoder().encode([_messages(row) for row in rows], sizes)
    packs: list[list[int]] = []
    length = SEQ_LEN
    for i, sample in enumerate(encoded):
        if isinstance(sample, EncodedSample) and len(sample.input_ids) <= SEQ_LEN:
            if length + len(sample.input_ids) > SEQ_LEN:
                packs.append([])
                length = 0
            packs[-1].append(i)
            length += len(sample.input_ids)
    return {
        "input_ids": [np.concatenate([encoded[i].input_ids for i in pack]) for pack in packs],
        "labels": [np.concatenate([encoded[i].labels for i in pack]) for pack in packs],
        "sample_lengths": [[len(encoded[i].input_ids) for i in pack] for pack in packs],
        "images": [[image for i in pack for image in rows[i]["images"]] for pack in packs],
    }


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
