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
import pyarrow.parquet as pq

from packing_udfs import contract
from packing_udfs.parquet.read import RangeFile, parse_footer
from packing_udfs.parquet.write import PARQUET_TAIL
from packing_udfs.shard.keep_packs import Key, Previous, checksum
from packing_udfs.storage.byte_source import Source, Stop

LIGHT = ("sample_lengths", "sample_num_images", "sample_ids", "sample_sources")


def read_previous(source: Source, row_groups: Sequence[dict], *, with_tokens: bool = False) -> Previous:
    """The packs of the row groups that `row_groups` (rows of `contract.MANIFEST_SCHEMA`, of any files) describe.

    with_tokens: whether keys have the checksum of the sample's tokens. Raises FetchError for what cannot be had,
    ContractError for files of another kind.
    """
    stop, footers = Stop(), {}
    for row in row_groups:
        if row["file"] not in footers:
            length = row["footer_bytes"] + PARQUET_TAIL
            if row["footer_offset"] < 0 or row["footer_offset"] + length != row["file_bytes"]:
                raise contract.ContractError(f"{row['file']}: its footer is not where its manifest says")
            footers[row["file"]] = parse_footer(
                row["file"], source.read(row["file"], row["footer_offset"], length, stop)
            )
    columns = [*(("input_ids",) if with_tokens else ()), *LIGHT]
    with ThreadPoolExecutor(source.num_threads) as threads:
        tables = threads.map(lambda row: _read(source, row, footers[row["file"]], columns, stop), row_groups)
        return Previous([_packs(table) for table in tables], [list(row["vision_cost"]) for row in row_groups])


def _read(source: Source, row: dict, metadata: pq.FileMetaData, columns: list[str], stop: Stop) -> pa.Table:
    """Some columns of a row group, in one range from the first to the last of them."""
    where = f"{row['file']} row group {row['row_group']}"
    if not 0 <= row["row_group"] < metadata.num_row_groups:
        raise contract.ContractError(f"{row['file']}: it has no row group {row['row_group']}, which its manifest names")
    group = metadata.row_group(row["row_group"])
    chunks = [group.column(i) for i in range(group.num_columns)]
    spans = [
        (c.dictionary_page_offset or c.data_page_offset, c.total_compressed_size)
        for c in chunks
        if c.path_in_schema.split(".")[0] in columns
    ]
    start, end = min(at for at, _ in spans), max(at + size for at, size in spans)
    file = RangeFile(source.read(row["file"], start, end - start, stop), start, row["file_bytes"])
    try:
        opened = pq.ParquetFile(file, metadata=metadata, pre_buffer=True, page_checksum_verification=True)
        table = opened.read_row_group(row["row_group"], columns=columns, use_threads=False).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise contract.ContractError(f"{where}: its bytes are damaged: {error}") from error
    _check_whole(table, where)
    return table


def _check_whole(table: pa.Table, where: str) -> None:
    """Raises ContractError for a pack of which not every sample is described."""
    counts = [pc.list_value_length(table[name]) for name in LIGHT]
    has_nulls = any(table[name].null_count or pc.list_flatten(table[name]).null_count for name in LIGHT)
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
