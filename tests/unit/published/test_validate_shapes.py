"""Manifests, reports and cards of another shape than they have: found by field, and never a traceback."""

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.damage import TRAIN, card, edit_json, findings


@pytest.fixture
def folder(published, tmp_path) -> Path:
    """A copy to damage."""
    return shutil.copytree(published, tmp_path / "copy")


def test_a_card_may_have_its_one_configuration_as_a_mapping(folder):
    card(folder, "  config_name: packed\n  data_files: [{split: train, path: x}, {split: validation, path: y}]")
    assert findings(folder) == []


GONE = object()


# Field, what it is made, and what is said of it; of the manifest of train, of the report.
OF_INFO = [
    ("runs", [], "runs: List should have at least 1 item"),
    ("runs", None, "runs: Input should be a valid list, it is None"),
    ("runs.0", 3, "runs.0: "),
    ("runs.0.config", GONE, "runs.0.config: missing"),
    ("runs.0.config.pack", {}, "runs.0.config.pack.max_vision_cost: missing"),
    ("runs.0.config.sources.0.weight", GONE, "runs.0.config.sources.0.weight: missing"),
    ("runs.0.run", GONE, "runs.0.run: missing"),
    ("runs.0.sources", None, "runs.0.sources: "),
    ("runs.0.sources", [], "runs.0.sources: "),
    ("runs.0.sources.0.num_rows", "x", "runs.0.sources.0.num_rows: Input should be a valid integer, it is 'x'"),
    ("totals", None, "totals: "),
    ("sums", None, "sums: "),
    ("sums", {}, "sums.bound: missing"),
    ("sums.histograms", None, "sums.histograms: "),
    ("sums.histograms.pack_fill", 3, "sums.histograms.pack_fill: "),
    ("sums.bound", 0, "sums.bound: "),
    ("quality", None, "quality: "),
    ("seq_len", 0, "seq_len: "),
    ("processor", None, "processor: "),
    ("processor.fingerprint", GONE, "processor.fingerprint: missing"),
    ("num_shards", GONE, "num_shards: missing"),
    ("num_shards", 3, "num_shards: Value error, 3 is no power of two, it is 3"),
    ("taken_down", "x", "taken_down: "),
    ("taken_down", None, "taken_down: "),
    ("taken_down", ["x"], "taken_down.0: "),
]


OF_REPORT = [
    ("", {}, "run: missing"),
    ("", [], ": Input should be a valid dictionary"),
    ("", 3, ": "),
    ("config", GONE, "config: missing"),
    ("splits", None, "splits: "),
    ("splits", {}, "splits: Dictionary should have at least 1 item"),
    ("splits.train.sums", GONE, "splits.train.sums: missing"),
    ("splits.train.drawn", 3, "splits.train.drawn: "),
    ("ledger", None, "ledger: "),
    ("ledger", ["x"], "ledger.0: "),
    ("sources", None, "sources: "),
    ("quarantine", GONE, "quarantine: missing"),
    ("quarantine", [1], "quarantine: "),
]


def put(document, field: str, value: object):
    """A document with a field of a dotted name set, or gone."""
    if not field:
        return value
    name, _, rest = field.partition(".")
    key = int(name) if isinstance(document, list) else name
    if rest:
        document[key] = put(document[key], rest, value)
    elif value is GONE:
        del document[key]
    else:
        document[key] = value
    return document


@pytest.mark.parametrize(
    ("file", "field", "value", "said"),
    [(TRAIN, *case) for case in OF_INFO] + [("report.json", *case) for case in OF_REPORT],
)
def test_a_document_of_another_shape_is_found(file, field, value, said, folder):
    document = json.loads((folder / file).read_text("utf-8"))
    (folder / file).write_text(json.dumps(put(document, field, value)), "utf-8")
    found = findings(folder)
    start = f"{file}{'' if said.startswith(':') else ' '}{said}"
    assert [line for line in found if line.startswith(start)]
    others = [line for line in found if not line.startswith((f"{file} ", f"{file}:"))]
    assert not others


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop_columns(["file"]), ": its columns are not the contract's"),
        (lambda t: t.slice(0, 0), ": no row group"),
        (lambda t: column(t, "file", [None] * len(t)), " file: nulls; the contract has none"),
        (
            lambda t: column(t, "file", ["data/train/../x"] * len(t)),
            " file: 'data/train/../x' is not in data/train/",
        ),
        (lambda t: column(t, "vision_cost", [None] * len(t)), " vision_cost: nulls; the contract has none"),
        (lambda t: column(t, "vision_cost", [[None]] * len(t)), " vision_cost: nulls; the contract has none"),
        (lambda t: column(t, "attention_cost", [[]] * len(t)), " attention_cost: not a value for each pack"),
        (lambda t: column(t, "num_rows", [None] * len(t)), " num_rows: nulls; the contract has none"),
        (lambda t: column(t, "row_group", [-1] * len(t)), " row_group: -1, at least 0 is possible"),
    ],
)
def test_row_groups_of_another_shape_are_found(change, said, folder):
    path = folder / "manifest/train.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    edit_json(folder, TRAIN, lambda info: info.update(row_groups_sha256=sha256))
    found = findings(folder)
    assert found[0].startswith(f"manifest/train.parquet{said}")
    assert not [line for line in found if not line.startswith("manifest/train.parquet")]


def column(table: pa.Table, name: str, values: list) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.set_column(at, name, pa.array(values, table.schema.field(name).type))
