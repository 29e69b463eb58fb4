"""Expressions over a row: an adapter writes them once, and both Spark and Python compute them.

The job turns expressions into Spark SQL columns, which run in the JVM (`select`). A forecast computes them for one row
in Python, without Spark (`evaluate`). An operation has its meaning in Spark beside its meaning in Python, and
tests/spark/test_adapters.py compares the two on every row that it has. Null is None in Python. As in SQL, an operation
on null is null, unless its meaning in Python handles None.

Operands are expressions, constants, and functions of a list's elements: `turns.transform(lambda turn: turn["user"])`.
Such a function may take the element's index as well.

Rejected: each adapter in Spark SQL and again in Python (two implementations that must agree); the columns of Spark
Connect, which need no JVM (only a server evaluates them).
"""

import base64
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from itertools import chain, zip_longest
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

__all__ = [
    "Expression",
    "array",
    "as_json",
    "coalesce",
    "column",
    "concat",
    "constant",
    "evaluate",
    "once",
    "repeat",
    "select",
    "struct",
    "when",
]


def _operation(in_spark: Callable[..., Any], in_python: Callable[..., Any]) -> Callable[..., "Expression"]:
    """A function of expressions by its two meanings: of columns in Spark, of values in Python."""

    def of(*operands: Any) -> "Expression":
        computes = [_compute_of(operand) for operand in operands]

        def compute(row: "_Row | _Rows") -> Any:
            meaning = in_spark if isinstance(row, _Rows) else in_python
            return meaning(*[compute(row) for compute in computes])

        return Expression(compute)

    return of


def _compute_of(operand: Any) -> "Callable[[_Row | _Rows], Any]":
    """What gives an operand as a meaning takes it; a function of expressions becomes one of columns or values."""
    if isinstance(operand, Expression):
        return operand.compute
    if not callable(operand):
        return lambda row: operand
    elements = [_Element() for _ in signature(operand).parameters]
    body = _compute_of(operand(*elements))

    def given(row: "_Row | _Rows", *values: Any) -> Any:
        row.elements.update(zip(map(id, elements), values, strict=True))
        return body(row)

    if len(elements) == 1:
        return lambda row: lambda element: given(row, element)
    return lambda row: lambda element, second: given(row, element, second)


def _strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """A meaning in Python: None where an operand is None, else what the function gives."""

    def meaning(*values: Any) -> Any:
        for value in values:
            if value is None:
                return None
        return function(*values)

    return meaning


def _operator(function: Callable[..., Any]) -> Callable[..., "Expression"]:
    """An operator of Python's, which Spark's columns have too."""
    return _operation(function, _strict(function))


def _each(elements: Iterable, function: Callable[..., Any]) -> list:
    """What a function of an element, or of it and its index, gives for each element."""
    takes_index = function.__code__.co_argcount == 2
    return [function(element, i) if takes_index else function(element) for i, element in enumerate(elements)]


def _kept(elements: list, is_kept: Callable[..., Any]) -> list:
    return [element for element, keep in zip(elements, _each(elements, is_kept), strict=True) if keep]


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


def _to_json(value: Column) -> Column:
    return F.to_json(value, {"timeZone": "UTC"})  # whatever zone the session is in


def _as_json(value: Any) -> str | None:
    """JSON as Spark writes it: without fields that are null."""
    value = _without_nulls(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if value else None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return list(map(_without_nulls, value)) if isinstance(value, list) else value


class Expression:
    """A value of each row. Operators are those of Spark's columns; `[name]` is a field of a struct."""

    __getitem__ = _operator(operator.getitem)
    __eq__: Any = _operator(operator.eq)
    __ge__ = _operator(operator.ge)
    __gt__ = _operator(operator.gt)
    __sub__ = _operator(operator.sub)
    __invert__ = _operation(operator.invert, _strict(operator.not_))
    __and__ = _operation(operator.and_, lambda a, b: False if False in (a, b) else None if None in (a, b) else True)
    __or__ = _operation(operator.or_, lambda a, b: True if True in (a, b) else None if None in (a, b) else False)
    __hash__ = object.__hash__
    is_null = _operation(lambda value: value.isNull(), lambda value: value is None)
    is_in = _operation(lambda value, among: value.isin(*among), _strict(lambda value, among: value in among))

    # Texts.
    as_text = _operation(lambda value: value.cast("string"), _strict(str))
    lower = _operation(F.lower, _strict(lambda value: str(value).lower()))
    renamed = _operation(  # by a dict; other values stay
        lambda value, names: F.coalesce(*(F.when(value == old, new) for old, new in names.items()), value),
        _strict(lambda value, names: names.get(value, value)),
    )
    has_words = _operation(
        lambda value: value.rlike(r"\S"), _strict(lambda value: re.search(r"\S", value, re.ASCII) is not None)
    )
    has = _operation(lambda value, text: value.contains(text), _strict(lambda value, text: text in value))
    starts = _operation(lambda value, text: value.startswith(text), _strict(lambda value, text: value.startswith(text)))
    start = _operation(lambda value, num: F.substring(value, 1, num), _strict(lambda value, num: value[:num]))
    base64 = _operation(  # the bytes behind the last comma, as in a data: URI; null when they are no base64
        lambda value: F.try_to_binary(F.substring_index(value, ",", -1), F.lit("base64")),
        _strict(lambda value: _from_base64(value.rpartition(",")[2])),
    )
    join = _operation(lambda *texts: F.concat(*map(F.lit, texts)), _strict(lambda *texts: "".join(texts)))
    split = _operation(F.split, _strict(lambda value, pattern: re.split(pattern, value)))
    unwrap = _operation(  # matches of a pattern become what its first group matches
        lambda value, pattern: F.regexp_replace(value, pattern, "$1"),
        _strict(lambda value, pattern: re.sub(pattern, r"\1", value)),
    )

    # Lists. The size of null is 0. An index counts from 0 and is null for a value that is not there.
    size = _operation(lambda items: F.greatest(F.size(items), F.lit(0)), lambda items: len(items or ()))
    get = _operation(F.get, _strict(lambda items, i: items[i] if 0 <= i < len(items) else None))
    index_of = _operation(
        lambda items, value: F.nullif(F.array_position(items, value), F.lit(0)) - 1,
        _strict(lambda items, value: items.index(value) if value in items else None),
    )
    distinct = _operation(F.array_distinct, _strict(lambda items: list(dict.fromkeys(items))))
    max = _operation(F.array_max, _strict(lambda items: max(items, default=None)))
    flatten = _operation(F.flatten, lambda lists: None if lists is None or None in lists else list(chain(*lists)))
    transform = _operation(F.transform, _strict(_each))
    filter = _operation(F.filter, _strict(_kept))
    zip_with = _operation(F.zip_with, _strict(lambda a, b, function: [function(*pair) for pair in zip_longest(a, b)]))
    any = _operation(  # false for null, and where the condition is null
        lambda items, condition: F.coalesce(F.exists(items, condition), F.lit(False)),
        lambda items, condition: True in _each(items or (), condition),
    )

    def __init__(self, compute: "Callable[[_Row | _Rows], Any]"):
        self.compute = compute

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value; join conditions by & and |, negate one by ~")


constant = _operation(lambda value, kind: F.lit(value).cast(kind), lambda value, kind: value)
as_json = _operation(  # of a struct or a list; null for an empty one
    lambda value: F.when(~_to_json(value).isin("{}", "[]"), _to_json(value)), lambda value: _as_json(value)
)
when = _operation(  # of a condition, a value, and a value otherwise, or null
    lambda condition, value, otherwise=None: F.when(condition, value).otherwise(otherwise),
    lambda condition, value, otherwise=None: value if condition else otherwise,
)
coalesce = _operation(
    lambda *values: F.coalesce(*map(F.lit, values)),
    lambda *values: next((value for value in values if value is not None), None),
)
array = _operation(lambda *values: F.array(*map(F.lit, values)), lambda *values: list(values))
repeat = _operation(F.array_repeat, lambda value, num: [value] * num)
concat = _operation(F.concat, _strict(lambda *lists: list(chain(*lists))))
_struct = _operation(
    lambda names, *values: F.struct(*(F.lit(value).alias(name) for name, value in zip(names, values, strict=True))),
    lambda names, *values: dict(zip(names, values, strict=True)),
)


def struct(**fields: Any) -> Expression:
    """A struct of these fields."""
    return _struct(tuple(fields), *fields.values())


def column(name: str) -> Expression:
    """A column of the source."""
    return Expression(lambda row: row.column(name))


def once(expression: Expression) -> Expression:
    """The same, computed once for a row although several expressions use it; not for what depends on an element."""

    def compute(row: "_Row | _Rows") -> Any:
        if id(expression) not in row.known:
            row.known[id(expression)] = row.keep(expression.compute(row))
        return row.known[id(expression)]

    return Expression(compute)


def evaluate(row: Mapping[str, Any], expressions: Mapping[str, Expression]) -> dict[str, Any]:
    """The values of expressions for one row, in Python."""
    values = _Row(row)
    return {name: expression.compute(values) for name, expression in expressions.items()}


def select(rows: DataFrame, names: Sequence[str], expressions: Mapping[str, Expression]) -> DataFrame:
    """The rows' columns of these names, and beside them a column for each expression."""
    columns = _Rows(rows)
    made = [expression.compute(columns).alias(name) for name, expression in expressions.items()]
    return columns.rows.select(*names, *made)


class _Element(Expression):
    """An element of a list, or its index, in a function of it."""

    def __init__(self):
        super().__init__(lambda row: row.elements[id(self)])


class _Row:
    """Gives values of one row in Python."""

    def __init__(self, values: Mapping[str, Any]):
        self.column, self.known, self.elements = values.__getitem__, {}, {}

    def keep(self, value: Any) -> Any:
        return value


class _Rows:
    """Gives columns of rows in Spark; adds one to the rows for what is computed once."""

    def __init__(self, rows: DataFrame):
        self.rows, self.known, self.elements = rows, {}, {}

    def column(self, name: str) -> Column:
        return F.col("`" + name.replace("`", "``") + "`")  # a name may have dots in it

    def keep(self, made: Column) -> Column:
        name = f"_adapted_{len(self.known)}"
        self.rows = self.rows.withColumn(name, made)
        return F.col(name)
