"""A manifest for packs without one, from the footers of their files.

For repositories that were copied without their manifest, and for what `datasets` makes of packs (map, filter,
push_to_hub: the same columns in other files). Cost: one request per file at every start, sixteen at a time. It does
not know the image work of packs, so steps are not balanced, nor their processor, which is not checked. Rejected:
refusing such data, which is complete; reading all of it for the costs.
"""

import hashlib
import json
import warnings
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract
from packing_udfs.manifest import Manifest
from packing_udfs.parquet.ranges import PARQUET_TAIL, column_of, parse_footer, read_columns
from packing_udfs.parquet.write import locations
from packing_udfs.storage.byte_source import Source, Stop

__all__ = ["MissingManifestWarning", "manifest_from_footers"]

_GUESS = 64 << 10  # bytes at the end of a file that mostly contain its footer


class MissingManifestWarning(UserWarning):
    """A split has no manifest, so its footers were read."""


def manifest_from_footers(source: Source, split: str) -> Manifest:
    """A manifest of the files `data/{split}/….parquet`, or of `data/{split}-….parquet` as `datasets` writes them: where
    row groups lie and how many packs they have.

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
        f"{source.name}: split {split!r} has no manifest; the footers of its {len(files)} files were read instead, "
        "and steps are not balanced in image work",
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
            if not (unknown := [0] * place["num_rows"]):
                continue  # an empty row group
            rows.append({**place, "vision_cost": unknown, "attention_cost": unknown})
            seq_len = max(seq_len, _longest(source, place, metadata))
    table = pa.Table.from_pylist(rows, schema=contract.MANIFEST_SCHEMA)
    info = {"contract": contract.VERSION, "seq_len": seq_len, "processor": None}
    return Manifest(info, table, hashlib.sha256(json.dumps(seen).encode()).hexdigest())


def _longest(source: Source, place: dict, metadata: pq.FileMetaData) -> int:
    """Tokens of the longest pack of a row group, from its statistics, or from the column if a writer left them out."""
    column = column_of(metadata.row_group(place["row_group"]), "num_tokens")
    if column.statistics is not None and column.statistics.has_min_max:
        return column.statistics.max
    return max(read_columns(source, place, metadata, ["num_tokens"], Stop())["num_tokens"].to_pylist())


def _read_tail(source: Source, path: str, num_bytes: int) -> bytes:
    """The footer and the `PARQUET_TAIL` bytes after it."""
    stop, guess = Stop(), min(_GUESS, num_bytes)
    tail = bytes(source.read(path, num_bytes - guess, guess, stop))
    length = int.from_bytes(tail[-8:-4], "little") + PARQUET_TAIL
    if tail[-4:] != b"PAR1" or length > num_bytes:
        raise contract.ContractError(f"{path}: is no Parquet file")
    return tail[-length:] if length <= guess else bytes(source.read(path, num_bytes - length, length, stop))
