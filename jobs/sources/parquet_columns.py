"""The columns of a source's Parquet files: the union over their footers, and what of a file does not fit it.

A column may be null, or a list of nulls, in one file and a list of images in the next: its type is that of the file
with values. Integers and floats take the wider type, structs the fields of both. Files whose types really differ are
refused, with both names. Rejected: the types of the first file, as `datasets` takes them, which lose what comes later.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import NullType, StructType

from jobs.sources.json_values import decoded_type, has_json
from jobs.sources.pinned import SourceError, Use, refuse_mixed_system, use_of
from jobs.sources.reading import joined, plain_type
from packing_udfs.config import Source

__all__ = [
    "FooterError",
    "United",
    "as_spark",
    "fault_of",
    "files_of_other_types",
    "read_footer",
    "united",
    "use_of_files",
]

_TAIL = 8  # bytes: the footer's length and the magic


class FooterError(ValueError):
    """A file that has no sound Parquet footer."""


class United(NamedTuple):
    """A column of all files: its type, in those that Spark has, and the first file that has values of it."""

    kind: pa.DataType
    file: str


def read_footer(file: BinaryIO) -> pq.FileMetaData:
    """The footer of an open Parquet file. Raises FooterError for bytes that are none, OSError of the network."""
    num_bytes = file.seek(0, 2)
    file.seek(max(0, num_bytes - _TAIL))
    tail = file.read(_TAIL)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or length + _TAIL > num_bytes:
        raise FooterError(f"it has no Parquet footer; it has {num_bytes} bytes")
    file.seek(num_bytes - _TAIL - length)
    footer = file.read(length)
    try:
        metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + footer + tail))
        metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise FooterError(f"its Parquet footer is damaged: {error}") from None
    return metadata


def use_of_files(schemas: Mapping[str, pa.Schema], source: Source, field: str) -> tuple[StructType, Use]:
    """The columns of all files of a source, by their paths, and what becomes of them.

    Raises SourceError for a file that does not fit the others, and as `use_of`.
    """
    columns = united(schemas.items())
    schema = as_spark({name: column.kind for name, column in columns.items()})
    use = use_of(schema, source, field)
    for path, of_file in schemas.items():
        refuse_mixed_system(((f.name, f.type) for f in of_file), use, f"{field}.repo: {source.repo}: {path}")
        if fault := fault_of(of_file, columns, use.columns):
            raise SourceError(f"{field}.repo: {source.repo}: {path}: {fault}")
    return schema, use


def files_of_other_types(schemas: Mapping[str, pa.Schema], wanted: Sequence[str]) -> set[str]:
    """Files with a wanted column whose type is not that of all files, or that holds JSON: its values are converted."""
    columns = united(schemas.items())
    return {
        path
        for path, schema in schemas.items()
        for name in wanted
        if name in schema.names
        and (has_json(schema.field(name).type) or _kind(schema.field(name)) != columns[name].kind)
    }


def united(schemas: Iterable[tuple[str, pa.Schema]]) -> dict[str, United]:
    """The columns of all files by name. `schemas`: of each file, by its path."""
    found: dict[str, United] = {}
    for path, schema in schemas:
        for column in schema:
            kind, before = _kind(column), found.get(column.name)
            both = kind if before is None else joined(before.kind, kind)
            if before is None or (pa.types.is_null(before.kind) and both is not None):
                found[column.name] = United(kind, path)
            elif both is not None:
                found[column.name] = United(both, before.file)
    return found


def _kind(column: pa.Field) -> pa.DataType:
    return plain_type(decoded_type(column.name, column.type))


def as_spark(kinds: Mapping[str, pa.DataType]) -> StructType:
    """Columns as Spark's. One of a type that Spark lacks is void, which no adapter can use."""
    schema = StructType()
    for name, kind in kinds.items():
        try:
            schema.add(name, from_arrow_type(kind))
        except PySparkException:
            schema.add(name, NullType())
    return schema


def fault_of(schema: pa.Schema, columns: Mapping[str, United], wanted: Sequence[str]) -> str:
    """Why a file cannot be read: it lacks columns that are needed, or has one in another type; "" when it can.

    Columns of ratings may be absent.
    """
    missing = [name for name in wanted if name not in schema.names and not name.endswith("_ratings")]
    if missing:
        named = f"the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
        return f"it lacks {named}, which other files have; it has {', '.join(schema.names)}"
    for name in wanted:
        if name in schema.names:
            kind, (other, file) = _kind(schema.field(name)), columns[name]
            if joined(other, kind) is None:
                return f"its column {name} is {kind}, and {other} in {file}"
    return ""
