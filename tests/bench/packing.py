"""Packing: packs against lower bounds and peers, evenness of image work, speed of choosing and assembling packs.

Inputs: `finevision` (tests/bench/finevision.py), `demo`, and `path`, files named by BENCH_DATA. Budgets: 4,096
tokens, and 64 tiles where tokens are to bind; where both are to bind, 40 tiles (9,000 patches): the sums of
FineVision's tokens and of its tiles then need about the same number of packs.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from packing_udfs import contract, knapsack
from packing_udfs.encode.encoder import EncodedSample
from packing_udfs.knapsack import Budgets
from packing_udfs.order import manifest_order
from packing_udfs.published import straggler
from packing_udfs.shard import row_groups
from packing_udfs.shard.assemble import Unit, assemble
from tests.bench import column_generation, finevision, finevision_files, peers
from tests.bench.finevision import Samples

SEQ_LEN = 4096
TOKENS_BIND = Budgets(num_tokens=SEQ_LEN, vision_cost=64)
BOTH_BIND = {
    "tiles": Budgets(num_tokens=SEQ_LEN, vision_cost=40),
    "patches": Budgets(num_tokens=SEQ_LEN, vision_cost=9000),
}
SHARD = 4_000


def run() -> Iterator[dict]:
    """All figures of packing, one dict each."""
    samples = finevision.draw(50_000)
    yield from _over_bounds("finevision", samples)
    yield from _over_both("finevision", samples)
    yield from _against_peers("finevision", samples)
    for name, pattern in finevision_files.inputs().items():
        found, num_bad = finevision_files.read(pattern)
        if len(found):
            label = f"{name}: {len(found)} samples, {num_bad} rows set aside"
            yield from _over_bounds(label, found)
            yield from _against_peers(label, found)
        else:
            yield {"metric": "over_bound_tokens", "input": name, "skipped": f"no samples in {pattern}"}
    yield from _stragglers("finevision, 500,000 samples", finevision.draw(500_000))
    yield from _speed()
    yield _assemble_ms("finevision", samples)


def _fitting(samples: Samples, budgets: Budgets) -> Samples:
    return samples.take(np.flatnonzero(~knapsack.too_large(samples.amounts, budgets)))


def _shards(samples: Samples, size: int = SHARD) -> list[Samples]:
    return [samples.take(np.arange(start, min(start + size, len(samples)))) for start in range(0, len(samples), size)]


def _packs(shards: list[Samples], budgets: Budgets, algorithm: str = "balanced") -> list[list[np.ndarray]]:
    pack = knapsack.ALGORITHMS[algorithm]
    return [pack(shard.amounts, budgets) for shard in shards]


def _num(packed: list[list]) -> int:
    return sum(len(bins) for bins in packed)


def _violations(shards: list[Samples], packed: list[list], budgets: Budgets) -> int:
    """Packs over a budget."""
    count = 0
    for shard, bins in zip(shards, packed, strict=True):
        for members in bins:
            tokens, vision = shard.lengths[members].sum(), shard.vision_costs[members].sum()
            count += tokens > budgets["num_tokens"] or vision > budgets.get("vision_cost", np.inf)
    return int(count)


def _over_bounds(label: str, samples: Samples) -> Iterator[dict]:
    """over_bound_tokens and violations."""
    shards = _shards(_fitting(samples, TOKENS_BIND))
    least = sum(knapsack.bound(shard.amounts, TOKENS_BIND) for shard in shards)
    packed = {name: _packs(shards, TOKENS_BIND, name) for name in knapsack.ALGORITHMS}
    over = {name: round(_num(bins) / least - 1, 5) for name, bins in packed.items()}
    yield {
        "metric": "over_bound_tokens",
        "input": label,
        "ours": over.pop("balanced"),
        "peer": over,
        "unit": f"packs / bound − 1, bound {least}",
    }
    alone = [peers.trl(shard.lengths, SEQ_LEN) for shard in shards]
    yield {
        "metric": "violations",
        "input": label,
        "ours": sum(_violations(shards, bins, TOKENS_BIND) for bins in packed.values()),
        "peer": {"trl_bfd": _violations(shards, alone, TOKENS_BIND)},
        "unit": "packs over a budget, 64 tiles",
    }


def _over_both(label: str, samples: Samples, num_shards: int = 2) -> Iterator[dict]:
    """over_bound_both, in tiles against the column-generation bound, in patches against the simple one.

    With thousands of distinct (tokens, patches) column generation takes too long to close in on the optimum.
    """
    for unit, budgets in BOTH_BIND.items():
        drawn = samples if unit == "tiles" else finevision.draw(len(samples), unit=unit)
        shards = _shards(_fitting(drawn, budgets))[:num_shards]
        names = ("balanced", "best_fit_decreasing", "first_fit_decreasing")
        packed = {name: _packs(shards, budgets, name) for name in names}
        least = 0
        for shard, bins in zip(shards, packed["balanced"], strict=True):
            if unit == "tiles":
                least += column_generation.lower_bound(shard.amounts, budgets, packs=bins)
            else:
                least += knapsack.bound(shard.amounts, budgets)
        over = {name: round(_num(bins) / least - 1, 5) for name, bins in packed.items()}
        kind = "column-generation bound" if unit == "tiles" else "largest of L1 and L2"
        yield {
            "metric": "over_bound_both",
            "input": f"{label}, {unit}",
            "ours": over.pop("balanced"),
            "peer": over,
            "unit": f"packs / {kind} − 1, bound {least}",
        }


def _against_peers(label: str, samples: Samples) -> Iterator[dict]:
    """packs_vs_nanovlm_* and packs_vs_bfd: packs with the one budget that the peer knows."""
    budgets = Budgets(num_tokens=SEQ_LEN, num_images=18)
    samples = _fitting(samples, Budgets(num_tokens=SEQ_LEN - 1, num_images=4))  # what nanoVLM's training keeps
    ours = _num(_packs(_shards(samples), budgets))
    least = knapsack.bound(samples.amounts, budgets)
    for buffer in (8, 1024):
        theirs = len(peers.nanovlm(samples.lengths, samples.num_images, SEQ_LEN, buffer))
        yield _ratio(f"packs_vs_nanovlm_{buffer}", label, ours, {"nanovlm": theirs}) | {"bound": least}
    shards = _shards(samples)
    ours = _num(_packs(shards, Budgets(num_tokens=SEQ_LEN)))
    theirs = {
        "trl_bfd": _num([peers.trl(shard.lengths, SEQ_LEN) for shard in shards]),
        "binpacking": _num([peers.binpacking_volume(shard.lengths, SEQ_LEN) for shard in shards]),
    }
    yield _ratio("packs_vs_bfd", label, ours, theirs)


def _ratio(metric: str, label: str, ours: int, theirs: dict[str, int]) -> dict:
    ratio = round(ours / min(theirs.values()), 4)
    return {
        "metric": metric,
        "input": label,
        "ours": ratio,
        "peer": theirs,
        "unit": f"packs / peer's packs, ours {ours}",
    }


def _stragglers(label: str, samples: Samples) -> Iterator[dict]:
    """straggler_*, step_cv and source_mix of shards as the job writes them."""
    samples = _fitting(samples, TOKENS_BIND)
    shards = _shards(samples)
    packed = _packs(shards, TOKENS_BIND)
    manifest, mixes = _written(shards, packed)
    theirs = peers.nanovlm(samples.lengths, samples.num_images, SEQ_LEN, 8)
    theirs = np.array([samples.vision_costs[members].sum() for members in theirs])
    theirs = theirs[np.random.default_rng(0).permutation(len(theirs))]
    for world in (8, 64, 512):
        yield {
            "metric": f"straggler_{world}",
            "input": label,
            "ours": round(straggler.straggler(manifest, world), 4),
            "peer": {
                "random order": round(straggler.straggler(manifest, world, balance=False), 4),
                "nanovlm": round(_straggler(theirs, world), 4),
            },
            "unit": "mean over steps of max over ranks / mean",
        }
    for lanes in (8, 64, 512):
        yield {
            "metric": "step_cv",
            "input": f"{label}, {lanes} packs a step",
            "ours": round(straggler.step_cv(manifest, lanes), 4),
            "peer": {"random order": round(straggler.step_cv(manifest, lanes, balance=False), 4)},
            "unit": "standard deviation / mean of step means",
        }
    yield {
        "metric": "source_mix",
        "input": f"{label}, 8 packs a step",
        "ours": round(_source_mix(manifest, mixes, balanced=True), 4),
        "peer": {"random order": round(_source_mix(manifest, mixes, balanced=False), 4)},
        "unit": "largest deviation of a source's share of samples, 100 steps",
    }


def _straggler(costs: np.ndarray, world: int) -> float:
    steps = costs[: len(costs) // world * world].reshape(-1, world)
    means = steps.mean(axis=1)
    return float(np.where(means > 0, steps.max(axis=1) / np.maximum(means, 1e-9), 1).mean())


def _written(shards: list[Samples], packed: list[list]) -> tuple[pa.Table, np.ndarray]:
    """(the manifest that the job would write, samples of each source in each pack in stored order)."""
    rows, mixes = [], []
    num_sources = 1 + max(int(shard.sources.max()) for shard in shards)
    for number, (shard, bins) in enumerate(zip(shards, packed, strict=True)):
        costs = np.array([shard.vision_costs[members].sum() for members in bins])
        for index, group in enumerate(row_groups.row_groups(costs, 32, 0)):
            rows.append({"file": f"data/{number:05d}.parquet", "row_group": index,
                         "num_rows": len(group), "vision_cost": costs[group].tolist()})  # fmt: skip
            mixes += [np.bincount(shard.sources[bins[pack]], minlength=num_sources) for pack in group]
    return pa.Table.from_pylist(rows, schema=contract.MANIFEST_SCHEMA), np.array(mixes, dtype=np.int32)


def _source_mix(manifest: pa.Table, mixes: np.ndarray, *, balanced: bool) -> float:
    order = manifest_order(manifest, global_batch_size=8, seed=0, epoch=0, balance=balanced)
    num_rows = manifest["num_rows"].to_numpy().astype(np.int64)
    starts = np.cumsum(num_rows) - num_rows
    packs = np.concatenate([starts[groups] + rows for groups, rows, _ in order.blocks()])
    windows = packs[: len(packs) // 100 * 100].reshape(-1, 100 * 8)
    counts = np.stack([mixes[window].sum(axis=0) for window in windows])
    overall = mixes.sum(axis=0) / mixes.sum()
    return float(np.abs(counts / counts.sum(axis=1, keepdims=True) - overall).max())


def _speed() -> Iterator[dict]:
    """samples_per_s and growth_100x, in processor time of one core, the best of several runs."""
    for name, budgets in (("tokens bind", TOKENS_BIND), ("both bind", BOTH_BIND["tiles"])):
        shard = _fitting(finevision.draw(10_000), budgets)
        rates = {
            algorithm: round(len(shard) / _seconds(shard, budgets, algorithm)) for algorithm in knapsack.ALGORITHMS
        }
        yield {
            "metric": "samples_per_s",
            "input": f"finevision, 10,000 samples, two budgets, {name}",
            "ours": rates.pop("balanced"),
            "peer": rates,
            "unit": "samples / s of one core",
        }
    small, large = (_fitting(finevision.draw(size), TOKENS_BIND) for size in (1_000, 100_000))
    yield {
        "metric": "growth_100x",
        "input": "finevision, shards of 1,000 and 100,000 samples",
        "ours": round(_seconds(large, TOKENS_BIND) / _seconds(small, TOKENS_BIND), 1),
        "peer": {},
        "unit": "time / time",
    }


def _assemble_ms(label: str, samples: Samples, num_packs: int = 32) -> dict:
    """assemble_ms: one row group from encoded samples. Images have no bytes, whose one copy is the memory's speed."""
    shard = _shards(_fitting(samples, TOKENS_BIND))[0]
    bins = knapsack.balanced(shard.amounts, TOKENS_BIND)[:num_packs]
    packs = [[_unit(shard, index) for index in members] for members in bins]
    tensors = [[peers.nanovlm_sample(unit.encoded.input_ids, unit.encoded.labels) for unit in pack] for pack in packs]
    assert assemble(packs)["num_tokens"].to_pylist() == [len(peers.nanovlm_pack(pack)[0]) for pack in tensors]

    def theirs() -> None:
        for pack in tensors:
            peers.nanovlm_pack(pack)

    return {
        "metric": "assemble_ms",
        "input": f"{label}, row group of {num_packs} packs, {SEQ_LEN} tokens a pack",
        "ours": round(_best(lambda: assemble(packs), 20) / num_packs * 1e3, 4),
        "peer": {"nanovlm": round(_best(theirs, 3) / num_packs * 1e3, 2)},
        "unit": "ms of one core / pack, image bytes apart",
    }


def _unit(shard: Samples, index: int) -> Unit:
    """A sample of this length and these images, as the encoder would hand it over."""
    length, num_images = int(shard.lengths[index]), int(shard.num_images[index])
    ids = np.arange(length, dtype=np.int32)
    encoded = EncodedSample(
        input_ids=ids,
        labels=np.where(ids % 2, ids, np.int32(-100)),
        image_num_tokens=np.full(num_images, 64, dtype=np.int32),
        vision_cost=int(shard.vision_costs[index]),
    )
    images = [{"bytes": b"", "path": None}] * num_images
    return Unit(int(index), str(shard.sources[index]), images, [(480, 640)] * num_images, encoded)


def _seconds(shard: Samples, budgets: Budgets, algorithm: str = "balanced") -> float:
    return _best(lambda: _packs([shard], budgets, algorithm), 5 if len(shard) < 50_000 else 2)


def _best(work: Callable[[], object], rounds: int) -> float:
    """Least processor seconds of several rounds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)
