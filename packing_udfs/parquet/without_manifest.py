"""A manifest for packs that have none, from the footers of their files.

For repositories that were copied without their manifest, and for what `datasets` makes of packs (map, filter,
push_to_hub: the same columns, other files). It costs one request a file at every start, sixteen at a time,
and knows less: not what a pack costs in image work (the order balances nothing), nor which processor it was made with
(nothing is checked). Rejected: refusing such data, which is whole; reading it all to know the costs.
"""

import hashlib
import json
import warnings
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract
from packing_udfs.manifest import Manifest
from packing_udfs.parquet.read import RangeFile, column_of, parse_footer
from packing_udfs.parquet.write import PARQUET_TAIL, locations
from packing_udfs.storage.byte_source import Source, Stop

_GUESS = 64 << 10  # bytes from the end of a file that hold its footer, mostly


class MissingManifestWarning(UserWarning):
    """A split has no manifest, so its footers were read."""


def manifest_from_footers(source: Source, split: str) -> Manifest:
    """A manifest of the files below `data/{split}`, or of `data/{split}-….parquet` as `datasets` writes them: where row
    groups lie and how many packs they have.

    Its fingerprint is the SHA-256 of paths, sizes and footers. Warns MissingManifestWarning. Raises FileNotFoundError
    without files, ContractError for files of another kind.
    """
    folder = contract.DATA_DIR.format(split=split)
    files = [file for file in source.list_files("data") if file[0].startswith((f"{folder}/", f"{folder}-"))]
    if not files:
        raise FileNotFoundError(
            f"{source.name}: neither {contract.MANIFEST_JSON.format(split=split)} nor {folder}/*.parquet is there: "
            "check the repository, the split and the revision"
        )
    warnings.warn(
        f"{source.name}: split {split!r} has no manifest; the footers of its {len(files)} files were read in "
        "its place, and steps are not balanced in image work",
        MissingManifestWarning,
        stacklevel=4,
    )
    with ThreadPoolExecutor(source.num_threads) as threads:
        tails = list(threads.map(lambda file: _read_tail(source, *file), files))
    rows, seq_len, seen = [], 1, []
    for (path, num_bytes), tail in zip(files, tails, strict=True):
        metadata = parse_footer(path, tail)
        seen.append([path, num_bytes, hashlib.sha256(tail).hexdigest()])
        for place in locations(metadata, path, num_bytes):
            row_group = metadata.row_group(place["row_group"])
            if row_group.num_rows:
                unknown = [0] * row_group.num_rows
                rows.append({**place, "num_rows": len(unknown), "vision_cost": unknown, "attention_cost": unknown})
                seq_len = max(seq_len, _longest(source, path, metadata, place["row_group"]))
    table = pa.Table.from_pylist(rows, schema=contract.MANIFEST_SCHEMA)
    info = {"contract": contract.VERSION, "seq_len": seq_len, "processor": None}
    return Manifest(info, table, hashlib.sha256(json.dumps(seen).encode()).hexdigest())


def _longest(source: Source, path: str, metadata: pq.FileMetaData, index: int) -> int:
    """Tokens of the longest pack of a row group: from its statistics, or the column where a writer left them out."""
    column = column_of(metadata.row_group(index), "num_tokens")
    if column.statistics is not None and column.statistics.has_min_max:
        return column.statistics.max
    start, length = column.dictionary_page_offset or column.data_page_offset, column.total_compressed_size
    file = RangeFile(source.read(path, start, length, Stop()), start, start + length)
    table = pq.ParquetFile(file, metadata=metadata).read_row_group(index, ["num_tokens"], use_threads=False)
    return max(table["num_tokens"].to_pylist())


def _read_tail(source: Source, path: str, num_bytes: int) -> bytes:
    """The footer with the 8 bytes of length and magic behind it."""
    stop, guess = Stop(), min(_GUESS, num_bytes)
    tail = bytes(source.read(path, num_bytes - guess, guess, stop))
    length = int.from_bytes(tail[-8:-4], "little") + PARQUET_TAIL
    if tail[-4:] != b"PAR1" or length > num_bytes:
        raise contract.ContractError(f"{path}: is no Parquet file")
    return tail[-length:] if length <= guess else bytes(source.read(path, num_bytes - length, length, stop))
