"""What packing is worth on your data: five stages from padded samples to balanced packs, on one page.

    python -m jobs.compare --config conf/jobs/demo.yaml pack.seq_len=8192 --max-samples 5000

1. samples as people see them; 2. naive padding, each batch to its longest sample; 3. constrained padding, every
sample to seq_len; 4. greedy and first-fit decreasing packing by lengths alone; 5. balanced packing under all budgets.
Writes compare.html, which opens anywhere, and compare.json with the same numbers.

The configuration is the job's. The job's own expressions turn a seeded sample of the sources' rows into samples
(`jobs.sources.sample`), and its `pack_shard` with budgets that no sample exceeds encodes them; its quarantine is
what no stage can use. Cost: starting Spark, and about a millisecond a row. Rejected: numbers for whole sources (the
job's report has them).
"""

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel
from pyspark.sql import SparkSession

from jobs.forecast.stages import NUM_RANKS, Samples, Stage, StageFigures, make_stages, samples_of, stage_figures
from jobs.revision.fingerprints import plain, versions
from jobs.shards.ledger import Ledger
from jobs.shards.session import get_session
from jobs.sources.pin import pin
from jobs.sources.pinned import PinnedSource
from jobs.sources.sample import read_sample
from packing_udfs import metrics
from packing_udfs.config import INT32_LIMIT, Config
from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.processor import ProcessorFiles, fetch
from packing_udfs.knapsack.axes import AXES, TOKENS
from packing_udfs.published.pictures import IMAGE, RESPONSE
from packing_udfs.shard.pack_shard import PackSettings, pack_shard

__all__ = ["Comparison", "Figures", "SampleFigures", "SourceFigures", "as_json", "as_text", "compare", "lay_out"]


class SourceFigures(BaseModel):
    """A source, and how many of its rows were read."""

    name: str
    repo: str
    config: str | None
    split: str
    commit: str | None
    num_rows: int
    num_rows_read: int


class SampleFigures(BaseModel):
    """The samples that were made of the rows read."""

    num_selected: int
    quarantine: dict[str, int]
    num_duplicates: int
    num_samples: int
    num_tokens: int
    num_label_tokens: int
    num_image_tokens: int
    num_images: int
    vision_cost: int
    median_length: int
    longest: int


class Figures(BaseModel):
    """The numbers of a comparison: compare.json."""

    config: dict[str, Any]  # as published files have it (`fingerprints.plain`)
    sources: list[SourceFigures]
    processor: dict[str, str | None]  # name, class, revision, fingerprint, vision_unit
    global_batch_size: int
    num_ranks: int = NUM_RANKS
    naive_batch: int = metrics.NAIVE_BATCH
    sample: SampleFigures
    stages: list[StageFigures]
    versions: dict[str, str]


@dataclass(frozen=True)
class Comparison:
    """All that a page shows."""

    figures: Figures
    samples: Samples
    stages: list[Stage]
    frame: pd.DataFrame  # the rows as samples, contract.SAMPLE_SCHEMA
    encoder: Encoder


def compare(
    config: Config,
    max_samples: int,
    global_batch_size: int,
    spark: SparkSession | None = None,
    *,
    spark_conf: str | None = None,
) -> Comparison:
    """Read at most `max_samples` rows of the configuration's sources and lay them out in every stage.

    global_batch_size: rows in a training step. Raises ValueError, before Spark starts, for what is wrong with the
    configuration, its sources or its processor; and when none of the rows can be packed.
    """
    for name, value in (("max_samples", max_samples), ("global_batch_size", global_batch_size)):
        if value < 1:
            raise ValueError(f"{name}: {value} is refused: must be at least 1")
    processor = fetch(config.processor.path, config.processor.revision)
    encoder = Encoder(processor.load(), config.pack.train_on)
    sources = [pin(source, f"sources.{i}") for i, source in enumerate(config.sources)]
    read = read_sample(get_session(spark_conf, spark), sources, max_samples, config.shards.seed)
    described = [_describe_source(*source) for source in zip(sources, read.num_rows_read, strict=True)]
    return lay_out(config, processor, encoder, described, read.frame, global_batch_size)


def lay_out(
    config: Config,
    processor: ProcessorFiles,
    encoder: Encoder,
    sources: list[SourceFigures],
    frame: pd.DataFrame,
    global_batch_size: int,
) -> Comparison:
    """The comparison of rows that have been read.

    frame: the samples made of the rows, contract.SAMPLE_SCHEMA. Raises ValueError when none of it can be packed.
    """
    packed = pack_shard(frame, encoder, _no_limits(config))
    ledger = Ledger(packed.ledger)
    if not packed.num_packs:
        raise ValueError(f"sources: none of the {len(frame)} rows read can be packed: {ledger.reasons()}")
    samples = samples_of(packed, encoder)
    stages = make_stages(samples, config)
    scale = Fraction(sum(s.num_rows for s in sources), sum(s.num_rows_read for s in sources))
    figures = Figures(
        config=plain(config, processor),
        sources=sources,
        processor={
            "name": processor.published_name,
            "class": type(encoder.processor).__name__,
            "revision": processor.revision,
            "fingerprint": processor.fingerprint,
            "vision_unit": encoder.family.vision_unit,
        },
        global_batch_size=global_batch_size,
        sample=_describe_samples(samples, ledger),
        stages=[stage_figures(stage, samples, config, global_batch_size, scale) for stage in stages],
        versions=versions(),
    )
    return Comparison(figures, samples, stages, frame, encoder)


def _no_limits(config: Config) -> PackSettings:
    """The job's settings for a single sample, with budgets that nothing exceeds."""
    return PackSettings(
        seq_len=INT32_LIMIT - 1,
        max_images_per_sample=config.pack.max_images_per_sample,
        algorithm="greedy",
        duplicates=config.shards.duplicates,
        seed=config.shards.seed,
        videos={source.name: source.video for source in config.sources},
        images=config.images,
    )


def _describe_source(pinned: PinnedSource, num_rows_read: int) -> SourceFigures:
    named = pinned.source.model_dump(mode="json", include={"name", "repo", "config", "split"})
    return SourceFigures(**named, commit=pinned.commit, num_rows=pinned.num_rows, num_rows_read=num_rows_read)


def _describe_samples(samples: Samples, ledger: Ledger) -> SampleFigures:
    return SampleFigures(
        num_selected=ledger.count() - ledger.count(outcome="not_sampled"),
        quarantine=ledger.reasons(),
        num_duplicates=ledger.count(outcome="duplicate"),
        num_samples=len(samples),
        num_tokens=int(samples.lengths.sum()),
        num_label_tokens=sum(int((kinds == RESPONSE).sum()) for kinds in samples.kinds),
        num_image_tokens=sum(int((kinds == IMAGE).sum()) for kinds in samples.kinds),
        num_images=int(samples.num_images.sum()),
        vision_cost=int(samples.vision_costs.sum()),
        median_length=int(np.sort(samples.lengths)[len(samples) // 2]),
        longest=int(samples.lengths.max()),
    )


def as_json(figures: Figures) -> str:
    """Sorted keys and no clock: equal data gives equal bytes."""
    return json.dumps(figures.model_dump(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def as_text(figures: Figures) -> str:
    """The table that a run prints."""
    has_budget = any(figures.config["pack"][axis.limit] for axis in AXES if axis.name != TOKENS)
    lines = [f"{'':<22}{'waste':>8}{'lost':>7}{'rows':>8}{'bound':>8}{'over budget':>13}{'straggler':>11}{'steps':>8}"]
    for stage in figures.stages:
        waste = "–" if stage.waste is None else f"{stage.waste:.1%}"
        over = f"{stage.num_rows_over_budget:,}" if has_budget and stage.bound is not None else "–"
        late = "–" if stage.straggler_8 is None else f"{stage.straggler_8:.3f}"
        lines.append(
            f"{stage.title:<22}{waste:>8}{stage.num_samples_lost:>7,}{stage.num_rows:>8,}"
            f"{stage.bound or '–':>8}{over:>13}{late:>11}{stage.num_steps:>8,}"
        )
    return "\n".join(lines)
