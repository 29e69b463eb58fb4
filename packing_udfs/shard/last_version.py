"""What a published shard's packs are made of, from a hundredth of its file: the seed of packing it again.

The columns that say which samples a pack has lie one behind the other, between tokens and images, so a row group takes
one range and a file one more, for its footer. What packs cost is in the manifest. Rejected: reading them with Spark,
where every sample's id would go through an exchange to its shard.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packing_udfs import contract
from packing_udfs.parquet.ranges import read_columns, read_footer
from packing_udfs.shard.keep_packs import Key, Previous, checksum
from packing_udfs.storage.byte_source import Source, Stop

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
    counts = [pc.call_function("list_value_length", [table[name]]) for name in LIGHT]
    has_nulls = any(
        table[name].null_count or pc.call_function("list_flatten", [table[name]]).null_count for name in LIGHT
    )
    if has_nulls or any(other != counts[0] for other in counts):
        raise contract.ContractError(f"{where}: its lists of samples disagree")


def _packs(table: pa.Table) -> list[list[Key]]:
    def lists(name: str) -> list[list]:
        return table[name].to_pylist()

    ids = table["input_ids"].chunk(0) if "input_ids" in table.column_names else None
    packs = []
    for pack, samples in enumerate(zip(*map(lists, (*LIGHT,)), strict=True)):
        lengths, num_images, sample_ids, sources = samples
        sums = [0] * len(lengths)
        if ids is not None:
            parts = np.split(ids[pack].values.to_numpy(), np.cumsum(lengths)[:-1])
            sums = [checksum(part) for part in parts]
        packs.append([Key(*key) for key in zip(sample_ids, sources, lengths, num_images, sums, strict=True)])
    return packs
