"""Columns that `datasets` reads as JSON because their rows differ in type."""

import json

import pyarrow as pa
import pytest
from datasets import Dataset, Features, Json, List, Value

from jobs.sources.json_values import decoded, decoded_type
from jobs.sources.reading import plain_schema


def column(values: list, feature) -> pa.ChunkedArray:
    return Dataset.from_dict({"x": values}, features=Features({"x": feature})).with_format("arrow")[:]["x"]


def turns_of(values: list, feature) -> list:
    """What the turns of a conversation become, without the fields that they do not have."""
    found = decoded("messages", column(values, feature)).to_pylist()
    return [[turn and {k: v for k, v in turn.items() if v is not None} for turn in turns or ()] for turns in found]


def text(said: str) -> list[dict]:
    return [{"type": "text", "text": said, "index": None}]


def test_texts_lose_their_quotes_and_other_json_stays():
    values = ["a0", 'say "x"', "", None, "42", 42, [1, {"b": None}], {"k": "é"}]
    stored = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values]
    found = decoded("answer", pa.chunked_array([pa.array(stored, pa.json_())])).to_pylist()
    assert found == ["a0", 'say "x"', "", None, "42", "42", '[1, {"b": null}]', '{"k": "é"}']
    said = decoded("answer", pa.chunked_array([pa.array(stored, pa.json_())]), is_said=True).to_pylist()
    assert said == [*found[:6], None, None]


def test_contents_of_several_types_are_parts():
    """One number among texts, and a list of parts: each row is what it was, and the number is no text."""
    feature = List({"role": Value("string"), "content": Json()})
    contents = ["a0", 42, [{"type": "text", "text": "b"}, {"type": "image", "index": 1}], '"42"', None, ["c"]]
    values = [[{"role": "assistant", "content": content}] for content in contents]
    found = [turns[0].get("content") for turns in turns_of(values, feature)]
    assert found == [
        text("a0"),
        [{"type": "json", "text": "42", "index": None}],
        [*text("b"), {"type": "image", "text": None, "index": 1}],
        text("42"),
        None,
        text("c"),
    ]


def test_turns_of_several_types():
    call = [{"function": {"name": "look", "arguments": {"at": "é"}}}]
    values = [
        [{"role": "user", "content": "42"}, {"role": "assistant", "content": None, "tool_calls": call}],
        [{"from": "gpt", "value": "a", "weight": 0, "train": False, "reasoning_content": "hm"}, 7],
    ]
    found = turns_of(values, List(Json()))
    assert found == [
        [
            {"role": "user", "content": text("42")},
            {"role": "assistant", "tool_calls": json.dumps(call, ensure_ascii=False)},
        ],
        [{"role": "gpt", "content": text("a"), "weight": 0.0, "train": 0.0, "reasoning_content": "hm"}, None],
    ]


def test_fields_that_no_adapter_knows_stay_together_so_that_they_are_named():
    turn = {"role": "user", "content": "q", "id": 7, "name": "bob", "thinking": {"a": 1}, "loss": "no", "seen": None}
    (((found,),),) = [turns_of([[turn]], List(Json()))]
    assert found.pop("loss") != found.get("loss")  # NaN, which is neither 0 nor 1
    assert found == {
        "role": "user", "content": text("q"), "name": "bob", "thinking": '{"a": 1}', "other": '{"id": 7}'
    }  # fmt: skip


@pytest.mark.parametrize("value", [7, "text", {"role": "user"}])
def test_what_is_no_conversation(value):
    stored = pa.chunked_array([pa.array([json.dumps(value)], pa.json_())])
    assert decoded("messages", stored).to_pylist() == [None]


def test_types():
    features = Features(
        {"a": Json(), "b": List(Json()), "messages": Json(), "c": Value("string_view"), "d": Value("binary_view")}
    )
    kinds = dict(zip(features, plain_schema(features, list(features)).types, strict=True))
    assert kinds["a"] == kinds["c"] == pa.string()
    assert kinds["b"] == pa.list_(pa.string())
    assert kinds["d"] == pa.binary()
    assert [field.name for field in kinds["messages"].value_type][:2] == ["role", "content"]
    assert decoded_type("x", pa.list_(pa.int64())) == pa.list_(pa.int64())
