"""What a published shard's packs are made of, from a hundredth of its file: the seed of packing it again.

The columns that say which samples a pack has lie one behind the other, between tokens and images, so a row group takes
one range and a file one more, for its footer. What packs cost is in the manifest. Rejected: reading them with Spark,
where every sample's id would go through an exchange to its shard.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from packing_udfs import contract, walk
from packing_udfs.parquet.ranges import read_columns, read_footer
from packing_udfs.shard.keep_packs import Key, Previous, checksum
from packing_udfs.storage.byte_source import Source, Stop

__all__ = ["LIGHT", "read_previous"]

LIGHT = ("sample_lengths", "sample_num_images", "sample_ids", "sample_sources")


def read_previous(source: Source, row_groups: Sequence[dict], *, with_tokens: bool = False) -> Previous:
    """The packs of the row groups that `row_groups` (rows of `contract.MANIFEST_SCHEMA`, of any files) describe.

    with_tokens: whether keys have the checksum of the sample's tokens. Raises FetchError for what cannot be had,
    ContractError for files of another kind.
    """
    stop = Stop()
    by_file = {row["file"]: row for row in row_groups}
    footers = {file: read_footer(source, row, stop) for file, row in by_file.items()}
    columns = [*(("input_ids",) if with_tokens else ()), *LIGHT]

    def read(row: dict) -> pa.Table:
        table = read_columns(source, row, footers[row["file"]], columns, stop)
        _check_whole(table, f"{row['file']} row group {row['row_group']}")
        return table

    with ThreadPoolExecutor(source.num_threads) as threads:
        tables = threads.map(read, row_groups)
        return Previous([_packs(table) for table in tables], [list(row["vision_cost"]) for row in row_groups])


def _check_whole(table: pa.Table, where: str) -> None:
    """Raises ContractError for a pack of which not every sample is described."""
    lists = [table[name].combine_chunks() for name in LIGHT]
    has_nulls = any(values.null_count or values.flatten().null_count for values in lists)
    if has_nulls or any(not np.array_equal(values.offsets, lists[0].offsets) for values in lists):
        raise contract.ContractError(f"{where}: its lists of samples disagree")


def _packs(table: pa.Table) -> list[list[Key]]:
    return [list(map(_key, walk.samples(pack))) for pack in walk.packs(table)]


def _key(sample: Mapping[str, Any]) -> Key:
    return Key(
        sample["sample_ids"],
        sample["sample_sources"],
        sample["sample_lengths"],
        sample["sample_num_images"],
        checksum(sample["input_ids"]) if "input_ids" in sample else 0,
    )
