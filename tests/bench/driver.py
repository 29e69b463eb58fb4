"""The driver's side of a run of 24 million samples in 10,000 shards, without the workers: time, memory, growth.

Rows of finished shards arrive as workers send them, pickled; the driver keeps them in a pull request on a local Hub in
another process, merges ledgers, and writes manifest, report, card and quarantine. A shard has 2,400 samples of 185
sources in 600 packs and 19 row groups, and one row in a hundred is quarantined. The shards' files all have one small
content, uploaded once: what files hold is no matter of the driver's.

The peer is a driver that holds one row a sample (id, shard, length) and sorts them by shard, which is what choosing
packs in the driver would begin with; it does nothing else, and no commit.
"""

import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from jobs.demo.start import DEMO
from jobs.local_hub import LocalHub
from jobs.output.finished_shard import ShardFile, to_ipc
from jobs.output.hub_repository import Repository
from jobs.output.interface import Run
from jobs.revision.build import Publication
from jobs.shards.ledger import ledger_of
from jobs.shards.plan import plan_shards
from jobs.sources.pinned import PinnedSource, SourceFile
from packing_udfs import config, contract
from packing_udfs.encode.processor import fetch
from packing_udfs.knapsack import Amounts
from packing_udfs.metrics import add, histograms, shard_sums
from packing_udfs.shard.outcomes import LEDGER_SCHEMA

ROOT = Path(__file__).parents[2]
REPO = "bench/driver"
NUM_SOURCES, SAMPLES, PACKS, ROW_GROUPS, QUARANTINED = 185, 2400, 600, 19, 24  # in a shard
SIZES = (1250, 10_000)


def run() -> Iterator[dict]:
    """Time, memory and growth, and the peer's."""
    figures = {num_shards: _child("driver", num_shards) for num_shards in SIZES}
    peer = _child("peer", SIZES[1])
    small, large = (figures[num_shards] for num_shards in SIZES)
    label = f"{SIZES[1]:,} shards, {SIZES[1] * SAMPLES:,} samples, {NUM_SOURCES} sources"
    peak = large["peak_mb"] - large["imports_mb"]
    yield {
        "metric": "driver_memory",
        "input": label,
        "ours": round(peak / (peer["peak_mb"] - peer["imports_mb"]), 3),
        "peer": {"a row a sample": round(peer["peak_mb"] - peer["imports_mb"])},
        "unit": f"ratio of peak MB beyond imports; ours {peak:.0f} MB, {peak / SIZES[1] * 1e3:.0f} kB a shard",
    }
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in large["seconds"].items())
    yield {
        "metric": "driver_seconds",
        "input": label,
        "ours": round(sum(large["seconds"].values()), 1),
        "peer": {"a row a sample, sorted": round(sum(peer["seconds"].values()), 1)},
        "unit": f"s of wall time: {parts}; {large['cpu']:.1f} s of processor time; {large['num_commits']} commits",
    }
    yield {
        "metric": "driver_growth_8x",
        "input": f"{SIZES[0]:,} and {SIZES[1]:,} shards",
        "ours": round(large["cpu"] / small["cpu"], 2),
        "peer": {"linear": SIZES[1] / SIZES[0]},
        "unit": "processor time / processor time",
    }


def _child(side: str, num_shards: int) -> dict:
    """One measurement in a process of its own, with the Hub in this one."""
    with tempfile.TemporaryDirectory(prefix="bench-driver-") as folder, LocalHub(folder) as hub:
        command = [sys.executable, "-W", "ignore", "-m", "tests.bench.driver", side, str(num_shards)]
        env = {**os.environ, **hub.environment()}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout.splitlines()[-1])


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _peer(num_shards: int) -> dict:
    imports, start = _peak_mb(), time.perf_counter()
    rng = np.random.default_rng(0)
    num_samples = num_shards * SAMPLES
    ids = rng.integers(0, 1 << 62, num_samples)
    columns = [ids, (ids % num_shards).astype(np.int32), (ids % 4096).astype(np.int32)]
    table = pa.table(columns, names=["sample_id", "shard", "length"]).sort_by("shard")
    assert len(table) == num_samples
    return {"imports_mb": imports, "peak_mb": _peak_mb(), "seconds": {"sort": time.perf_counter() - start}}


def _driver(num_shards: int) -> dict:
    settings = _config(num_shards)
    sources = [_source(settings, i, num_shards) for i in range(NUM_SOURCES)]
    repository = Repository(REPO, 60)
    head = repository.create(False)
    plan = plan_shards(settings, sources, head)
    plan = replace(plan, paths=plan.paths[:num_shards])  # ten thousand is no power of two
    messages = _messages(repository, plan.paths)
    imports, cpu, seconds = _peak_mb(), time.process_time(), {}
    processor = fetch(str(DEMO / "processor"))

    start = time.perf_counter()
    draft = repository.draft(head, Run(run="1" * 64, shards="2" * 64, num_shards=num_shards))
    rows, counts = [], {}
    for message in messages:
        arrived = pickle.loads(message)
        counts = add([counts, *(file.counts for file in arrived)])
        draft.add(arrived)
        rows += arrived
    seconds["shards kept"], start = time.perf_counter() - start, time.perf_counter()
    ledger = ledger_of(settings, sources, rows)
    seconds["ledger"], start = time.perf_counter() - start, time.perf_counter()
    publication = Publication(
        config=settings, sources=sources, processor=processor, plan=plan, head=head, appended={}, shards=rows,
        ledger=ledger, vision_unit="tiles",
    )  # fmt: skip
    result = publication.publish(draft)
    seconds["published"] = time.perf_counter() - start
    assert result["splits"]["train"]["totals"]["num_samples"] == num_shards * SAMPLES
    return {
        "imports_mb": imports,
        "peak_mb": _peak_mb(),
        "cpu": time.process_time() - cpu,
        "seconds": seconds,
        "num_commits": len(repository.history("refs/pr/1")),
    }


def _config(num_shards: int) -> config.Config:
    power = 1 << (num_shards - 1).bit_length()
    sources = [{"repo": "bench/source", "config": f"subset_{i:03d}", "name": f"subset_{i:03d}"}
               for i in range(NUM_SOURCES)]  # fmt: skip
    return config.parse({
        "sources": sources, "processor": {"path": str(DEMO / "processor")}, "output": {"repo": REPO},
        "shards": {"num_shards": power},
    })  # fmt: skip


def _source(settings: config.Config, i: int, num_shards: int) -> PinnedSource:
    from jobs.adapters.columns import Field, Turns
    from jobs.adapters.finevision import FineVision

    adapter = FineVision((), Turns(Field(("texts",), None), ("user", "assistant"), (None, None), False), ())
    num_rows = num_shards * _rows_of(i)
    return PinnedSource(settings.sources[i], "0" * 40, (SourceFile("x", num_rows * 190_000, num_rows),), adapter)


def _rows_of(i: int) -> int:
    """Rows of source `i` in a shard: packed ones, and quarantined ones of the first sources."""
    return SAMPLES // NUM_SOURCES + (i < SAMPLES % NUM_SOURCES) + (i < QUARANTINED)


def _messages(repository: Repository, paths: tuple[str, ...]) -> Iterator[bytes]:
    """What workers send: each shard's files, pickled."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "shard.parquet")
        file.write_bytes(b"PAR1" * 100)
        operation = repository.upload("data/any.parquet", file)
    rng = np.random.default_rng(0)
    pack, lengths = rng.integers(1, 57, PACKS), rng.integers(300, 1700, SAMPLES)
    members = np.array_split(np.arange(SAMPLES), PACKS)
    amounts = Amounts(num_tokens=lengths, vision_cost=lengths // 80, num_images=np.ones(SAMPLES, np.int64))
    sums = shard_sums(amounts, PACKS, PACKS - 2)
    sums["histograms"] = histograms(amounts, members, 4096)
    ledger = to_ipc(pa.Table.from_pylist(_ledger(), schema=LEDGER_SCHEMA))
    quarantine = to_ipc(pa.Table.from_pylist(_quarantine(), schema=contract.QUARANTINE_SCHEMA))
    for shard, path in enumerate(paths):
        operation.path_in_repo = path
        file = ShardFile(
            shard=shard,
            path=path,
            num_bytes=400,
            num_bytes_read=SAMPLES * 190_000,
            operation=operation,
            row_groups=to_ipc(_row_groups(path, np.roll(pack, shard), lengths)),
            ledger=ledger,
            quarantine=quarantine,
            sums=json.dumps(sums),
        )
        yield pickle.dumps([file])


def _ledger() -> list[dict]:
    zero = dict.fromkeys(LEDGER_SCHEMA.names[4:], 0)
    packed = [
        {"source": f"subset_{i:03d}", "outcome": "packed", "reason": "", "num_rows": _rows_of(i) - (i < QUARANTINED)}
        for i in range(NUM_SOURCES)
    ]
    bad = [
        {"source": f"subset_{i:03d}", "outcome": "quarantined", "reason": "too_long", "num_rows": 1}
        for i in range(QUARANTINED)
    ]
    return [row | zero for row in packed + bad]


def _quarantine() -> list[dict]:
    return [
        {"reason": "too_long", "detail": f"{5000 + i} tokens, at most 4096", "source": f"subset_{i:03d}",
         "file": f"subset_{i:03d}/train-00000-of-00100.parquet", "row": 1000 + i, "copy": 0, "sample_id": i << 40,
         "num_tokens": 5000 + i, "num_images": 1}
        for i in range(QUARANTINED)
    ]  # fmt: skip


def _row_groups(path: str, costs: np.ndarray, lengths: np.ndarray) -> pa.Table:
    parts, samples = np.array_split(costs, ROW_GROUPS), np.array_split(lengths, ROW_GROUPS)
    return pa.Table.from_pylist(
        [
            {"file": path, "file_bytes": 400, "footer_offset": 300, "footer_bytes": 92, "row_group": i,
             "offset": 4 + 10 * i, "bytes": 10, "num_rows": len(part), "num_samples": len(samples[i]),
             "num_tokens": int(samples[i].sum()), "num_label_tokens": 900 * len(part), "num_images": 4 * len(part),
             "vision_cost": part.tolist(), "attention_cost": (part * 70_000).tolist()}
            for i, part in enumerate(parts)
        ],
        schema=contract.MANIFEST_SCHEMA,
    )  # fmt: skip


if __name__ == "__main__":
    print(json.dumps({"driver": _driver, "peer": _peer}[sys.argv[1]](int(sys.argv[2]))))
