"""What messages have besides their content, and reasons with a detail, from the adapter's row to the pack."""

import json

import numpy as np
import pytest

from packing_udfs.contract import IGNORE_INDEX
from tests.unit.packed_shards import outcomes, pack_rows, packs_of, sample

TWO_TURNS = (("Why?", "So."), ("Sure?", "Yes."))


def with_extra(row: dict, at: int, extra: str) -> dict:
    messages = [dict(message) for message in row["messages"]]
    messages[at]["extra"] = extra
    return row | {"messages": messages}


def trained(packed, encoder) -> str:
    (pack,) = packs_of(packed)
    labels = np.asarray(pack["labels"])
    return encoder.tokenizer.decode(labels[labels != IGNORE_INDEX]).replace(" ", "")


def test_an_answer_that_is_not_to_be_trained(encoder):
    row = sample(0, turns=TWO_TURNS)
    whole = trained(pack_rows([row], encoder), encoder)
    masked = trained(pack_rows([with_extra(row, 1, '{"train":false}')], encoder), encoder)
    assert whole == "So.<end_of_utterance>Yes.<end_of_utterance>"
    assert masked == "Yes.<end_of_utterance>"


@pytest.mark.parametrize(
    ("extra", "reason", "detail"),
    [
        ('{"tool_calls":"[1"}', "field_unsupported", "are text that is no JSON"),
        (json.dumps({"tool_calls": "[" * 100_000}), "field_unsupported", "nested too deeply|no JSON"),
        ('{"tool_calls":[{"name":"look"}]}', "template_failed", "tool_calls"),
        ('{"reasoning_content":"hm"}', "template_failed", "does not render reasoning_content"),
    ],
)
def test_a_field_that_cannot_be_used_stops_its_row(encoder, extra, reason, detail):
    rows = [sample(0), with_extra(sample(1, turns=TWO_TURNS), 1, extra)]
    packed = pack_rows(rows, encoder)
    assert outcomes(packed) == {("packed", ""): 1, ("quarantined", reason): 1}
    (found,) = packed.quarantine.to_pylist()
    assert any(words in found["detail"] for words in detail.split("|"))


def test_a_reason_of_the_adapter_has_its_detail(encoder):
    row = sample(1) | {"messages": None, "images": None, "reason": "role_unknown: moderator: 2"}
    packed = pack_rows([sample(0), row], encoder)
    assert outcomes(packed) == {("packed", ""): 1, ("quarantined", "role_unknown"): 1}
    assert packed.quarantine["detail"].to_pylist() == ["moderator: 2"]


def test_tools_that_the_template_leaves_out_stop_the_row(encoder):
    packed = pack_rows([sample(0), sample(1, tools='[{"name":"look"}]')], encoder)
    assert outcomes(packed) == {("packed", ""): 1, ("quarantined", "template_failed"): 1}
