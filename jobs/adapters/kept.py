"""Columns that go with a sample as they are (`sources.N.keep`): licences, ids, addresses.

They become one JSON object of each sample, by their names, in the packs' column `sample_kept`:

    keep: [license, json.url]   ─▶   {"license": "cc-by-4.0", "json.url": "https://example.org/7"}

Nulls are left out. Rejected: a column of packs for each kept one, which would give each dataset another schema.
"""

from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from jobs.adapters import expressions as E
from jobs.adapters.columns import ColumnError, Columns, Field
from jobs.adapters.expressions import Expression
from jobs.adapters.parts import value
from packing_udfs.config import Source

__all__ = ["has_bytes", "kept_fields", "kept_of"]


def kept_fields(schema: StructType, source: Source) -> tuple[Field, ...]:
    """The fields that a source keeps. Raises ColumnError for one that there is not, and for bytes."""
    columns = Columns(schema, {})
    fields = tuple(columns.at(name, "keep") for name in source.keep)
    for field in fields:
        if has_bytes(field.kind):
            raise ColumnError(f"the column {field.name} holds bytes, and columns are kept as text", "keep")
    return fields


def has_bytes(kind: DataType) -> bool:
    """Whether there are bytes in a type, at any depth."""
    if isinstance(kind, StructType):
        return any(has_bytes(field.dataType) for field in kind.fields)
    if isinstance(kind, MapType):
        return has_bytes(kind.keyType) or has_bytes(kind.valueType)
    return has_bytes(kind.elementType) if isinstance(kind, ArrayType) else isinstance(kind, BinaryType)


def kept_of(fields: tuple[Field, ...]) -> Expression:
    """The JSON object of a row's kept fields; null without any."""
    if not fields:
        return E.constant(None, "string")
    return E.as_json(E.struct(**{field.name: value(field) for field in fields}))
