"""The job against the physical floor: what Spark, the exchange and the JVM cost, in CPU-seconds and memory.

    make bench BENCH=etl            the sizes of SMALL, some minutes on two cores
    make bench BENCH=etl=full       the sizes of FULL: 20,000 rows, half an hour and 20 GB of disk

The source is `tests.bench.etl_source`'s, on the local Hub over Xet; what is compared is described in
`tests.bench.etl_runs`. The Hub runs in a process of its own, which no side pays for. A ratio is the smallest of ours
over the smallest of the peer, of rounds in turn, because the machine may have other work.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench import etl_source
from tests.bench.cpu import peak_worker_bytes

ROOT = Path(__file__).parents[2]
MB = 1 << 20


class Sizes(NamedTuple):
    """How much is measured."""

    rows_190kb: int
    rows_20kb: int
    growth: int  # rows of 20 KB, and eight times as many
    rss_shards: tuple[int, ...]  # MB of images in a shard
    rounds: int


SMALL = Sizes(2_560, 10_240, 2_560, (64, 256), 1)
FULL = Sizes(20_480, 20_480, 5_120, (64, 256, 1024), 2)
NUM_FILES = 8
SHARD_BYTES = 128 * MB  # of the runs that are compared: two of them fit in any machine's memory


def run(size: str = "small") -> Iterator[dict]:
    """All figures of the job, one dict each."""
    sizes = {"small": SMALL, "full": FULL}[size]
    with tempfile.TemporaryDirectory(prefix="bench-etl-") as folder, _hub(Path(folder)) as hub:
        hub.upload("bench/warm", 256, 20_000)
        yield from _compared(hub, "20kb", sizes.rows_20kb, 20_000, sizes.rounds)
        yield from _growth(hub, sizes.growth, sizes.rounds)
        yield from _compared(hub, "190kb", sizes.rows_190kb, 190_000, sizes.rounds)
        for megabytes in sizes.rss_shards:
            yield _worker_rss(hub, megabytes)


class _Hub:
    """A local Hub and what runs against it."""

    def __init__(self, root: Path, environment: dict, log: Path):
        self._root, self._log = root, log
        self.environment = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
        self._count = 0

    def upload(self, repo: str, num_rows: int, image_bytes: int) -> int:
        """Make a source of so many rows; returns its bytes."""
        folder = self._root / "upload"
        num_bytes = etl_source.write(folder, num_rows, image_bytes, NUM_FILES)
        code = (
            "import sys; from huggingface_hub import HfApi; a = HfApi(); r = sys.argv[1];"
            "a.create_repo(r, repo_type='dataset');"
            "a.upload_folder(repo_id=r, repo_type='dataset', folder_path=sys.argv[2])"
        )
        subprocess.run(
            [sys.executable, "-c", code, repo, str(folder)], env=self.environment, check=True, capture_output=True
        )
        shutil.rmtree(folder)
        return num_bytes

    def run(self, name: str, **options) -> dict:
        """`measure` with an output of its own."""
        self._count += 1
        return measure(self.environment, name, options | {"out": f"bench/out-{self._count}"})

    def bytes_read(self, repo: str, since: float) -> int:
        """Bytes of a repository's files that the Hub has sent since a time."""
        with self._log.open() as file:
            records = [json.loads(line) for line in file]
        return sum(r["bytes_out"] for r in records if r["time"] >= since and f"/{repo}/resolve/" in r["path"])


def measure(environment: dict[str, str], name: str, options: dict) -> dict:
    """A function of `tests.bench.etl_runs` in a process of its own; its result, the peak of its Python workers in bytes
    and when it started. Raises RuntimeError with the end of its messages."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.bench.etl_runs", name, json.dumps(options)]
    started, peak = time.time(), 0
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err)
        while process.poll() is None:
            peak = max(peak, peak_worker_bytes(process.pid))
            time.sleep(0.2)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise RuntimeError(f"{name}: {err.read().decode()[-3000:]}")
        return json.loads(out.read().splitlines()[-1]) | {"worker_bytes": peak, "started": started}


@contextmanager
def _hub(root: Path) -> Iterator[_Hub]:
    log = root / "requests.jsonl"
    command = [sys.executable, "-m", "jobs.local_hub", str(root / "hub"), "--port", "0", "--log", str(log)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            environment = {}
            for line in process.stdout:
                if line.startswith("export "):
                    name, _, value = line.removeprefix("export ").strip().partition("=")
                    environment[name] = value.strip("'")
                if "HF_UPDATE_DOWNLOAD_COUNTS" in environment:  # the last one
                    break
            yield _Hub(root, environment, log)
        finally:
            process.terminate()


def _least(runs: list[dict], key: str) -> float:
    return min(run[key] for run in runs)


def _compared(hub: _Hub, name: str, num_rows: int, image_bytes: int, rounds: int) -> Iterator[dict]:
    """The figures of one source: CPU and wall time beside the peers', one core beside two, reads and exchanges."""
    source = f"bench/source-{name}"
    num_bytes = hub.upload(source, num_rows, image_bytes)
    num_shards = _shards(num_rows * image_bytes, SHARD_BYTES)
    label = f"{num_rows:,} rows of {image_bytes // 1000} KB, {num_bytes / 1e6:.0f} MB, {num_shards} shards"
    with_warm = {"source": source, "num_shards": num_shards, "warm": "bench/warm"}
    ours, floor, alone, maps = [], [], [], []
    for _ in range(rounds):
        floor.append(hub.run("floor", source=source, num_shards=num_shards))
        ours.append(hub.run("job", **with_warm))
        alone.append(hub.run("job", **with_warm, cores=1))
        maps.append(hub.run("datasets_map", source=source, num_shards=num_shards))
    assert ours[0]["num_samples"] == floor[0]["num_samples"], (ours, floor)
    yield _ratio(f"cpu_vs_floor_{name}", label, "cpu", ours, {"two plain processes": floor}, "CPU-seconds")
    yield _ratio(f"wall_vs_floor_{name}", label, "wall", ours, {"two plain processes": floor}, "s")
    yield _ratio(f"wall_vs_datasets_map_{name}", label, "wall", ours, {"datasets.map": maps}, "s")
    yield _ratio(f"cpu_vs_datasets_map_{name}", label, "cpu", ours, {"datasets.map": maps}, "CPU-seconds")
    yield _ratio(f"cpu_local2_vs_local1_{name}", label, "cpu", ours, {"local[1]": alone}, "CPU-seconds")
    read = hub.bytes_read(source, ours[-1]["started"]) - hub.bytes_read(source, alone[-1]["started"])
    reads = {"metric": f"source_reads_{name}", "input": label, "ours": round(read / num_bytes, 4), "peer": {}}
    yield reads | {"unit": "bytes that the Hub sent / bytes of the source's files"}
    yield {
        "metric": f"exchanges_{name}",
        "input": label,
        "ours": ours[0]["exchanges"],
        "peer": {},
        "unit": "in the plan",
    }


def _shards(num_bytes: int, shard_bytes: int) -> int:
    return 1 << max(1, round(num_bytes / shard_bytes) - 1).bit_length()


def _ratio(metric: str, label: str, key: str, ours: list[dict], peers: dict[str, list[dict]], unit: str) -> dict:
    ((name, peer),) = peers.items()
    mine, theirs = _least(ours, key), _least(peer, key)
    values = {"ours": round(mine / theirs, 3), "peer": {name: round(theirs, 2)}}
    return {"metric": metric, "input": label, **values, "unit": f"ratio of {unit}; ours {mine:.2f}"}


def _growth(hub: _Hub, num_rows: int, rounds: int) -> Iterator[dict]:
    found = {}
    for num in (num_rows, 8 * num_rows):
        source = f"bench/growth-{num}"
        hub.upload(source, num, 20_000)
        options = {"source": source, "num_shards": _shards(num * 20_000, 64 * MB), "warm": "bench/warm"}
        found[num] = [hub.run("job", **options) for _ in range(rounds)]
    few, many = (_least(runs, "cpu") for runs in found.values())
    values = {"ours": round(many / few, 3), "peer": {f"{num_rows:,} rows": round(few, 2)}}
    label = f"{8 * num_rows:,} rows of 20 KB beside {num_rows:,}, shards of 64 MB"
    yield {"metric": "growth_8x", "input": label, **values, "unit": f"ratio of CPU-seconds; ours {many:.2f}"}


def _worker_rss(hub: _Hub, megabytes: int) -> dict:
    """Peak of a Python worker over 3.5 × the images of a shard + 400 MB, with two shards at work."""
    source, num_rows = f"bench/rss-{megabytes}", NUM_FILES * -(-2 * megabytes * MB // 190_000 // NUM_FILES)
    hub.upload(source, num_rows, 190_000)
    found = hub.run("job", source=source, num_shards=2, warm="bench/warm")
    shard_bytes = found["num_bytes"] / 2
    bound = 3.5 * shard_bytes + 400 * MB
    label = f"2 shards of {shard_bytes / MB:.0f} MB, images of 190 KB"
    values = {"ours": round(found["worker_bytes"] / bound, 3), "peer": {"3.5 × shard + 400 MB": round(bound / MB)}}
    return {"metric": f"worker_rss_{megabytes}mb", "input": label, **values, "unit": "ratio of MB; ours "
            f"{found['worker_bytes'] / MB:.0f}"}  # fmt: skip
