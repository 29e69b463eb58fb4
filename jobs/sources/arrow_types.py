"""Arrow types that Spark has: no large, fixed-size, dictionary or extension types, and no unsigned integers."""

from collections.abc import Sequence

import pyarrow as pa
from datasets import Features

__all__ = ["plain_column", "plain_schema", "plain_type"]

_PLAIN = {
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that Spark has for values of a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type)) for field in kind])
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return _PLAIN.get(kind, kind)


def plain_schema(features: Features, columns: Sequence[str]) -> pa.Schema:
    """The columns in plain types."""
    schema = features.arrow_schema
    return pa.schema([(name, plain_type(schema.field(name).type)) for name in columns])


def plain_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column in its plain type."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    return column if column.type == kind else column.cast(kind)
