"""A source's limit and weight: which rows are used, and how often, by hash of their content.

Copy c of a row is used when a hash of (seed, sample_id, c) is below weight − c. So the choice does not depend on the
partitioning or on other rows, and stays the same when a dataset grows or its files are renamed.

    weight 0.25   copy 0 of every fourth row
    weight 2.5    copies 0 and 1 of all, copy 2 of half of them

A row that is not used goes on without its content, with the reason `NOT_SAMPLED`, so that the ledger counts it.
Rejected: `.sample()` and `.limit()`, which depend on the partitioning and leave nothing to count; a choice by file and
row, which changes when files are written anew.
"""

import math

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from packing_udfs.config import Source
from packing_udfs.shard.outcomes import NOT_SAMPLED

__all__ = ["with_copies"]

_STEPS = 1 << 32  # a share is a number of this many steps


def with_copies(samples: DataFrame, source: Source, num_rows: int, seed: int) -> DataFrame:
    """Samples and their numbered copies. `num_rows`: of the source, `limit` is a share of them.

    A row that makes no sample is used at most once: it goes to the quarantine.
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
    changed = {
        "copy": F.greatest("copy", F.lit(0)),
        **{name: F.when(is_used, F.col(name)) for name in ("messages", "tools", "images", "kept")},
        "reason": F.when(is_used, F.col("reason")).otherwise(NOT_SAMPLED),
        "num_turns_dropped": F.when(is_used, F.col("num_turns_dropped")).otherwise(0),
    }
    return numbered.withColumns(changed)


def _hash(salt: str, seed: int, copy: Column) -> Column:
    return F.pmod(F.xxhash64(F.lit(salt), F.lit(seed), F.col("sample_id"), copy), F.lit(_STEPS))
