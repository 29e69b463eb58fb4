"""Folders of Parquet files as sources: Unity Catalog Volumes, mounted disks, object stores. No Hub is asked.

    /Volumes/catalog/schema/volume/charts        Databricks; any other absolute path has to be on every machine
    s3://bucket/charts                           what both Spark and fsspec open: s3a://, gs://, abfss://, …

A source is all Parquet files below the folder except hidden ones (`_…` and `.…`, as Spark has it). Spark's own reader
reads its rows, in the JVM and split by row groups, but for files of other types (`OddFiles`). `_file` (path in the
folder) and `_row` (row in that file) name a row. Adapters and ledger are those of any source.

A folder has no commits. A hash of the listing stands for one: path, size and state of each file, where the state is
the store's ETag or, without one, the time of modification. The listing is taken before reading and again after it
(`check_unchanged`), so a file that changed in between fails the run. Cost: two listings, and one footer a file, which
gives the rows that the ledger must add up to. Rejected: a checksum of every byte, which reads everything twice;
Spark's own modification time, which some stores give in whole seconds.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from functools import reduce
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from jobs.adapters.provenance import FILE, ROW
from jobs.sources.parquet_columns import FooterError, files_of_other_types, read_footer, use_of_files
from jobs.sources.pinned import PinnedSource, SourceError, SourceFile
from jobs.sources.reading import RowReader, Slice, read_parquet
from packing_udfs.config import Source
from packing_udfs.storage.folders import open_folder

__all__ = ["FolderReader", "check_unchanged", "pin", "rows"]

_THREADS = 16  # of footers read at a time
# Where file systems keep what changes with a file; the first that a file has is its state.
_STATES = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")
_NO_FOLDER = frozenset("%*?[]{}\\")  # patterns to Spark, or %20 to one of its versions
_NO_FILE = _NO_FOLDER | {":"}  # Hadoop takes what stands before it in a file's name for a URL's scheme


@dataclass(frozen=True)
class Listed:
    """A file below a folder: path in it, size in bytes and state, which changes with the file."""

    path: str
    num_bytes: int
    state: str


def list_files(folder: str) -> list[Listed]:
    """The Parquet files below a folder, sorted by path. Raises ValueError when it is none or holds none."""
    if set(folder.rpartition("://")[2]) & _NO_FOLDER:
        raise ValueError(_taken(folder, _NO_FOLDER, "a folder's name"))
    fs, root = open_folder(folder)
    fs.invalidate_cache()
    if not fs.isdir(root):
        raise ValueError(f"{folder} is no folder here")
    start = len(root.rstrip("/")) + 1
    found = {path[start:]: info for path, info in dict(fs.find(root, detail=True)).items()}
    names = sorted(path for path in found if path.endswith(".parquet") and not _is_hidden(path))
    if not names:
        raise ValueError(f"{folder} has no Parquet files; it has {', '.join(sorted(found)[:5]) or 'nothing'}")
    for name in names:
        if set(name) & _NO_FILE:
            raise ValueError(_taken(f"{folder}: {name}", _NO_FILE, "a name"))
    return [Listed(name, found[name]["size"], _state(found[name])) for name in names]


def _taken(what: str, letters: Iterable[str], where: str) -> str:
    return f"{what}: Spark takes {' '.join(sorted(letters))} in {where} for something else; rename it"


def _is_hidden(path: str) -> bool:
    return any(name[0] in "._" for name in path.split("/"))


def _state(info: dict) -> str:
    return str(next((info[name] for name in _STATES if info.get(name)), None))


def _fingerprint(files: Sequence[Listed]) -> str:
    """SHA-256 of a listing, which stands for a commit."""
    return hashlib.sha256(json.dumps([astuple(file) for file in files]).encode()).hexdigest()


def pin(source: Source, field: str) -> PinnedSource:
    """List a folder, choose its adapter by the footers and count its rows. Raises SourceError."""
    try:
        listed = list_files(source.repo)
        with ThreadPoolExecutor(_THREADS) as pool:
            footers = list(pool.map(lambda file: _footer(source.repo, file.path), listed))
    except (ValueError, OSError) as error:
        raise SourceError(f"{field}.repo: {error}") from None
    schemas = {file.path: footer.schema.to_arrow_schema() for file, footer in zip(listed, footers, strict=True)}
    schema, use = use_of_files(schemas, source, field)
    odd = files_of_other_types(schemas, use.columns)
    files = tuple(
        SourceFile(f.path, f.num_bytes, m.num_rows, f.path in odd) for f, m in zip(listed, footers, strict=True)
    )
    return PinnedSource(source, _fingerprint(listed), files, schema=schema, **vars(use))


def _footer(folder: str, path: str) -> pq.FileMetaData:
    fs, root = open_folder(folder)
    try:
        with fs.open(f"{root}/{path}", "rb") as file:
            return read_footer(cast(BinaryIO, file))
    except FooterError as error:
        raise ValueError(f"{folder}: {path}: {error}") from None


def rows(spark: SparkSession, pinned: PinnedSource) -> DataFrame:
    """The rows with the columns that the adapter reads and their provenance."""
    folder, schema = _spark_path(pinned.source.repo), pinned.read_schema
    plain = [f"{folder}/{file.path}" for file in pinned.files if not file.is_odd]
    odd = [file.path for file in pinned.files if file.is_odd]
    parts = []
    if plain:
        place = (_path_in(folder).alias(FILE), F.col("_metadata.row_index").alias(ROW))
        parts.append(spark.read.schema(schema).parquet(*plain).select(*pinned.columns, *place))
    if odd:
        spark.dataSource.register(OddFiles)
        options = {"folder": pinned.source.repo, "files": json.dumps(odd), "said": json.dumps(pinned.said)}
        whole = StructType([*schema.fields, StructField(FILE, StringType()), StructField(ROW, LongType())])
        parts.append(spark.read.format(OddFiles.name()).schema(whole).options(**options).load())
    return reduce(DataFrame.unionByName, parts)


def _spark_path(folder: str) -> str:
    """A folder as Spark has to be told: a mounted path is no path of the cluster's default file system."""
    return f"file://{folder}" if folder.startswith("/") and not folder.startswith("/Volumes/") else folder


def _path_in(folder: str) -> Column:
    """A row's file by its path in the folder; Spark says file:///folder/a%20b.parquet."""
    address = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
    end = f"{folder.rpartition('://')[2]}/"
    return F.substring(address, F.locate(end, address) + F.lit(len(end)), F.length(address))


def check_unchanged(pinned: PinnedSource) -> None:
    """Raises SourceError when a folder is not as it was pinned: what was read may be of either state."""
    listed = list_files(pinned.source.repo)
    if _fingerprint(listed) == pinned.commit:
        return
    now = {file.path: file.num_bytes for file in listed}
    then = {file.path: file.num_bytes for file in pinned.files}
    other = sorted(now.keys() ^ then.keys()) or [path for path in then if now[path] != then[path]]
    named = f", {other[0]} for one" if other else ""
    raise SourceError(
        f"source {pinned.source.name}: files in {pinned.source.repo} changed while they were read{named}; nothing was "
        "published, run the job again"
    )


class FolderReader(RowReader):
    """Reads rows of a folder's files without the JVM, as `jobs.sources.hub_rows` reads those of a repository."""

    is_random = True

    def __init__(self, folder: str, paths: Sequence[str], schema: StructType, said: Sequence[str]):
        self.schema, self.paths, self.said, self._folder = to_arrow_schema(schema), paths, said, folder

    def partitions(self) -> list[Slice]:
        return [Slice(i) for i in range(len(self.paths))]

    def tables(self, part: Slice) -> Iterator[pa.Table]:
        fs, root = open_folder(self._folder)
        with fs.open(f"{root}/{self.paths[part.file]}", "rb") as file:
            yield from read_parquet(file, self.schema.names, part)


class OddFiles(DataSource):
    """Files whose types are not quite those of their source, which Spark's reader refuses or takes for text."""

    @classmethod
    def name(cls) -> str:
        return "packing_odd_files"

    def reader(self, schema: StructType) -> FolderReader:
        wanted = StructType([field for field in schema.fields if field.name not in (FILE, ROW)])
        files, said = (json.loads(self.options[name]) for name in ("files", "said"))
        return FolderReader(self.options["folder"], files, wanted, said)
