"""Some rows of pinned sources as samples of the contract, drawn by a seed, without reading the sources as a whole.

For a look at data before a job runs. The driver reads the first rows of a few files with the job's own reader and
writes them to local disk. Spark makes samples of them as in the job, with the same ids. Rejected: the job's read with a
limit (it opens every file, and `.limit()` takes whatever comes first).

The number of rows is shared out over sources by their number of rows, then over files drawn by a hash of the seed. A
file gives its first rows, so a source of few files that are sorted inside needs more rows to be seen as a whole. Limits
and weights of sources apply to the rows read, as they apply to all in the job.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from jobs.sources.pin import open_reader, to_samples
from jobs.sources.pinned import PinnedSource
from jobs.sources.reading import RowReader, Slice
from packing_udfs.contract import SAMPLE_SCHEMA
from packing_udfs.hashing import permutation

__all__ = ["Sampled", "read_sample", "share_out"]

NUM_SLICES = 16  # files of a source that are opened at least, if it has so many
MAX_BYTES = 1 << 30  # of a sample: what the driver holds, less than a row group of packs may have
ROW_GROUP_ROWS = 64  # of the rows on local disk: Spark reads whole row groups, and rows have images


class Sampled(NamedTuple):
    """A sample of some sources."""

    frame: pd.DataFrame  # contract.SAMPLE_SCHEMA, in no order
    num_rows_read: list[int]  # of each source


def read_sample(spark: SparkSession, sources: Sequence[PinnedSource], max_rows: int, seed: int) -> Sampled:
    """`max_rows` rows of the sources, fewer if the sources have fewer or the rows take more than MAX_BYTES."""
    shares = share_out(max_rows, [source.num_rows for source in sources])
    total, samples, num_rows_read = sum(shares), [SAMPLE_SCHEMA.empty_table()], []
    for i, (pinned, share) in enumerate(zip(sources, shares, strict=True)):
        reader = open_reader(pinned)
        tables = [
            _first_rows(reader, part, wanted, MAX_BYTES * wanted // total)
            for part, wanted in _choose(reader.partitions(), pinned, share, (seed, i))
        ]
        num_rows_read.append(sum(len(table) for table in tables))
        if tables:
            samples.append(_adapt(spark, pinned, pa.concat_tables(tables), seed))
    return Sampled(pa.concat_tables(samples).to_pandas(), num_rows_read)


def share_out(total: int, sizes: Sequence[int]) -> list[int]:
    """Shares of `total` in proportion to sizes, none above its size. The largest remainders get one more.

    share_out(10, [30, 60, 10]) == [3, 6, 1]; share_out(10, [2, 3]) == [2, 3]
    """
    whole = sum(sizes)
    if total >= whole:
        return list(sizes)
    shares = [total * size // whole for size in sizes]
    remainders = [-(total * size % whole) for size in sizes]
    for i in np.argsort(remainders, kind="stable")[: total - sum(shares)].tolist():
        shares[i] += 1
    return shares


def _choose(parts: Sequence[Slice], pinned: PinnedSource, share: int, key: tuple[int, ...]) -> list[tuple[Slice, int]]:
    """Slices, and how many rows to take of each: NUM_SLICES or more, until they have `share` rows."""

    def num_rows(part: Slice) -> int:
        in_file = pinned.files[part.file].num_rows
        return (in_file if part.stop is None else min(part.stop, in_file)) - part.start

    chosen: list[Slice] = []
    for at in permutation(len(parts), *key).tolist():
        if len(chosen) >= NUM_SLICES and sum(map(num_rows, chosen)) >= share:
            break
        chosen.append(parts[at])
    shares = share_out(share, [num_rows(part) for part in chosen])
    return [(part, wanted) for part, wanted in zip(chosen, shares, strict=True) if wanted]


def _first_rows(reader: RowReader, part: Slice, wanted: int, max_bytes: int) -> pa.Table:
    """The first `wanted` rows of a slice with their provenance, or as many of them as take about `max_bytes`."""
    batches, num_rows, num_bytes = [], 0, 0
    for batch in reader.read(part):
        batches.append(batch.slice(0, wanted - num_rows))
        num_rows, num_bytes = num_rows + len(batches[-1]), num_bytes + batches[-1].nbytes
        if num_rows == wanted or num_bytes >= max_bytes:
            break
    table = pa.Table.from_batches(batches)
    return table if num_bytes <= max_bytes else table.slice(0, num_rows * max_bytes // num_bytes)


def _adapt(spark: SparkSession, pinned: PinnedSource, rows: pa.Table, seed: int) -> pa.Table:
    """The samples that the job makes of rows. They go through files, since Spark limits what a driver may receive."""
    with tempfile.TemporaryDirectory(prefix="packing-sample-") as folder:
        given, made = str(Path(folder, "rows.parquet")), str(Path(folder, "samples"))
        pq.write_table(rows, given, row_group_size=ROW_GROUP_ROWS)
        to_samples(spark.read.parquet(given), pinned, seed).write.parquet(made)
        return pq.read_table(made).select(SAMPLE_SCHEMA.names).cast(SAMPLE_SCHEMA)
