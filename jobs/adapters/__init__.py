"""Rows of a source to samples.

An adapter maps the columns of one kind of dataset to a sample, in expressions that Spark computes in the job and Python
in a forecast (`jobs.adapters.expressions`). To add one, add its class and name it in `ADAPTERS`.
"""

from pyspark.sql.types import StructType

from jobs.adapters.adapter import Adapter
from jobs.adapters.captions import Captions
from jobs.adapters.columns import ColumnError, Columns
from jobs.adapters.finevision import FineVision
from jobs.adapters.kept import kept_fields
from jobs.adapters.messages import Messages, Text
from jobs.adapters.samples import PlainSample, plain_samples, to_samples
from jobs.adapters.unused import unused_fields
from jobs.adapters.vqa import Vqa
from packing_udfs.config import Source

__all__ = [
    "ADAPTERS",
    "Adapter",
    "ColumnError",
    "PlainSample",
    "choose",
    "kept_fields",
    "name_of",
    "plain_samples",
    "to_samples",
    "unused_fields",
    "why",
]

# In the order in which they are tried.
ADAPTERS: dict[str, type[Adapter]] = {
    "finevision": FineVision,
    "messages": Messages,
    "vqa": Vqa,
    "captions": Captions,
    "text": Text,
}


def choose(schema: StructType, source: Source) -> Adapter:
    """The adapter for a source's columns: the one that it names, or the first that finds what it needs.

    Raises ColumnError, which names the columns and what adapters need.
    """
    columns = Columns(schema, source.columns)
    columns.check_given(tuple(dict.fromkeys(name for kind in ADAPTERS.values() for name in kind.USES)))
    if source.adapter != "auto":
        kind = ADAPTERS[source.adapter]
        found = kind.find(columns)
        if found is None:
            raise ColumnError(f"the adapter {source.adapter} needs {kind.NEEDS}; the columns are {columns}")
        return found
    for kind in ADAPTERS.values():
        if found := kind.find(columns):
            return found
    needs = "".join(f"\n  {name}: {kind.NEEDS}" for name, kind in ADAPTERS.items())
    raise ColumnError(
        f"no adapter knows the columns {columns}; name them in `columns`, as in {{caption: txt}}. Adapters need{needs}"
    )


def why(adapter: Adapter, source: Source) -> str:
    """Why a source has its adapter, in words."""
    if source.adapter != "auto":
        return "named by the configuration"
    before = list(ADAPTERS)[: list(ADAPTERS).index(name_of(adapter))]
    others = f"; not {', '.join(before)}, for lack of columns" if before else ""
    return f"auto, by {adapter.NEEDS}{others}"


def name_of(adapter: Adapter) -> str:
    """An adapter's name in the configuration."""
    return next(name for name, kind in ADAPTERS.items() if type(adapter) is kind)
