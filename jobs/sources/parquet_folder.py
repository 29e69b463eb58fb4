"""Folders of Parquet files as sources: Unity Catalog Volumes, mounted disks, object stores. No Hub is asked.

    /Volumes/catalog/schema/volume/charts        Databricks; any other absolute path has to be on every machine
    s3://bucket/charts                           what both Spark and fsspec open: s3a://, gs://, abfss://, …

A source is all Parquet files below the folder but for hidden ones (`_…` and `.…`, as Spark has it). Its rows are read
by Spark's own reader, in the JVM and split by row groups, and are named by `_file` (path in the folder) and `_row`
(row in that file), both from Spark's `_metadata`; adapters and ledger are those of any source.

A folder has no commits. What stands for one is a hash of the listing: path, size and state of each file, where the
state is the store's ETag or, without one, the time of modification. The listing is taken before anything is read and
again when all has been read (`check_unchanged`), so a file that changed in between fails the run. Cost: two listings,
and one footer a file, which gives the rows that the ledger must add up to. Rejected: a checksum of every byte, which
reads everything twice; Spark's own modification time, which some stores give in whole seconds.
"""

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from jobs import adapters
from jobs.adapters.provenance import FILE, ROW
from jobs.sources.hub_rows import BATCH_ROWS, Slice, plain_type
from jobs.sources.pinned import PinnedSource, SourceError, SourceFile
from packing_udfs.config import Source
from packing_udfs.storage.folders import open_folder

THREADS = 16  # of footers read at a time


# Where file systems keep what changes with a file; the first that a file has is its state.
_STATES = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")


_NO_NAME = set("%*?[]{}\\")  # patterns to Spark, or %20 to one of its versions


_NO_FILE = _NO_NAME | {":"}  # what stands before it in a file's name is a URL's scheme to Hadoop


@dataclass(frozen=True)
class Listed:
    """A file below a folder: path in it, size in bytes and state, which is another one when the file has changed."""

    path: str
    num_bytes: int
    state: str


def list_files(folder: str) -> list[Listed]:
    """The Parquet files below a folder, sorted by path. Raises ValueError when it is none or holds none."""
    if set(folder.rpartition("://")[2]) & _NO_NAME:
        raise ValueError(
            f"{folder}: Spark takes {' '.join(sorted(_NO_NAME))} in a folder's name for something else; rename it"
        )
    fs, root = open_folder(folder)
    fs.invalidate_cache()
    if not fs.isdir(root):
        raise ValueError(f"{folder} is no folder here")
    start = len(root.rstrip("/")) + 1
    found = {path[start:]: info for path, info in fs.find(root, detail=True).items()}
    names = sorted(p for p in found if p.endswith(".parquet") and not any(x[0] in "._" for x in p.split("/")))
    if not names:
        raise ValueError(f"{folder} has no Parquet files; it has {', '.join(sorted(found)[:5]) or 'nothing'}")
    odd = next((name for name in names if set(name) & _NO_FILE), None)
    if odd:
        raise ValueError(
            f"{folder}: {odd}: Spark takes {' '.join(sorted(_NO_FILE))} in a name for something else; rename it"
        )
    return [Listed(name, found[name]["size"], _state(found[name])) for name in names]


def _state(info: dict) -> str:
    return str(next((info[name] for name in _STATES if info.get(name)), None))


def fingerprint(files: Sequence[Listed]) -> str:
    """SHA-256 of a listing, which stands for a commit."""
    return hashlib.sha256(json.dumps([[f.path, f.num_bytes, f.state] for f in files]).encode()).hexdigest()


def pin(source: Source, field: str) -> PinnedSource:
    """List a folder, choose its adapter by the footers and count its rows. Raises SourceError."""
    try:
        listed = list_files(source.repo)
        with ThreadPoolExecutor(THREADS) as pool:
            footers = list(pool.map(lambda file: _footer(source.repo, file.path), listed))
        schema = _columns(footer.schema.to_arrow_schema() for footer in footers)
        spark_schema = _spark_schema(schema)
        adapter = adapters.choose(spark_schema, source)
    except adapters.ColumnError as error:
        raise SourceError(f"{field}.{error.field}: {source.repo}: {error}") from None
    except (ValueError, OSError) as error:
        raise SourceError(f"{field}.repo: {error}") from None
    files = tuple(SourceFile(f.path, f.num_bytes, m.num_rows) for f, m in zip(listed, footers, strict=True))
    pinned = PinnedSource(source, fingerprint(listed), files, adapter, schema=spark_schema)
    if pinned.has_videos and importlib.util.find_spec("av") is None:
        raise SourceError(f"{field}.video: {source.repo} has videos, which need PyAV: pip install packing-udfs[video]")
    for file, footer in zip(files, footers, strict=True):
        _check(f"{field}.repo: {source.repo}: {file.path}", footer.schema.to_arrow_schema(), schema, pinned.columns)
    return pinned


def _footer(folder: str, path: str) -> pq.FileMetaData:
    fs, root = open_folder(folder)
    try:
        with fs.open(f"{root}/{path}", "rb") as file:
            return pq.read_metadata(file)
    except pa.ArrowException as error:
        raise ValueError(f"{folder}: {path}: {error}") from None


def _columns(schemas: Iterator[pa.Schema]) -> dict[str, pa.DataType]:
    """The columns of all files, in plain types, by the first file that has values of them."""
    found: dict[str, pa.DataType] = {}
    for schema in schemas:
        for column in schema:
            if not pa.types.is_null(column.type):
                found.setdefault(column.name, plain_type(column.type))
    return found


def _spark_schema(columns: dict[str, pa.DataType]) -> StructType:
    """The columns as Spark's, without those of types that it lacks, which no adapter needs."""
    fields = []
    for name, kind in columns.items():
        try:
            fields += from_arrow_schema(pa.schema([(name, kind)])).fields
        except PySparkException:
            continue
    return StructType(fields)


def _check(where: str, schema: pa.Schema, columns: dict[str, pa.DataType], wanted: Sequence[str]) -> None:
    """Raises SourceError for a file that lacks a column which is needed, or has it in another type."""
    there = {column.name: plain_type(column.type) for column in schema}
    missing = [name for name in wanted if name not in there and not name.endswith("_ratings")]
    if missing:
        lacks = f"it lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise SourceError(f"{where}: {lacks}, which other files have; it has {', '.join(there)}")
    for name in wanted:
        kind = there.get(name, columns[name])
        if kind != columns[name] and not pa.types.is_null(kind):
            raise SourceError(f"{where}: its column {name} is {kind}, in the files before it {columns[name]}")


def rows(spark: SparkSession, pinned: PinnedSource) -> DataFrame:
    """The rows with the columns that the adapter reads and their provenance."""
    folder = spark_path(pinned.source.repo)
    schema = StructType([pinned.schema[name] for name in pinned.columns])
    read = spark.read.schema(schema).parquet(*(f"{folder}/{file.path}" for file in pinned.files))
    return read.select(*pinned.columns, _path_in(folder).alias(FILE), F.col("_metadata.row_index").alias(ROW))


def spark_path(folder: str) -> str:
    """A folder as Spark has to be told: a mounted path is no path of the cluster's default file system."""
    return f"file://{folder}" if folder.startswith("/") and not folder.startswith("/Volumes/") else folder


def _path_in(folder: str) -> Column:
    """A row's file by its path in the folder; Spark says file:///folder/a%20b.parquet."""
    address = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
    end = f"{folder.rpartition('://')[2]}/"
    return F.substring(address, F.locate(end, address) + F.lit(len(end)), F.length(address))


def check_unchanged(pinned: PinnedSource) -> None:
    """Raises SourceError when a folder is not as it was pinned: what was read may be of either state."""
    now = {file.path: file for file in list_files(pinned.source.repo)}
    if fingerprint([now[path] for path in sorted(now)]) == pinned.commit:
        return
    then = {file.path: file.num_bytes for file in pinned.files}
    other = sorted(now.keys() ^ then.keys()) or [path for path in then if now[path].num_bytes != then[path]]
    named = f", {other[0]} for one" if other else ""
    raise SourceError(
        f"source {pinned.source.name}: files in {pinned.source.repo} changed while they were read{named}; nothing was "
        "published, run the job again"
    )


class FolderReader:
    """Reads a folder's rows on the driver, as `jobs.sources.hub_rows` does those of a repository."""

    def __init__(self, pinned: PinnedSource):
        self._pinned = pinned

    def partitions(self) -> list[Slice]:
        return [Slice(i) for i in range(len(self._pinned.files))]

    def read(self, partition: Slice) -> Iterator[pa.RecordBatch]:
        path = self._pinned.files[partition.file].path
        fs, root = open_folder(self._pinned.source.repo)
        schema = to_arrow_schema(StructType([self._pinned.schema[name] for name in self._pinned.columns]))
        with fs.open(f"{root}/{path}", "rb") as file:
            parquet, row = pq.ParquetFile(file), 0
            there = [name for name in schema.names if name in parquet.schema_arrow.names]
            for batch in parquet.iter_batches(BATCH_ROWS, columns=there):
                columns = [
                    batch[f.name].cast(f.type) if f.name in there else pa.nulls(len(batch), f.type) for f in schema
                ]
                numbers = pa.array(range(row, row + len(batch)), pa.int64())
                names = [*schema.names, FILE, ROW]
                yield pa.RecordBatch.from_arrays([*columns, pa.repeat(path, len(batch)), numbers], names)
                row += len(batch)
