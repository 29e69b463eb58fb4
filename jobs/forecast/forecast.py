"""What a run would make, from the sources' metadata and a seeded sample of their rows; no Spark, no Java, no writing.

    python -m jobs.plan --config my_job.yaml --global-batch-size 256

Sums and packs with their intervals come from `jobs.forecast.estimates`. This module derives files, commits, bytes,
memory and warnings. Upload bytes are before Xet's deduplication, which saves little on a new dataset.
"""

import json
from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import BaseModel, Field

from jobs.adapters import name_of, why
from jobs.forecast.drawn_rows import DrawnRow
from jobs.forecast.estimates import Estimate, Sample, Totals, draw, interval, packs, totals
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
from packing_udfs.published.trained_text import printable

__all__ = ["Forecast", "SourceForecast", "as_json", "as_text", "better_row_groups", "forecast"]

MAX_FILE_BYTES = 50_000_000_000  # of one file on the Hub
MAX_OPERATIONS = 100  # of a commit that the Hub promises to take in time
VIEWER_BYTES = 300_000_000  # of a row group that the Hub's viewer reads
GROUP_BYTES, MAX_PACKS = 24_000_000, 128  # a row group should have so many bytes, but not more packs
FOOTER_BYTES, FOOTER_BYTES_A_GROUP = 5_300, 1_520  # of a file of packs
WORKER_BYTES, WORKER_SHARDS = 400_000_000, 3.5  # memory of a Python worker: a constant, and a multiple of its shard

ALWAYS = ("README.md", "report.json", "report.html", *PICTURES.values())  # a run's files beside its splits'


class SourceForecast(BaseModel):
    """A source, and how much of it was read and would be used."""

    name: str
    commit: str | None
    num_files: int
    num_rows: int
    num_bytes: int
    num_rows_used: int
    num_rows_read: int
    adapter: str
    why: str  # it is this adapter
    columns: list[str]  # that the adapter reads
    kept: list[str]  # columns that go with each sample
    unused: list[str]  # columns and fields that are neither
    drawn: list[DrawnRow]  # some rows, as they would be trained


class Forecast(BaseModel):
    """What a run would make. `as_text` prints the fields with a title as lines, in this order."""

    repo: str
    sources: list[SourceForecast]
    num_shards: int
    num_files: int
    num_commits: int
    global_batch_size: int
    num_executors: int
    interval: str  # what intervals are
    seq_len: int
    num_packs: Estimate = Field(title="packs")
    fill: Estimate = Field(title="fill")
    num_samples: Estimate = Field(title="samples")
    num_quarantined: Estimate = Field(title="quarantined")
    num_duplicates: Estimate = Field(title="duplicates")
    num_tokens: Estimate = Field(title="tokens an epoch")
    num_label_tokens: Estimate = Field(title="  of them trained")
    num_images: Estimate
    vision_cost: Estimate
    num_steps: Estimate = Field(title="steps an epoch")
    upload_bytes: Estimate = Field(title="upload, bytes")
    task_memory_bytes: Estimate = Field(title="memory a task, bytes")
    executor_shuffle_bytes: Estimate = Field(title="shuffle disk an executor, bytes")
    quarantine_in_sample: dict[str, int]
    warnings: list[str]


def forecast(config: Config, *, max_rows: int = 4096, global_batch_size: int = 32, num_executors: int = 1) -> Forecast:
    """What `pack.run(config)` would make; the same for the same data, configuration and seed.

    Raises ValueError for what is wrong with the configuration or its sources, for sources none of whose rows can be
    packed, and for what would break a limit of the Hub.
    """
    numbers = {"max_rows": max_rows, "global_batch_size": global_batch_size, "num_executors": num_executors}
    for name, value in numbers.items():
        if value < 1:
            raise ConfigError(f"{name}: {value} is refused: must be at least 1")
    if config.output.max_operations_per_commit > MAX_OPERATIONS:
        raise ConfigError(
            f"output.max_operations_per_commit: {config.output.max_operations_per_commit} is more than the "
            f"{MAX_OPERATIONS} that the Hub takes in time"
        )
    processor = fetch(config.processor.path, config.processor.revision)
    sources = [pin(source, f"sources.{i}", config.output.retry_seconds) for i, source in enumerate(config.sources)]
    check_budgets(config, processor, sources)
    head = open_output(config).read_head()
    plan = plan_shards(config, sources, head)
    encoder = Encoder(processor.load(), config.pack.train_on)
    _check_rows_used(sources)
    samples = draw(sources, max_rows, encoder, settings(config, sources), config.output.retry_seconds)
    if not any(len(block.amounts) for sample in samples for block in sample.blocks):
        reasons = metrics.add(block.quarantine for sample in samples for block in sample.blocks)
        told = "".join(f"\n  {count:>10,}  {reason}" for reason, count in sorted(reasons.items()))
        raise ConfigError(f"sources: none of {sum(s.num_rows_read for s in samples)} rows read can be packed{told}")
    return describe(config, samples, plan, head, global_batch_size, num_executors)


def _check_rows_used(sources: Sequence[PinnedSource]) -> None:
    """Raises ConfigError when limits and weights are expected to leave no row, because the job would fail."""
    used, num_rows = sum(Sample(source, []).num_rows_used for source in sources), sum(s.num_rows for s in sources)
    if num_rows and round(used) < 1:
        raise ConfigError(
            f"sources: their limits and weights leave about {used:.2g} of {num_rows} rows: no sample could be packed; "
            "use larger ones"
        )


def describe(
    config: Config, samples: Sequence[Sample], plan: ShardPlan, head: Head, global_batch_size: int, num_executors: int
) -> Forecast:
    """The forecast. Raises ConfigError for a file larger than the Hub takes."""
    sums = totals(samples, config.shards.seed)
    of_train, of_validation = packs(samples, config, plan, sums)
    num_packs = of_train + of_validation
    num_shards = len(plan.paths)
    quarantine = metrics.add(block.quarantine for sample in samples for block in sample.blocks)
    num_files, commits = _count_files_and_commits(config, plan, head, bool(quarantine))
    num_groups = np.maximum(num_shards, num_packs / config.shards.num_packs_per_row_group)
    upload = sums.num_bytes_written + FOOTER_BYTES * num_shards + FOOTER_BYTES_A_GROUP * num_groups
    if upload[0] / num_shards > MAX_FILE_BYTES:
        raise ConfigError(
            f"shards.num_shards: {config.shards.num_shards} makes files of {upload[0] / num_shards / 1e9:,.0f} GB, and "
            f"the Hub takes {MAX_FILE_BYTES / 1e9:,.0f} GB; use more shards"
        )
    group_bytes = float(sums.num_bytes_written[0] / num_packs[0]) * config.shards.num_packs_per_row_group
    warnings = _warn_of_row_groups(config.shards.num_packs_per_row_group, group_bytes, num_groups[0], global_batch_size)
    warnings += _warn_of_run(config, sums, of_train[0], commits, global_batch_size)
    summed = {name: values for name, values in (vars(sums) | sums.amounts).items() if name in Forecast.model_fields}
    return Forecast(
        repo=config.output.repo,
        sources=[_describe_source(sample) for sample in samples],
        num_shards=num_shards,
        num_files=num_files,
        num_commits=commits,
        global_batch_size=global_batch_size,
        num_executors=num_executors,
        interval="5th to 95th percentile of a bootstrap over blocks of rows",
        seq_len=config.pack.seq_len,
        num_packs=interval(num_packs),
        fill=interval(sums.amounts["num_tokens"] / (num_packs * config.pack.seq_len), digits=4),
        num_steps=interval(np.rint(of_train) // global_batch_size),
        upload_bytes=interval(upload),
        task_memory_bytes=interval(WORKER_BYTES + WORKER_SHARDS * sums.num_bytes / num_shards),
        executor_shuffle_bytes=interval(sums.num_bytes / num_executors),
        quarantine_in_sample=quarantine,
        warnings=warnings,
        **{name: interval(values) for name, values in summed.items()},
    )


def _count_files_and_commits(config: Config, plan: ShardPlan, head: Head, has_quarantine: bool) -> tuple[int, int]:
    num_small = len(ALWAYS) + len(splits_of(config)) * (3 if has_quarantine else 2)
    replaced = [p for s in splits_of(config) for p in head.files_of(s)] if config.output.mode == "overwrite" else []
    num_deleted = len({*replaced, *head.left} - set(plan.paths))
    commits = num_commits(len(plan.paths), num_small, num_deleted, config.output.max_operations_per_commit)
    return len(plan.paths) + num_small, commits


def _describe_source(sample: Sample) -> SourceForecast:
    pinned = sample.pinned
    return SourceForecast(
        name=pinned.source.name,
        commit=pinned.commit,
        num_files=len(pinned.files),
        num_rows=pinned.num_rows,
        num_bytes=pinned.num_bytes,
        num_rows_used=round(sample.num_rows_used),
        num_rows_read=sample.num_rows_read,
        adapter=name_of(pinned.adapter),
        columns=[field.name for field in pinned.adapter.fields],
        why=why(pinned.adapter, pinned.source),
        kept=[field.name for field in pinned.kept],
        unused=list(pinned.unused),
        drawn=[row for block in sample.blocks for row in block.drawn],
    )


def _warn_of_row_groups(num_packs: int, num_bytes: float, num_groups: float, global_batch_size: int) -> list[str]:
    """A warning about too large or too small row groups, if any."""
    what = f"shards.num_packs_per_row_group: row groups of {num_bytes / 1e6:,.0f} MB; "
    if num_bytes > VIEWER_BYTES:
        return [f"{what}the Hub's viewer reads {VIEWER_BYTES / 1e6:,.0f} MB"]
    if better := better_row_groups(num_packs, num_bytes, num_groups, global_batch_size):
        return [f"{what}with {better} packs each, a reader asks less often and a new version sends less"]
    return []


def better_row_groups(num_packs: int, num_bytes: float, num_groups: float, global_batch_size: int) -> int | None:
    """Packs in a row group that bring small row groups near to GROUP_BYTES; None when they are large enough.

    The number is doubled while row groups are too small, up to MAX_PACKS, and while each lane still has four of them.
    """
    better = num_packs
    while num_bytes * better / num_packs < GROUP_BYTES and 2 * better <= MAX_PACKS:
        better *= 2
    while better > num_packs and num_groups * num_packs / better < 4 * global_batch_size:
        better //= 2
    return better if better > num_packs else None


def _warn_of_run(
    config: Config, sums: Totals, num_train_packs: float, num_commits: int, global_batch_size: int
) -> list[str]:
    """Warnings about a slow run, a run without a training step, and a run that fails."""
    warnings = []
    if num_commits > COMMITS_AN_HOUR:
        warnings.append(f"{num_commits} commits take {num_commits / COMMITS_AN_HOUR:.1f} hours: the Hub limits them")
    if num_train_packs < global_batch_size:
        warnings.append(f"--global-batch-size: {global_batch_size} packs a step are more than the "
                        f"{num_train_packs:,.0f} for training: no step")  # fmt: skip
    share = sums.num_quarantined[0] / np.maximum(sums.num_rows[0], 1)
    if share > config.quality.max_quarantine_fraction:
        warnings.append(f"quality.max_quarantine_fraction: {share:.1%} of rows would be quarantined: the run fails")
    return warnings


def as_json(found: Forecast) -> str:
    """The forecast as JSON with sorted keys."""
    return json.dumps(found.model_dump(), indent=1, sort_keys=True, ensure_ascii=False)


def _lines_of_columns(source: SourceForecast) -> Iterator[str]:
    """What is made of a source's columns, and its drawn rows."""
    yield f"    adapter {source.adapter} ({source.why})"
    for name in ("columns", "kept", "unused"):
        if names := getattr(source, name):
            yield f"    {name:<8}{', '.join(names)}"
    for row in source.drawn:
        told = f"nothing is trained, {row.reason}" if row.reason else f"{row.num_tokens:,} tokens, trained between « »"
        yield printable(f"    {row.file} row {row.row}: {told}")
        yield from (f"      | {line}" for line in row.text.splitlines())


def as_text(found: Forecast) -> str:
    """The forecast as lines for people."""
    commits = f"{found.num_commits:,} commit{'s' * (found.num_commits > 1)}"
    lines = [f"{found.repo}: {found.num_shards:,} shards, {found.num_files:,} files, {commits}"]
    for source in found.sources:
        lines.append(f"  {source.name}: {source.num_rows:,} rows, {source.num_bytes:,} bytes in "
                     f"{source.num_files:,} files; {source.num_rows_read:,} rows read, and by limit and weight "
                     f"{source.num_rows_used:,} used")  # fmt: skip
        lines += _lines_of_columns(source)
    lines.append(f"{'':<34}{'estimate':>20}{'90 % interval':>38}")
    for name, field in Forecast.model_fields.items():
        if field.title:
            value, form = getattr(found, name), ".2%" if name == "fill" else ",d"
            low_high = f"{value.low:{form}} – {value.high:{form}}"
            lines.append(f"{field.title:<34}{value.estimate:>20{form}}{low_high:>38}")
    num_read = sum(source.num_rows_read for source in found.sources)
    for reason, count in sorted(found.quarantine_in_sample.items()):
        lines.append(f"  {count:,} of {num_read:,} rows read: {reason}")
    return "\n".join([*lines, *(f"warning: {text}" for text in found.warnings)])
