"""What a run would make, from the sources' metadata and a seeded sample of their rows; no Spark, no Java, no writing.

    python -m jobs.plan --config my_job.yaml --global-batch-size 256

What blocks of rows are made of (`jobs.blocks`) is scaled to all rows of their source, its limit and its weight. Packs
do not follow from such totals alone: the fewer samples a shard has, the worse it packs. So shards of the run's own
size are drawn from the samples and packed by the run's algorithm, and their packs over *demand* (the packs that the
scarcest budget asks for, if packs could be full) are carried over to the run:

    packs = demand of all samples × packs / demand, both summed over the drawn shards

and never more than there are samples. A mean of the shards' own ratios would let shards of one short sample, which
asks for a hundredth of a pack and takes a whole one, speak for all.

An interval holds 90 % of NUM_REPLICATES estimates from blocks drawn again with replacement (a bootstrap over blocks,
because neighbours are alike), each drawn towards the estimate by √(share of rows that were not read), and widened for
few blocks as Student's t is. Beside that stands what hashes decide: which rows a weight takes, which of them are for
validation, and what meets in a shard; of sources that were read as a whole nothing else is uncertain.

Duplicates are seen within the sample alone: a source full of them packs to less than is said here. Upload bytes are
before deduplication by Xet, of which a new dataset has little.

Cost: the drawn blocks' row groups over the network, at most MAX_BYTES of rows, and a millisecond a row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jobs.blocks import Block, draw_blocks
from jobs.drafts import num_commits
from jobs.outputs import Head
from jobs.pace import COMMITS_AN_HOUR
from jobs.pack import check_budgets, open_output, settings
from jobs.pages.run import PICTURES
from jobs.pinned import PinnedSource
from jobs.plan import plan_shards, splits_of
from jobs.sampling import share_out
from jobs.shards import ShardPlan
from jobs.sources import pin
from packing_udfs import knapsack, metrics
from packing_udfs.config import Config, ConfigError
from packing_udfs.encode import Encoder
from packing_udfs.order import hashes
from packing_udfs.pack import PackSettings
from packing_udfs.processor import fetch

MAX_BYTES = 1 << 30  # of the rows of a sample
LEAST_ROWS = 32  # of a source, however small its share
NUM_REPLICATES = 400
NUM_DRAWN_SHARDS = 8  # at least …
LEAST_DRAWN = 512  # … and so many samples in them
NUM_DEALT_SHARDS = 64  # of sources that were read as a whole
INTERVAL, Z95 = (5, 95), 1.645  # percentiles, and the normal distribution's
MAX_FILE_BYTES = 50_000_000_000  # of one file on the Hub
MAX_OPERATIONS = 100  # in a commit, that the Hub promises to take in time
VIEWER_BYTES = 300_000_000  # of a row group that the Hub's viewer reads
GROUP_BYTES, MAX_PACKS = 24_000_000, 128  # what a row group should have at least, unless those are more packs
FOOTER_BYTES, FOOTER_BYTES_A_GROUP = 5_300, 1_520  # of a file of packs
WORKER_BYTES, WORKER_SHARDS = 400_000_000, 3.5  # memory of a Python worker: so much, and its shard so often

ALWAYS = ("README.md", "report.json", "report.html", *PICTURES.values())  # a run's files beside its splits'

# Salts of the draws.
_BLOCKS, _BOOTSTRAP, _SHARDS, _RATIOS, _SIZES, _USED, _SPLIT = range(7)


@dataclass(frozen=True)
class Sample:
    """The blocks drawn of one source, and how many of its rows the run would use."""

    pinned: PinnedSource
    blocks: list[Block]

    @property
    def num_rows_read(self) -> int:
        return sum(block.num_rows for block in self.blocks)

    @property
    def num_rows_used(self) -> float:
        """Rows and copies by limit and weight, about."""
        share = self.pinned.num_sampled_bytes / self.pinned.num_bytes if self.pinned.num_bytes else 1.0
        return self.pinned.num_rows * share

    @property
    def spread(self) -> float:
        """Standard deviation of `num_rows_used`: what is more than whole copies of the source is taken by hash."""
        share = self.num_rows_used / self.pinned.num_rows % 1
        return math.sqrt(self.pinned.num_rows * share * (1 - share))

    @property
    def unread(self) -> float:
        """Share of rows that was not read."""
        return 1 - self.num_rows_read / self.pinned.num_rows


def forecast(config: Config, *, max_rows: int = 4096, global_batch_size: int = 32, num_executors: int = 1) -> dict:
    """What `pack.run(config)` would make, as plain values for JSON; the same for the same data, configuration and seed.

    An estimate is {"estimate", "low", "high"}. Raises ValueError for what is wrong with the configuration or its
    sources, for sources none of whose rows can be packed, and for what would break a limit of the Hub.
    """
    for name, value in (
        ("max_rows", max_rows), ("global_batch_size", global_batch_size), ("num_executors", num_executors)
    ):  # fmt: skip
        if value < 1:
            raise ConfigError(f"{name}: {value} is refused: must be at least 1")
    if config.output.max_operations_per_commit > MAX_OPERATIONS:
        raise ConfigError(
            f"output.max_operations_per_commit: {config.output.max_operations_per_commit} is more than the "
            f"{MAX_OPERATIONS} that the Hub takes in time"
        )
    processor = fetch(config.processor.path, config.processor.revision)
    check_budgets(config, processor)
    sources = [pin(source, f"sources.{i}", config.output.retry_seconds) for i, source in enumerate(config.sources)]
    head = open_output(config).read_head()
    plan = plan_shards(config, sources, head)
    encoder = Encoder(processor.load(), config.pack.train_on)
    _check_rows_used(sources)
    samples = draw(sources, max_rows, encoder, settings(config, sources), config.output.retry_seconds)
    if not any(len(block.lengths) for sample in samples for block in sample.blocks):
        raise ConfigError(f"sources: none of {sum(s.num_rows_read for s in samples)} rows read can be packed")
    return describe(config, samples, plan, head, global_batch_size, num_executors)


def _check_rows_used(sources: Sequence[PinnedSource]) -> None:
    """Raises ConfigError where limits and weights are expected to leave no row, of which the job would fail."""
    used, num_rows = sum(Sample(source, []).num_rows_used for source in sources), sum(s.num_rows for s in sources)
    if num_rows and round(used) < 1:
        raise ConfigError(
            f"sources: their limits and weights leave about {used:.2g} of {num_rows} rows: no sample could be packed; "
            "use larger ones"
        )


def draw(
    sources: Sequence[PinnedSource], max_rows: int, encoder: Encoder, how: PackSettings, retry_seconds: float
) -> list[Sample]:
    """Blocks of each source, rows shared out by the sources' sizes. Raises SourceError for what cannot be read."""
    shares = share_out(max_rows, [source.num_rows for source in sources])
    total = max(1, sum(shares))

    def sample(i: int, source: PinnedSource) -> Sample:
        num_rows = min(source.num_rows, max(LEAST_ROWS, shares[i]))
        max_bytes = MAX_BYTES * max(1, shares[i]) // total
        blocks = draw_blocks(
            *(source, num_rows, max_bytes, encoder, how, (how.seed, _BLOCKS, i)), f"sources.{i}", retry_seconds
        )
        return Sample(source, list(blocks))

    return [sample(i, source) for i, source in enumerate(sources) if source.num_rows]


_TOTALS = ("num_rows", "num_samples", "num_quarantined", "num_duplicates", "num_tokens", "num_label_tokens",
           "vision_cost", "num_images", "num_bytes", "num_bytes_written")  # fmt: skip


def _totals_of(block: Block) -> list[int]:
    return [
        block.num_rows, len(block.lengths), sum(block.quarantine.values()), block.num_duplicates,
        int(block.lengths.sum()), block.num_label_tokens, int(block.vision_costs.sum()), int(block.num_images.sum()),
        block.num_bytes, block.num_bytes_written,
    ]  # fmt: skip


def totals(samples: Sequence[Sample], seed: int) -> dict[str, np.ndarray]:
    """Sums over all rows that the run would use, float [1 + NUM_REPLICATES]: the estimate, then its replicates."""
    whole = np.zeros((1 + NUM_REPLICATES, len(_TOTALS)))
    for i, sample in enumerate(samples):
        values = np.asarray([_totals_of(block) for block in sample.blocks], np.float64)
        drawn = hashes(NUM_REPLICATES * len(values), seed, _BOOTSTRAP, i) % np.uint64(len(values))
        sums = np.vstack([values.sum(axis=0), values[drawn.astype(np.int64)].reshape(-1, *values.shape).sum(axis=1)])
        scaled = sums * (sample.num_rows_used / sums[:, :1])
        likely = scaled[0] + (scaled - scaled[0]) * math.sqrt(sample.unread) * _widened(len(values))
        whole += likely * (1 + _normal(sample.spread, seed, _USED, i) / max(1.0, sample.num_rows_used))[:, None]
    return dict(zip(_TOTALS, whole.T, strict=True))


def _widened(num_blocks: int) -> float:
    """How much wider than a bootstrap an interval from few blocks must be: √(n / (n − 1)), times Student's t over z.

    The second factor by its series, 1 + (z² + 1) / 4 (n − 1); 16 blocks give 1.10, 64 give 1.02.
    """
    freedom = max(1, num_blocks - 1)
    return math.sqrt((freedom + 1) / freedom) * (1 + (Z95**2 + 1) / (4 * freedom))


def demand(budgets: knapsack.Budgets, lengths, vision_costs, num_images):
    """Packs that the scarcest budget asks for; of sums, or of arrays of sums."""
    asked = [lengths / budgets.seq_len]
    if budgets.vision_cost is not None:
        asked.append(vision_costs / budgets.vision_cost)
    if budgets.num_images is not None:
        asked.append(num_images / budgets.num_images)
    return np.maximum.reduce(asked)


def packs_and_demand(samples: Sequence[Sample], how: PackSettings, num_shards: float, num_samples: float) -> np.ndarray:
    """float [shards, 2]: packs and demand of some shards as a run of `num_samples` samples in `num_shards` has them."""
    blocks = [block for sample in samples for block in sample.blocks]
    of_samples = [
        np.concatenate([getattr(block, name) for block in blocks]) for name in ("lengths", "vision_costs", "num_images")
    ]
    weights = np.concatenate([
        np.full(len(block.lengths), sample.num_rows_used / sample.num_rows_read)
        for sample in samples for block in sample.blocks
    ])  # fmt: skip
    size = num_samples / num_shards
    found = []
    for members in _drawn_shards(weights, size, how.seed, [sample.unread for sample in samples]):
        lengths, costs, images = (values[members] for values in of_samples)
        options = {"attention_weight": how.attention_weight} if how.algorithm == "balanced" else {}
        bins = knapsack.ALGORITHMS[how.algorithm](
            lengths, how.budgets, vision_costs=costs, num_images=images, **options
        )
        found.append((len(bins), demand(how.budgets, lengths.sum(), costs.sum(), images.sum())))
    return np.asarray(found, np.float64)


def _drawn_shards(weights: np.ndarray, mean: float, seed: int, unread: list[float]) -> list[np.ndarray]:
    """Samples of some shards that have any, of a run with `mean` samples a shard.

    Dealt by hash, as the run does it, when there are no others than these, few of them several times; else drawn by
    weight.
    """
    num_drawn = max(NUM_DRAWN_SHARDS, math.ceil(LEAST_DRAWN / max(1.0, mean)))
    if not any(unread) and (weights == 1).all():
        num_shards, dealt = max(1, round(len(weights) / mean)), []
        for deal in range(max(1, NUM_DEALT_SHARDS // num_shards)):
            shard_of = hashes(len(weights), seed, _SHARDS, deal) % np.uint64(num_shards)
            order = np.argsort(shard_of, kind="stable")
            dealt += np.split(order, np.flatnonzero(np.diff(shard_of[order])) + 1)
        return dealt[: max(num_drawn, NUM_DEALT_SHARDS)]
    sizes = _sizes(mean, num_drawn, seed)
    ends = np.cumsum(weights)
    drawn = np.searchsorted(ends, _uniform(int(sizes.sum()), seed, _SHARDS) * ends[-1], side="right")
    return np.split(drawn.clip(max=len(ends) - 1), np.cumsum(sizes)[:-1])


def _sizes(mean: float, num: int, seed: int) -> np.ndarray:
    """Samples in each of `num` shards that have any, int64: Poisson's distribution without its 0.

    Dealing one sample a shard leaves a third of the shards empty, and 1.6 samples in each of the others.
    """
    k = np.arange(1, math.ceil(mean + 12 * math.sqrt(mean)) + 12)
    log_p = k * math.log(mean) - np.cumsum(np.log(k))
    cdf = np.cumsum(np.exp(log_p - log_p.max()))
    return 1 + np.searchsorted(cdf[:-1], _uniform(num, seed, _SIZES) * cdf[-1], side="right")


def _uniform(num: int, *key: int) -> np.ndarray:
    return hashes(num, *key).astype(np.float64) / 2.0**64


def _normal(deviation: float, *key: int) -> np.ndarray:
    """0 for the estimate, then a draw of a normal distribution for each replicate (a sum of twelve uniform ones)."""
    drawn = _uniform(12 * NUM_REPLICATES, *key).reshape(NUM_REPLICATES, 12).sum(axis=1) - 6
    return deviation * np.concatenate([[0.0], drawn])


def packs(
    samples: Sequence[Sample], config: Config, plan: ShardPlan, sums: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Packs for training and for validation, float [1 + NUM_REPLICATES] each."""
    how = settings(config, [sample.pinned for sample in samples])
    asked = demand(how.budgets, sums["num_tokens"], sums["vision_cost"], sums["num_images"])
    fraction, num_samples = plan.validation_fraction, float(sums["num_samples"][0])
    deviation = math.sqrt(fraction * (1 - fraction) / max(1.0, num_samples))
    of_validation = fraction + _normal(deviation, how.seed, _SPLIT)
    found = []
    for share, num_shards in ((1 - of_validation, plan.num_train), (of_validation, plan.num_validation)):
        most = sums["num_samples"] * share
        found.append(np.minimum(asked * share * _packs_per_demand(samples, how, num_shards, float(most[0])), most))
    return found[0], found[1]


def _packs_per_demand(samples: Sequence[Sample], how: PackSettings, num_shards: int, num_samples: float) -> np.ndarray:
    """float [1 + NUM_REPLICATES]; 0 without shards. Of a replicate in as many shards as make both errors: that the
    drawn ones are few, and that the run's own are."""
    if not num_shards:
        return np.zeros(1 + NUM_REPLICATES)
    found = packs_and_demand(samples, how, num_shards, num_samples)
    num = max(1, round(1 / (1 / len(found) + 1 / num_shards)))
    drawn = hashes(NUM_REPLICATES * num, how.seed, _RATIOS, num_shards) % np.uint64(len(found))
    again = found[drawn.astype(np.int64)].reshape(NUM_REPLICATES, num, 2).sum(axis=1)
    num_packs, of_shards = np.vstack([found.sum(axis=0), again]).T
    return num_packs / of_shards


def _interval(values: np.ndarray, *, digits: int | None = None) -> dict:
    """The estimate and the percentiles of its replicates; whole numbers, rounded outwards, unless `digits` is given."""
    low, high = np.percentile(values[1:], INTERVAL)
    estimate, low, high = float(values[0]), float(min(low, values[0])), float(max(high, values[0]))
    if digits is None:
        return {"estimate": round(estimate), "low": math.floor(low + 1e-6), "high": math.ceil(high - 1e-6)}
    return {"estimate": round(estimate, digits), "low": round(low, digits), "high": round(high, digits)}


def better_row_groups(num_packs: int, num_bytes: float, num_groups: float, global_batch_size: int) -> int | None:
    """Packs in a row group that would make small ones `GROUP_BYTES`, or as near as may be; None when all is well.

    They are doubled while they are too small, to `MAX_PACKS` at most, and while each lane still has four of them.
    """
    better = num_packs
    while num_bytes * better / num_packs < GROUP_BYTES and 2 * better <= MAX_PACKS:
        better *= 2
    while better > num_packs and num_groups * num_packs / better < 4 * global_batch_size:
        better //= 2
    return better if better > num_packs else None


def describe(
    config: Config, samples: Sequence[Sample], plan: ShardPlan, head: Head, global_batch_size: int, num_executors: int
) -> dict:
    """The forecast. Raises ConfigError for a file larger than the Hub takes."""
    sums = totals(samples, config.shards.seed)
    of_train, of_validation = packs(samples, config, plan, sums)
    num_packs = of_train + of_validation
    shards = len(plan.paths)
    quarantine = metrics.add(block.quarantine for sample in samples for block in sample.blocks)
    num_small = len(ALWAYS) + len(splits_of(config)) * (3 if quarantine else 2)
    replaced = [p for s in splits_of(config) for p in head.files_of(s)] if config.output.mode == "overwrite" else []
    num_deleted = len({*replaced, *head.left} - set(plan.paths))
    commits = num_commits(shards, num_small, num_deleted, config.output.max_operations_per_commit)
    num_groups = np.maximum(shards, num_packs / config.shards.num_packs_per_row_group)
    upload = sums["num_bytes_written"] + FOOTER_BYTES * shards + FOOTER_BYTES_A_GROUP * num_groups
    file_bytes = upload / shards
    if file_bytes[0] > MAX_FILE_BYTES:
        raise ConfigError(
            f"shards.num_shards: {config.shards.num_shards} makes files of {file_bytes[0] / 1e9:,.0f} GB, and the Hub "
            f"takes {MAX_FILE_BYTES / 1e9:,.0f} GB; use more shards"
        )
    group_bytes = sums["num_bytes_written"] / num_packs * config.shards.num_packs_per_row_group
    warnings = []
    if group_bytes[0] > VIEWER_BYTES:
        warnings.append(
            f"shards.num_packs_per_row_group: row groups of {group_bytes[0] / 1e6:,.0f} MB; the Hub's viewer reads "
            f"{VIEWER_BYTES / 1e6:,.0f} MB"
        )
    better = better_row_groups(config.shards.num_packs_per_row_group, group_bytes[0], num_groups[0], global_batch_size)
    if better:
        warnings.append(
            f"shards.num_packs_per_row_group: row groups of {group_bytes[0] / 1e6:,.0f} MB; with {better} packs each, "
            "a reader asks less often and a new version sends less"
        )
    if commits > COMMITS_AN_HOUR:
        warnings.append(f"{commits} commits take {commits / COMMITS_AN_HOUR:.1f} hours: the Hub limits them")
    if of_train[0] < global_batch_size:
        warnings.append(f"--global-batch-size: {global_batch_size} packs a step are more than the {of_train[0]:,.0f} "
                        "for training: no step")  # fmt: skip
    share = sums["num_quarantined"] / np.maximum(sums["num_rows"], 1)
    if share[0] > config.quality.max_quarantine_fraction:
        warnings.append(f"quality.max_quarantine_fraction: {share[0]:.1%} of rows would be quarantined: the run fails")
    return {
        "repo": config.output.repo,
        "sources": [_describe_source(sample) for sample in samples],
        "num_shards": shards,
        "num_files": shards + num_small,
        "num_commits": commits,
        "global_batch_size": global_batch_size,
        "num_executors": num_executors,
        "interval": "5th to 95th percentile of a bootstrap over blocks of rows",
        "seq_len": config.pack.seq_len,
        "num_packs": _interval(num_packs),
        "fill": _interval(sums["num_tokens"] / (num_packs * config.pack.seq_len), digits=4),
        "num_steps": _interval(np.rint(of_train) // global_batch_size),
        **{name: _interval(sums[name]) for name in ("num_samples", "num_quarantined", "num_duplicates", "num_tokens",
                                                   "num_label_tokens", "num_images", "vision_cost")},
        "upload_bytes": _interval(upload),
        "task_memory_bytes": _interval(WORKER_BYTES + WORKER_SHARDS * sums["num_bytes"] / shards),
        "executor_shuffle_bytes": _interval(sums["num_bytes"] / num_executors),
        "quarantine_in_sample": quarantine,
        "warnings": warnings,
    }  # fmt: skip


def _describe_source(sample: Sample) -> dict:
    pinned = sample.pinned
    return {
        "name": pinned.source.name,
        "commit": pinned.commit,
        "num_files": len(pinned.files),
        "num_rows": pinned.num_rows,
        "num_bytes": pinned.num_bytes,
        "num_rows_used": round(sample.num_rows_used),
        "num_rows_read": sample.num_rows_read,
    }


_LINES = (
    ("num_packs", "packs"), ("fill", "fill"), ("num_samples", "samples"), ("num_quarantined", "quarantined"),
    ("num_duplicates", "duplicates"), ("num_tokens", "tokens an epoch"), ("num_label_tokens", "  of them trained"),
    ("num_steps", "steps an epoch"), ("upload_bytes", "upload, bytes"), ("task_memory_bytes", "memory a task, bytes"),
    ("executor_shuffle_bytes", "shuffle disk an executor, bytes"),
)  # fmt: skip


def as_text(found: dict) -> str:
    """The forecast as lines for people."""
    lines = [f"{found['repo']}: {found['num_shards']:,} shards, {found['num_files']:,} files, {found['num_commits']:,} "
             f"commit{'s' * (found['num_commits'] > 1)}"]  # fmt: skip
    for source in found["sources"]:
        lines.append(f"  {source['name']}: {source['num_rows']:,} rows, {source['num_bytes']:,} bytes in "
                     f"{source['num_files']:,} files; {source['num_rows_read']:,} rows read, and by limit and weight "
                     f"{source['num_rows_used']:,} used")  # fmt: skip
    lines.append(f"{'':<34}{'estimate':>20}{'90 % interval':>38}")
    for name, title in _LINES:
        value, form = found[name], ".2%" if name == "fill" else ",d"
        low_high = f"{value['low']:{form}} – {value['high']:{form}}"
        lines.append(f"{title:<34}{value['estimate']:>20{form}}{low_high:>38}")
    num_read = sum(source["num_rows_read"] for source in found["sources"])
    lines += [f"  {count:,} of {num_read:,} rows read: {reason}"
              for reason, count in sorted(found["quarantine_in_sample"].items())]  # fmt: skip
    return "\n".join([*lines, *(f"warning: {text}" for text in found["warnings"])])
