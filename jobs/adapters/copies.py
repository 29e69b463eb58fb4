"""A source's limit and weight: which rows are used, and how often, by hash of their content.

A row's fate follows from (seed, sample_id, copy), so it depends on neither the partitioning nor the rows around it,
and stays the same when a dataset grows or its files are renamed. Copy c of a row is used when its hash is below
weight − c:

    weight 0.25   copy 0 of every fourth row
    weight 2.5    copies 0 and 1 of all, copy 2 of half of them

A row of which nothing is used goes on without its content, as a few bytes with the reason `NOT_SAMPLED`, so that the
ledger counts it. Rejected: `.sample()` and `.limit()`, which depend on the partitioning and leave nothing to count;
deciding by file and row, which chooses anew when files are written anew.
"""

import math

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from packing_udfs.config import Source
from packing_udfs.shard.outcomes import NOT_SAMPLED

_STEPS = 1 << 32  # a share is a number of this many steps


def with_copies(samples: DataFrame, source: Source, num_rows: int, seed: int) -> DataFrame:
    """Samples with their copies, each with its number; `num_rows` of the source, of which `limit` is a share.

    A row that makes no sample is used at most once: its place is in the quarantine.
    """
    share = min(1.0, source.limit / max(1, num_rows)) if source.limit else 1.0
    if share == 1.0 and source.weight == 1.0:
        return samples
    copies = F.filter(
        F.sequence(F.lit(0), F.lit(math.ceil(source.weight) - 1)),
        lambda copy: _hash("copy", seed, copy) < F.round((source.weight - copy) * _STEPS),
    )
    copies = F.when(F.col("reason").isNull(), copies).otherwise(F.slice(copies, 1, 1))
    copies = F.when(_hash("limit", seed, F.lit(0)) < round(share * _STEPS), copies)
    copies = F.when(F.size(copies) > 0, copies).otherwise(F.array(F.lit(-1)))  # null, for none, has size −1
    numbered = samples.withColumn("copy", F.explode(copies))
    is_used = F.col("copy") >= 0
    return numbered.select(
        "sample_id",
        "source",
        "file",
        "row",
        F.greatest("copy", F.lit(0)).alias("copy"),
        F.when(is_used, F.col("messages")).alias("messages"),
        F.when(is_used, F.col("images")).alias("images"),
        F.when(is_used, F.col("reason")).otherwise(NOT_SAMPLED).alias("reason"),
        F.when(is_used, F.col("num_turns_dropped")).otherwise(0).alias("num_turns_dropped"),
    )


def _hash(salt: str, seed: int, copy: Column) -> Column:
    return F.pmod(F.xxhash64(F.lit(salt), F.lit(seed), F.col("sample_id"), copy), F.lit(_STEPS))
