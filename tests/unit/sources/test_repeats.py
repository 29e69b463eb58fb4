"""Which rows of a partition repeat an earlier one, and what is left of them."""

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.sources.repeats import Repeats, row_hashes

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
TURN = pa.struct([("user", pa.string()), ("assistant", pa.string())])
SCHEMA = pa.schema(
    [("images", pa.list_(IMAGE)), ("texts", pa.list_(TURN)), ("rating", pa.int64()), ("good", pa.bool_())]
)


def image(data: bytes | None, path: str | None = None) -> dict:
    return {"bytes": data, "path": path}


def row(images=(), texts=(), rating=1, good=True) -> dict:
    return {
        "images": images if images is None else list(images),
        "texts": texts if texts is None else [{"user": a, "assistant": b} for a, b in texts],
        "rating": rating,
        "good": good,
    }


def batch(rows: list[dict]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def test_repeats_lose_their_bytes_and_nothing_else():
    """Rows 2, 3 and 5 repeat row 0, whatever the path; row 4 repeats row 1; in the next batch, row 0 again."""
    one = row([image(b"one", "a.jpg"), image(b"two")], [("q", "a")])
    two = row([image(None), None], [("q", "a")], rating=None)
    again = row([image(b"one", "b.jpg"), image(b"two")], [("q", "a")])
    repeats = Repeats()
    found, which = repeats.empty(batch([one, two, one, again, two, one]))
    assert which.tolist() == [False, False, True, True, True, True]
    assert found.schema == SCHEMA
    left = row([image(b"", "a.jpg"), image(b"")], [("q", "a")])
    renamed = row([image(b"", "b.jpg"), image(b"")], [("q", "a")])
    assert found.to_pylist() == [one, two, left, renamed, two, left]
    found, which = repeats.empty(batch([row(None, None), one]))
    assert which.tolist() == [False, True]
    assert found.to_pylist() == [row(None, None), left]


def test_without_repeats_the_batch_is_the_same():
    given = batch([row([image(b"x")]), row([image(b"y")])])
    found, which = Repeats().empty(given)
    assert found is given
    assert not which.any()


ROWS = [
    row(),
    row(None),
    row([], None),
    row([None]),
    row([image(None)]),
    row([image(b"")]),
    row([image(b"ab")]),
    row([image(b"a"), image(b"b")]),
    row([image(b"b"), image(b"a")]),
    row([image(b"a"), image(b""), image(b"b")]),
    row(texts=[("ab", "")]),
    row(texts=[("a", "b")]),
    row(texts=[("", "ab")]),
    row(texts=[(None, "ab")]),
    row(texts=[("a", "b"), ("", "")]),
    row(rating=0),
    row(rating=None),
    row(good=False),
    row(good=None),
]


def test_rows_that_differ_in_anything_differ():
    assert len(set(row_hashes(batch(ROWS)))) == len(ROWS)


@given(st.lists(st.sampled_from(range(len(ROWS))), min_size=1, max_size=30), st.integers(0, 5))
def test_a_row_repeats_when_it_was_there_before(order, skipped):
    """Also in a slice, whose arrays begin somewhere in their buffers."""
    whole = batch([*ROWS[:skipped], *(ROWS[i] for i in order)])
    _, which = Repeats().empty(whole.slice(skipped))
    assert which.tolist() == [i in order[:at] for at, i in enumerate(order)]


@pytest.mark.parametrize("emptied", [b"media", None])
def test_any_type_of_column(emptied):
    kinds = {
        "when": (pa.timestamp("us"), datetime.datetime(2020, 1, 1)),
        "map": (pa.map_(pa.string(), pa.int32()), [("a", 1)]),
        "binary": (pa.binary(), emptied),
        "double": (pa.float64(), 1.5),
        "time": (pa.time64("us"), datetime.time(1, 2)),
        "none": (pa.date32(), None),
    }
    schema = pa.schema([(name, kind) for name, (kind, _) in kinds.items()])
    values = {name: value for name, (_, value) in kinds.items()}
    other = values | {"map": [("a", 2)]}
    found, which = Repeats().empty(pa.RecordBatch.from_pylist([values, other, values], schema=schema))
    assert which.tolist() == [False, False, True]
    assert found.to_pylist() == [values, other, values | {"binary": b"" if emptied else None}]
