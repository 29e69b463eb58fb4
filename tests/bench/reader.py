"""The reader against what else reads packs: rates as ratios, requests as counts, memory as a slope.

Data as in `tests.bench.reader_files`, 205 MB. The rate of each is its best of some rounds, rounds of the two sides in
turn, because the machine may have other work. What each side yields is written where it is defined
(`tests.bench.reader_peers`): ours are whole batches, ready to train on; peers' are mostly less. Checksums are verified
where the input says so, and in what is measured without a peer.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packing_udfs.reader import PackedDataset
from tests.bench import reader_files, reader_in_loop

ROOT = Path(__file__).parents[2]
ROUNDS = 3
ROUNDS_OF_ONE_READER = 4  # where both sides are the same reader, and a busy moment is more than what tells them apart


def run(part: str = "") -> Iterator[dict]:
    """All figures of the reader, one dict each, or those of a part: local, mosaicml, hub, requests, memory, in_loop."""
    parts = {part} if part else {"local", "mosaicml", "hub", "requests", "memory", "in_loop"}
    with tempfile.TemporaryDirectory(prefix="bench-reader-") as folder:
        root = Path(folder)
        local = root / "local"
        num_packs = reader_files.write(local, 2, 8)
        long = root / "long"  # so that what happens once is little, and cycles follow one another
        reader_files.repeat(local, long, 6)
        if "local" in parts:
            yield from _local(long, f"{6 * num_packs} packs of 3,900 tokens and 400 kB, 96 row groups")
        if "mosaicml" in parts:
            yield _mosaicml(root, local, f"{num_packs} packs as above, 16 row groups")
        if parts & {"hub", "requests"}:
            longer = root / "longer"  # what the first requests take is little beside an epoch
            reader_files.repeat(local, longer, 18)
            with reader_files.serve(root / "hub", {"bench/packed": long, "bench/longer": longer}) as hub:
                if "hub" in parts:
                    yield from _vs_datasets(root, hub, f"{18 * num_packs} packs as above, 36 files")
                    yield _vs_local(root, longer, hub, f"{18 * num_packs} packs as above, 36 files")
                if "requests" in parts:
                    yield from _requests(root, long, hub)
        if "memory" in parts:
            yield _memory(root, local)
    if "in_loop" in parts:
        yield from reader_in_loop.run()


def _peer(name: str, environment: dict | None = None, **options) -> dict:
    """`tests.bench.reader_peers` in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.bench.reader_peers", name, json.dumps(options)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **(environment or {})}, capture_output=True, text=True)
    if done.returncode and not (name == "datasets" and done.stdout):  # which now and then aborts when all is done
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def _best(
    ours: tuple, peers: dict[str, tuple], keys: tuple[str, ...] = ("rows_per_s",), rounds: int = ROUNDS
) -> Iterator[dict]:
    """`ours` / the best peer, for each key from the same runs; each is (name, environment, options)."""
    calls = {"ours": ours, **peers}
    rates = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (peer, environment, options) in calls.items():
            rates[name].append(_peer(peer, environment, **options))
    for key in keys:
        best = {name: max(rate[key] for rate in of_name) for name, of_name in rates.items()}
        yield {
            "ours": round(best["ours"] / max(best[name] for name in peers), 3),
            "peer": {name: round(best[name], 1) for name in peers},
            "unit": f"{key.replace('_per_', '/')} ratio to the best peer; ours {best['ours']:.1f}",
        }


def _local(local: Path, label: str) -> Iterator[dict]:
    for verify, who in ((False, "nobody verifies checksums, as pyarrow does not"), (True, "both verify checksums")):
        options = {"path": str(local), "verify": verify, "rounds": 3}  # the first pays for memory that is not there yet
        ours, peers = ("packed", None, options), {"pyarrow": ("read_row_group", None, options)}
        for ratio in _best(ours, peers, ("rows_per_s", "rows_per_cpu_s")):
            yield {"metric": "vs_read_row_group", "input": f"{label}; {who}; the best of 3 epochs", **ratio}


def _mosaicml(root: Path, local: Path, label: str) -> dict:
    try:
        _peer("write_mds", path=str(local), out=str(root / "mds"))
    except RuntimeError as error:
        why = f"needs tests/bench/peers.txt in a folder of its own, see the Makefile: {error}"
        return {"metric": "vs_mosaicml", "input": label, "skipped": why}
    peers = {"mosaicml-streaming": ("mosaicml", None, {"path": str(root / "mds"), "rounds": 3})}
    return {
        "metric": "vs_mosaicml",
        "input": label,
        **next(_best(("packed", None, {"path": str(local), "rounds": 3}), peers)),
    }


def _vs_datasets(root: Path, hub: reader_files.Hub, label: str) -> Iterator[dict]:
    environment = {**hub.environment, "HF_HOME": str(root / "home")}
    ours = ("packed", environment, {"path": "bench/longer", "verify": False})
    peers = {
        f"datasets, {name}": ("datasets", environment, {"path": "bench/longer", "ahead": ahead})
        for name, ahead in (("as it is", False), ("fetching ahead", True))
    }
    for milliseconds in (0, 50):
        hub.delay(milliseconds / 1000)
        unverified = f"{label}; nobody verifies checksums"
        for ratio in _best(ours, peers, ("rows_per_s", "rows_per_cpu_s")):
            yield {"metric": f"vs_datasets_{milliseconds}ms", "input": unverified, **ratio}


def _vs_local(root: Path, local: Path, hub: reader_files.Hub, label: str) -> dict:
    hub.delay(0.005)
    environment = {**hub.environment, "HF_HOME": str(root / "home")}
    ours = ("packed", environment, {"path": "bench/longer", "decode": "pil"})
    peers = {"local disk": ("packed", None, {"path": str(local), "decode": "pil"})}
    ratio = next(_best(ours, peers, rounds=ROUNDS_OF_ONE_READER))
    return {"metric": "hub_vs_local", "input": f"{label}, images decoded, 5 ms a request", **ratio}


def _requests(root: Path, local: Path, hub: reader_files.Hub) -> Iterator[dict]:
    count = {"peer": {}, "unit": "requests"}
    startup = {}
    for num_workers in (4, 0):
        home = root / f"node{num_workers}"
        home.mkdir()
        hub.delay(0)
        options = {"repo": "bench/packed", "revision": None, "world_size": 8, "num_workers": num_workers}
        environment = {**os.environ, **hub.environment, "HF_HOME": str(home), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-W", "ignore", str(ROOT / "tests/reader/ranks.py")]
        argument = json.dumps({**options, "store": str(home / "store")})
        subprocess.run([*command, argument], env=environment, check=True, capture_output=True)
        startup[num_workers] = sum("/data/" not in path for path, _, _ in hub.requests())
    label = "8 ranks of 4 workers on one node, a branch, nothing cached"
    yield {"metric": "startup_requests_node", "input": label, "ours": startup[4], **count}
    yield {"metric": "startup_requests_worker", "input": label, "ours": (startup[4] - startup[0]) / 32, **count}

    environment = {**hub.environment, "HF_HOME": str(root / "home")}
    row_groups = PackedDataset(str(local), global_batch_size=8).manifest.row_groups
    stored = sum(row_groups["bytes"].to_pylist())
    spans = {(row["offset"], row["offset"] + row["bytes"] - 1) for row in row_groups.to_pylist()}
    hub.delay(0)
    hub.lead_on()
    _peer("packed", environment, path="bench/packed")
    asked = [request for request in hub.requests() if request[0].startswith("/cdn/")]
    resolves = sum("/data/" in path for path, _, _ in hub.requests())
    label = f"{len(row_groups)} row groups in 12 files, storage behind redirects, 8 lanes in one process"
    per_group = round(len(asked) / len(row_groups), 3)
    yield {"metric": "gets_per_row_group", "input": label, "ours": per_group, **count}
    ratio = round(sum(num_bytes for _, _, num_bytes in asked) / stored, 4)
    yield {
        "metric": "bytes_ratio",
        "input": label,
        "ours": ratio,
        "peer": {},
        "unit": "bytes sent / bytes of row groups",
    }
    yield {
        "metric": "resolves_per_file",
        "input": label,
        "ours": round(resolves / 12, 2),
        **count,
        "unit": "requests a file, by up to 8 lanes",
    }

    hub.delay(0)
    _peer("resume", environment, path="bench/packed")
    ranges = [tuple(map(int, wanted[6:].split("-"))) for path, wanted, _ in hub.requests() if path.startswith("/cdn/")]
    yield {
        "metric": "resume_groups",
        "input": "one rank of 8 lanes and a prefetch of 12, at 99 % of an epoch",
        "ours": sum(span in spans for span in ranges),
        "peer": {"lanes + prefetch": 20},
        "unit": "row groups fetched for the first batch and ahead",
    }


def _memory(root: Path, local: Path) -> dict:
    longest = root / "longest"
    reader_files.repeat(local, longest, 40)
    row_groups = PackedDataset(str(longest), global_batch_size=8).manifest.row_groups
    mean = sum(row_groups["bytes"].to_pylist()) / len(row_groups)
    found = _peer("memory", path=str(longest), row_group_bytes=mean)
    return {
        "metric": "rss_slope",
        "input": f"an epoch of {found['streamed_gb']:.1f} GB, images as bytes, RSS {found['rss_mb']:.0f} MB at its end",
        "ours": round(found["slope"], 3),
        "peer": {},
        "unit": "MB resident / GB streamed, after 200 row groups",
    }
