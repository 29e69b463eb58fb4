"""Expressions over a row: an adapter writes them once, and both Spark and Python compute them.

The job turns expressions into Spark SQL columns, which run in the JVM (`select`). A forecast computes them for one row
in Python, without Spark (`evaluate`). Each operation has its two meanings side by side, under "Operations" below.
tests/spark/test_adapters.py compares them on every row that it has.

Operands are expressions, constants, and functions of a list's elements: `transform(turns, lambda turn: turn["user"])`.
Such a function may take the element's index as well. Null is None in Python. As in SQL, an operation on null is null,
unless its meaning in Python handles None.

Rejected: each adapter in Spark SQL and again in Python (two implementations that must agree); the columns of Spark
Connect, which need no JVM (only a server evaluates them).
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import chain, zip_longest
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

__all__ = [
    "Expression",
    "array",
    "array_max",
    "coalesce",
    "column",
    "concat",
    "constant",
    "evaluate",
    "exists",
    "filter_by",
    "flatten",
    "get",
    "index_of",
    "lower",
    "once",
    "regexp_replace",
    "repeat",
    "select",
    "size",
    "split",
    "struct",
    "text",
    "transform",
    "trim",
    "when",
    "zip_with",
]


@dataclass(frozen=True)
class Operation:
    """A function of operands, by its meaning in Spark and in Python."""

    in_spark: Callable[..., Column]
    in_python: Callable[..., Any]

    def __call__(self, *operands: Any) -> "Expression":
        return Expression(lambda row: row.apply(self, [_operand(row, operand) for operand in operands]))


def _strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """A meaning in Python: None where an operand is None, else what the function gives."""
    return lambda *values: None if any(value is None for value in values) else function(*values)


def _operator(in_spark: Callable[..., Any], in_python: Callable[..., Any] | None = None) -> Callable[..., "Expression"]:
    """A method of Expression. Python's own operators work on Spark's columns as well."""
    operation = Operation(in_spark, in_python or _strict(in_spark))
    return lambda *operands: operation(*operands)


_equal = _operator(operator.eq)


class Expression:
    """A value of each row. Operators are those of Spark's columns; `[name]` is a field of a struct."""

    __getitem__ = _operator(operator.getitem)
    __ge__ = _operator(operator.ge)
    __sub__ = _operator(operator.sub)
    __invert__ = _operator(operator.invert, _strict(operator.not_))
    __and__ = _operator(operator.and_, lambda a, b: False if False in (a, b) else None if None in (a, b) else True)
    __or__ = _operator(operator.or_, lambda a, b: True if True in (a, b) else None if None in (a, b) else False)
    is_null = _operator(lambda value: value.isNull(), lambda value: value is None)
    is_in = _operator(lambda value, among: value.isin(*among), _strict(lambda value, among: value in among))

    def __init__(self, compute: "Callable[[_Row | _Rows], Any]"):
        self.compute = compute

    def __eq__(self, other: object) -> Any:
        return _equal(self, other)

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value; join conditions by & and |, negate one by ~")


class _Row:
    """A row in Python: gives the value of an expression."""

    def __init__(self, values: Mapping[str, Any]):
        self._values = values
        self._computed: dict[int, Any] = {}

    def column(self, name: str) -> Any:
        return self._values[name]

    def apply(self, operation: Operation, operands: Iterable[Any]) -> Any:
        return operation.in_python(*operands)

    def once(self, inner: Expression) -> Any:
        if id(inner) not in self._computed:
            self._computed[id(inner)] = inner.compute(self)
        return self._computed[id(inner)]


class _Rows:
    """Rows in Spark: gives the column of an expression, and adds one to the rows where an expression asks for it."""

    def __init__(self, rows: DataFrame):
        self.rows = rows
        self._added: dict[int, Column] = {}

    def column(self, name: str) -> Column:
        return F.col("`" + name.replace("`", "``") + "`")  # a name may have dots in it

    def apply(self, operation: Operation, operands: Iterable[Any]) -> Column:
        return operation.in_spark(*operands)

    def once(self, inner: Expression) -> Column:
        if id(inner) not in self._added:
            computed, name = inner.compute(self), f"_adapted_{len(self._added)}"
            self.rows, self._added[id(inner)] = self.rows.withColumn(name, computed), F.col(name)
        return self._added[id(inner)]


def evaluate(row: Mapping[str, Any], expressions: Iterable[Expression]) -> list[Any]:
    """The values of expressions for one row, in Python."""
    values = _Row(row)
    return [expression.compute(values) for expression in expressions]


def select(rows: DataFrame, names: Sequence[str], expressions: Mapping[str, Expression]) -> DataFrame:
    """The rows' columns of these names, and beside them a column for each expression."""
    columns = _Rows(rows)
    made = [expression.compute(columns).alias(name) for name, expression in expressions.items()]
    return columns.rows.select(*names, *made)


def column(name: str) -> Expression:
    """A column of the source."""
    return Expression(lambda row: row.column(name))


def once(expression: Expression) -> Expression:
    """The same, computed once for a row although several expressions use it. Not for what depends on an element."""
    return Expression(lambda row: row.once(expression))


def _operand(row: "_Row | _Rows", operand: Any) -> Any:
    """An operand as an operation's meaning takes it. A function of expressions becomes one of columns or values."""
    if isinstance(operand, Expression):
        return operand.compute(row)
    if not callable(operand):
        return operand
    if len(signature(operand).parameters) == 1:
        return lambda element: _operand(row, operand(_known(element)))
    return lambda element, second: _operand(row, operand(_known(element), _known(second)))


def _known(value: Any) -> Expression:
    return Expression(lambda row: value)


# Operations: name = Operation(in Spark, in Python)


def _each(elements: list, function: Callable[..., Any]) -> list:
    """What a function of an element, or of it and its index, gives for each element."""
    takes_index = len(signature(function).parameters) == 2
    return [function(element, i) if takes_index else function(element) for i, element in enumerate(elements)]


def _kept(elements: list, is_kept: Callable[..., Any]) -> list:
    return [element for element, keep in zip(elements, _each(elements, is_kept), strict=True) if keep]


def _paired(first: list, second: list, function: Callable[..., Any]) -> list:
    return [function(a, b) for a, b in zip_longest(first, second)]


def _struct(names: Sequence[str], *values: Any) -> Column:
    return F.struct(*(F.lit(value).alias(name) for name, value in zip(names, values, strict=True)))


constant = Operation(lambda value, kind: F.lit(value).cast(kind), lambda value, kind: value)
text = Operation(lambda value: value.cast("string"), _strict(str))
coalesce = Operation(
    lambda *values: F.coalesce(*map(F.lit, values)),
    lambda *values: next((value for value in values if value is not None), None),
)
when = Operation(
    lambda condition, value, otherwise=None: F.when(condition, value).otherwise(otherwise),
    lambda condition, value, otherwise=None: value if condition else otherwise,
)
_named = Operation(_struct, lambda names, *values: dict(zip(names, values, strict=True)))

lower = Operation(F.lower, _strict(lambda value: str(value).lower()))
trim = Operation(F.trim, _strict(lambda value: value.strip(" ")))
split = Operation(F.split, _strict(lambda value, pattern: re.split(pattern, value)))
regexp_replace = Operation(  # `$1` in the replacement is the first group
    F.regexp_replace, _strict(lambda value, pattern, by: re.sub(pattern, by.replace("$", "\\"), value))
)

array = Operation(lambda *values: F.array(*map(F.lit, values)), lambda *values: list(values))
size = Operation(
    lambda elements: F.greatest(F.size(elements), F.lit(0)), lambda elements: len(elements or ())
)  # of null: 0
get = Operation(F.get, _strict(lambda elements, i: elements[i] if 0 <= i < len(elements) else None))
repeat = Operation(F.array_repeat, _strict(lambda value, num: [value] * num))
concat = Operation(F.concat, _strict(lambda *lists: list(chain(*lists))))
flatten = Operation(F.flatten, lambda lists: None if lists is None or None in lists else list(chain(*lists)))
array_max = Operation(F.array_max, _strict(lambda elements: max(elements, default=None)))
index_of = Operation(  # the first, from 0; null where there is none
    lambda elements, value: F.nullif(F.array_position(elements, value), F.lit(0)) - 1,
    _strict(lambda elements, value: elements.index(value) if value in elements else None),
)
transform = Operation(F.transform, _strict(_each))
filter_by = Operation(F.filter, _strict(_kept))
exists = Operation(  # false for null, and where the condition is null
    lambda elements, condition: F.coalesce(F.exists(elements, condition), F.lit(False)),
    lambda elements, condition: True in _each(elements or [], condition),
)
zip_with = Operation(F.zip_with, _strict(_paired))


def struct(**fields: Any) -> Expression:
    """A struct of these fields."""
    return _named(tuple(fields), *fields.values())
