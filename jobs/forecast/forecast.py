"""What a run would make, from the sources' metadata and a seeded sample of their rows; no Spark, no Java, no writing.

    python -m jobs.plan --config my_job.yaml --global-batch-size 256

Totals and packs, with their intervals, are those of `jobs.forecast.estimates`; here stands what follows from them:
files, commits, bytes, memory, and what would go wrong. Upload bytes are before deduplication by Xet, of which a new
dataset has little.
"""

from collections.abc import Sequence

import numpy as np

from jobs.forecast.estimates import Sample, draw, interval, packs, totals
from jobs.output.commit_pace import COMMITS_AN_HOUR
from jobs.output.hub_draft import num_commits
from jobs.output.interface import Head
from jobs.output.open import open_output
from jobs.pages.run import PICTURES
from jobs.shards.plan import ShardPlan, plan_shards, splits_of
from jobs.shards.settings import check_budgets, settings
from jobs.sources.pin import pin
from jobs.sources.pinned import PinnedSource
from packing_udfs import metrics
from packing_udfs.config import Config, ConfigError
from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.processor import fetch

MAX_FILE_BYTES = 50_000_000_000  # of one file on the Hub
MAX_OPERATIONS = 100  # in a commit, that the Hub promises to take in time
VIEWER_BYTES = 300_000_000  # of a row group that the Hub's viewer reads
GROUP_BYTES, MAX_PACKS = 24_000_000, 128  # what a row group should have at least, unless those are more packs
FOOTER_BYTES, FOOTER_BYTES_A_GROUP = 5_300, 1_520  # of a file of packs
WORKER_BYTES, WORKER_SHARDS = 400_000_000, 3.5  # memory of a Python worker: so much, and its shard so often

ALWAYS = ("README.md", "report.json", "report.html", *PICTURES.values())  # a run's files beside its splits'


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


def _of_row_groups(num_packs: int, num_bytes: float, num_groups: float, global_batch_size: int) -> list[str]:
    """What is to be said of row groups of this size, if anything."""
    what = f"shards.num_packs_per_row_group: row groups of {num_bytes / 1e6:,.0f} MB; "
    if num_bytes > VIEWER_BYTES:
        return [f"{what}the Hub's viewer reads {VIEWER_BYTES / 1e6:,.0f} MB"]
    if better := better_row_groups(num_packs, num_bytes, num_groups, global_batch_size):
        return [f"{what}with {better} packs each, a reader asks less often and a new version sends less"]
    return []


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
    group_bytes = float(sums["num_bytes_written"][0] / num_packs[0]) * config.shards.num_packs_per_row_group
    warnings = _of_row_groups(config.shards.num_packs_per_row_group, group_bytes, num_groups[0], global_batch_size)
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
        "num_packs": interval(num_packs),
        "fill": interval(sums["num_tokens"] / (num_packs * config.pack.seq_len), digits=4),
        "num_steps": interval(np.rint(of_train) // global_batch_size),
        **{name: interval(sums[name]) for name in ("num_samples", "num_quarantined", "num_duplicates", "num_tokens",
                                                   "num_label_tokens", "num_images", "vision_cost")},
        "upload_bytes": interval(upload),
        "task_memory_bytes": interval(WORKER_BYTES + WORKER_SHARDS * sums["num_bytes"] / shards),
        "executor_shuffle_bytes": interval(sums["num_bytes"] / num_executors),
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
