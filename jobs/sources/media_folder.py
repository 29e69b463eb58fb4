"""Folders of images or videos on the Hub: a metadata file names the file of each row, beside its other columns.

    train/metadata.jsonl     {"file_name": "cats/1.jpg", "text": "a cat"}
    train/cats/1.jpg

`datasets` reads them too, but as one shard whatever they hold, and in a changing order, since its list of metadata
files is a set. Threads fetch the bytes of the files: there are as many requests as files.
"""

import posixpath
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features, Image, List, Video
from datasets.table import table_cast
from huggingface_hub import HfFileSystem
from pyarrow import csv, json

__all__ = ["METADATA_NAMES", "read_folder"]

METADATA_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_THREADS = 8
_JSON_BLOCK = 1 << 26  # a row is smaller


def read_folder(fs: HfFileSystem, address: str, features: Features, rows: slice, batch_rows: int) -> Iterator[pa.Table]:
    """The rows of a metadata file with the bytes of their files, as tables of `features` and `batch_rows` rows.

    A file that is not there, and one whose name leads out of the folder, has no bytes: its row is quarantined.
    """
    table = _metadata(fs, address.removeprefix("hf://"))[rows]
    folder = posixpath.dirname(address.removeprefix("hf://"))
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(table), batch_rows):
            part = table.slice(start, batch_rows)
            columns = {}
            for name, feature in features.items():
                names = _column_of_names(name, feature, part.column_names)
                if names is None:
                    columns[name] = part[name]
                else:
                    kind = features.arrow_schema.field(name).type
                    columns[name] = pa.array(_files(fs, pool, folder, part[names].to_pylist()), kind)
            yield table_cast(pa.table(columns), features.arrow_schema)


def _metadata(fs: HfFileSystem, path: str) -> pa.Table:
    with fs.open(path, "rb") as file:
        if path.endswith(".parquet"):
            return pq.read_table(pa.BufferReader(file.read()))
        if path.endswith(".csv"):
            return csv.read_csv(file, parse_options=csv.ParseOptions(newlines_in_values=True))
        return json.read_json(file, json.ReadOptions(block_size=_JSON_BLOCK))


def _column_of_names(name: str, feature, there: list[str]) -> str | None:
    """The column whose file names become the column `name`: `file_name` for `image`, `left_file_name` for `left`."""
    if isinstance(feature, Image | Video):
        candidates = (f"{name}_file_name", "file_name")
    elif isinstance(feature, List) and isinstance(feature.feature, Image | Video):
        candidates = (f"{name}_file_names", "file_names")
    else:
        return None
    return next(candidate for candidate in candidates if candidate in there)


def _files(fs: HfFileSystem, pool: ThreadPoolExecutor, folder: str, names: list) -> list:
    """Names, or lists of them, as {"bytes", "path"} of the files."""

    def fetch(name: str | None) -> dict | None:
        if name is None:
            return None
        path = posixpath.normpath(posixpath.join(folder, name))
        if not path.startswith(f"{folder}/") or "://" in name:
            return {"bytes": None, "path": name}
        try:
            return {"bytes": fs.cat_file(path), "path": name}
        except FileNotFoundError:
            return {"bytes": None, "path": name}

    if any(isinstance(name, list) for name in names):
        return [some if some is None else list(pool.map(fetch, some)) for some in names]
    return list(pool.map(fetch, names))
