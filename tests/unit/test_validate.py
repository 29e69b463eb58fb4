"""A published dataset damaged in every way we could think of: each is found, named, and nothing else is."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

from jobs import inspect, report, validate
from jobs.packed import open_packed
from packing_udfs import contract, manifest
from packing_udfs.shard_file import write_shard
from tests.unit.demo_samples import DEMO, demo_rows
from tests.unit.published import publish_demo

FIRST = "data/train/00000.parquet"
TRAIN, VALIDATION = "manifest/train.json", "manifest/validation.json"


@pytest.fixture
def folder(published, tmp_path) -> Path:
    """A copy to damage."""
    return shutil.copytree(published, tmp_path / "copy")


def findings(folder: Path, **options) -> list[str]:
    return [str(finding) for finding in validate.validate(open_packed(str(folder)), **options)]


def rewrite(folder: Path, file: str, change: Callable[[list[dict]], None], row_group: int = 0) -> None:
    """Change the packs of a row group and make the manifest fit: what is wrong then is wrong in the packs."""
    path, split = folder / file, file.split("/")[1]
    parquet = pq.ParquetFile(path)
    tables = [parquet.read_row_group(i) for i in range(parquet.num_row_groups)]
    packs = tables[row_group].to_pylist()
    change(packs)
    tables[row_group] = pa.Table.from_pylist(packs, schema=contract.PACK_SCHEMA)
    rows = write_shard(str(path), file, [table.replace_schema_metadata(None) for table in tables])
    edit_rows(folder, split, lambda old: [*(row for row in old if row["file"] != file), *rows.to_pylist()])
    totals = report.totals(pq.read_table(folder / contract.MANIFEST_PARQUET.format(split=split)))
    edit_json(folder, contract.MANIFEST_JSON.format(split=split), lambda info: info.update(totals=totals))
    edit_json(folder, "report.json", lambda found: found["splits"][split].update(totals=totals))


def edit_rows(folder: Path, split: str, change: Callable[[list[dict]], list[dict]]) -> None:
    """Change the manifest's row groups, sorted by file, with the hash that the JSON file has of them."""
    json_path = folder / contract.MANIFEST_JSON.format(split=split)
    parquet_path = folder / contract.MANIFEST_PARQUET.format(split=split)
    rows = sorted(change(pq.read_table(parquet_path).to_pylist()), key=lambda row: (row["file"], row["row_group"]))
    info = json.loads(json_path.read_text("utf-8"))
    info_json, parquet = manifest.dump(info, pa.Table.from_pylist(rows, schema=contract.MANIFEST_SCHEMA))
    json_path.write_bytes(info_json)
    parquet_path.write_bytes(parquet)


def edit_json(folder: Path, file: str, change: Callable[[dict], object]) -> None:
    found = json.loads((folder / file).read_text("utf-8"))
    change(found)
    (folder / file).write_text(json.dumps(found), "utf-8")


def in_rows(change: Callable[[dict], object]) -> Callable[[list[dict]], list[dict]]:
    """Change the manifest's first row."""

    def changed(rows: list[dict]) -> list[dict]:
        change(rows[0])
        return rows

    return changed


def test_a_sound_dataset(published):
    assert findings(published, processor=str(DEMO / "processor"), decodes=True) == []


def test_it_reads_every_pack(published, monkeypatch):
    """Else a sound dataset would say nothing."""
    seen = []
    of_module = validate.check_data

    def check_data(*arguments):
        yield from of_module(*arguments)
        seen.append(sum(map(len, arguments[-1].ids)))

    monkeypatch.setattr(validate, "check_data", check_data)
    findings(published)
    assert sum(seen) == 218


def without_card_and_page(folder: Path) -> None:
    for name in ("README.md", "report.html", "report.json"):
        (folder / name).unlink()


def swap_labels(packs: list[dict]) -> None:
    labels = packs[2]["labels"]
    at = next(i for i, label in enumerate(labels) if label >= 0)
    labels[at] += 1


def swap_images(packs: list[dict]) -> None:
    """The first two images of different sizes change places."""
    pack = next(p for p in packs if len({(s["height"], s["width"]) for s in p["image_sizes"]}) > 1)
    sizes = pack["image_sizes"]
    other = next(i for i, size in enumerate(sizes) if size != sizes[0])
    pack["images"][0], pack["images"][other] = pack["images"][other], pack["images"][0]


def repeat_sample(packs: list[dict]) -> None:
    packs[1]["sample_ids"][0] = packs[0]["sample_ids"][0]


def flip(folder: Path, file: str, offset: int) -> None:
    with open(folder / file, "r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 0x40]))


def flip_in_image(folder: Path) -> None:
    """A bit in the middle of the images' column: only the page's checksum can tell."""
    metadata = pq.read_metadata(folder / FIRST).row_group(1)
    column = next(c for i in range(metadata.num_columns) if (c := metadata.column(i)).path_in_schema.endswith(".bytes"))
    flip(folder, FIRST, column.data_page_offset + column.total_compressed_size // 2)


def recompress(folder: Path) -> None:
    """The same packs in a file that other options wrote."""
    parquet = pq.ParquetFile(folder / FIRST)
    tables = [parquet.read_row_group(i) for i in range(parquet.num_row_groups)]
    with pq.ParquetWriter(folder / FIRST, contract.PACK_SCHEMA) as writer:
        for table in tables:
            writer.write_table(table.cast(contract.PACK_SCHEMA))


def leak(folder: Path) -> None:
    """A sample of train in validation too."""
    pack = pq.ParquetFile(folder / FIRST).read_row_group(0, ["sample_ids"]).to_pylist()[0]

    def change(packs: list[dict]) -> None:
        packs[0]["sample_ids"][0] = pack["sample_ids"][0]

    rewrite(folder, "data/validation/00000.parquet", change)


def drop_quarantine_rows(folder: Path) -> None:
    (path,) = (folder / "quarantine/train").glob("*.parquet")
    pq.write_table(pq.read_table(path).slice(2), path)


def odd_reason(folder: Path) -> None:
    (path,) = (folder / "quarantine/train").glob("*.parquet")
    rows = pq.read_table(path).to_pylist()
    rows[0]["reason"] = "bad_luck"
    pq.write_table(pa.Table.from_pylist(rows, schema=contract.QUARANTINE_SCHEMA), path)


# What is done to the folder, and what every line of the findings starts with, in order.
DAMAGE = {
    "a file is gone": (
        lambda f: (f / FIRST).unlink(),
        [f"{FIRST}: missing; the manifest names it", f"{TRAIN} runs.sources.num_packed: "],
    ),
    "a file too many": (
        lambda f: shutil.copy(f / FIRST, f / "data/train/99999.parquet"),
        ["data/train/99999.parquet: extra; no manifest names it"],
    ),
    "a split that no manifest has": (
        lambda f: shutil.copytree(f / "data/train", f / "data/old"),
        [f"data/old/0000{i}.parquet: extra; no manifest" for i in range(4)],
    ),
    "card, page and report are gone": (
        without_card_and_page,
        ["README.md: missing", "report.json: missing", "report.html: missing"],
    ),
    "a file is cut": (
        lambda f: (f / FIRST).write_bytes((f / FIRST).read_bytes()[:-100]),
        [f"{FIRST} file_bytes: ", f"{FIRST}: cannot be read: ", f"{TRAIN} runs.sources.num_packed: "],
    ),
    "a bit in an image": (
        flip_in_image,
        [f"{FIRST} row group 1: its bytes are damaged: ", f"{TRAIN} runs.sources.num_packed: "],
    ),
    "a file by another writer": (
        recompress,
        [f"{FIRST} file_bytes: ", f"{FIRST} metadata huggingface: ", f"{FIRST} metadata ", f"{FIRST} row group "],
    ),
    "another label": (lambda f: rewrite(f, FIRST, swap_labels), [f"{FIRST} row group 0 pack 2 labels: "]),
    "images change places": (lambda f: rewrite(f, FIRST, swap_images), [f"{FIRST} row group 0 pack "]),
    "a sample twice": (
        lambda f: rewrite(f, FIRST, repeat_sample),
        ["data/train sample_ids: 1 samples stand in it twice"],
    ),
    "a sample in both splits": (leak, ["data/train sample_ids: 1 samples are in validation too"]),
    "another offset": (
        lambda f: edit_rows(f, "train", in_rows(lambda r: r.update(offset=r["offset"] + 8))),
        [f"{FIRST} row group 0 offset: 4, the manifest says 12"],
    ),
    "other bytes of a row group": (
        lambda f: edit_rows(f, "train", in_rows(lambda r: r.update(bytes=1))),
        [f"{FIRST} row group 0 bytes: "],
    ),
    "another footer": (
        lambda f: edit_rows(f, "train", in_rows(lambda r: r.update(footer_bytes=1))),
        [f"{FIRST} row group 0 footer_bytes: "],
    ),
    "other costs": (
        lambda f: edit_rows(f, "train", in_rows(lambda r: r.update(vision_cost=r["vision_cost"][::-1]))),
        [f"{TRAIN} quality.", f"{FIRST} row group 0 vision_cost: "],
    ),
    "other tokens": (
        lambda f: edit_rows(f, "train", in_rows(lambda r: r.update(num_label_tokens=r["num_label_tokens"] + 1))),
        [f"{TRAIN} totals.num_label_tokens: ", f"{FIRST} row group 0 num_label_tokens: "],
    ),
    "a row group is not in the manifest": (
        lambda f: edit_rows(f, "train", lambda rows: rows[1:]),
        [
            f"{TRAIN} totals.",
            f"{TRAIN} sums.",
            f"{TRAIN} quality.",
            f"{FIRST} row_group: ",
            f"{TRAIN} runs.sources.num_packed",
            "report.json splits.train.drawn: row group 0 of data/train/00000.parquet is not in the manifest of train",
        ],
    ),
    "row groups of another commit": (
        lambda f: shutil.copy(f / "manifest/validation.parquet", f / "manifest/train.parquet"),
        [f"{TRAIN}: manifest: its Parquet file has sha256"],
    ),
    "no JSON": (lambda f: (f / TRAIN).write_text("{"), [f"{TRAIN}: manifest: its JSON file is no JSON"]),
    "half a manifest": (lambda f: (f / "manifest/train.parquet").unlink(), [f"{TRAIN}: "]),
    "another configuration": (
        lambda f: edit_json(f, VALIDATION, lambda info: info["runs"][0]["config"]["pack"].update(seq_len=4097)),
        [
            f"{VALIDATION} run: ",
            f"{VALIDATION} runs.run: ",
            f"{VALIDATION} runs: run ",
            "report.json config: not what the manifest of validation",
        ],
    ),
    "another run": (
        lambda f: edit_json(f, VALIDATION, lambda info: info.update(run="0" * 64)),
        [f"{VALIDATION} run: 0000", "report.json run: "],
    ),
    "a missing key": (
        lambda f: edit_json(f, VALIDATION, lambda info: info.pop("quality")),
        [f"{VALIDATION} quality: missing"],
    ),
    "other sums": (
        lambda f: edit_json(f, VALIDATION, lambda info: info["sums"].update(num_tokens=1)),
        [f"{VALIDATION} sums.num_tokens: 1,", f"{VALIDATION} quality.", "report.json splits.validation.sums: "],
    ),
    "another histogram": (
        lambda f: edit_json(f, VALIDATION, lambda info: info["sums"]["histograms"].update(pack_fill={"3": 1})),
        [f"{VALIDATION} sums.histograms.pack_fill: 1,", "report.json splits.validation.sums: "],
    ),
    "another ledger": (
        lambda f: edit_json(f, "report.json", lambda r: r["ledger"][0].update(num_rows=9)),
        ["report.json "],
    ),
    "fewer rows in quarantine": (drop_quarantine_rows, [f"{TRAIN} runs.sources.num_quarantined: "]),
    "an unknown reason": (
        odd_reason,
        ["quarantine/train/00000.parquet reason: 'bad_luck' is no reason of the contract"],
    ),
    "a quarantine that is no Parquet": (
        lambda f: next((f / "quarantine/train").iterdir()).write_bytes(b"x"),
        ["quarantine/train/00000.parquet: cannot be read"],
    ),
    "a card without a split": (
        lambda f: (f / "README.md").write_text("# Packs\n"),
        ["README.md configs: splits [], there are ['train', 'validation']"],
    ),
    "a card that is no YAML": (
        lambda f: (f / "README.md").write_text("---\n[\n---\n"),
        ["README.md: output.repo: the front matter"],
    ),
    "no manifest at all": (
        lambda f: shutil.rmtree(f / "manifest"),
        [
            "manifest/: no manifest",
            "data/",
            "quarantine/",
            "README.md configs: ",
            "report.json splits.train: no manifest is of this split",
            "report.json splits.validation: no manifest",
        ],
    ),
    "counts of one split's run": (
        lambda f: edit_json(f, TRAIN, lambda info: info["runs"][0]["sources"][0].update(num_bytes=1)),
        [f"{VALIDATION} runs: run ", "report.json sources: not what the manifest of train has of its last run"],
    ),
    "a report without one of its splits": (
        lambda f: edit_json(f, "report.json", lambda r: r["splits"].pop("train")),
        ["report.json splits: lacks train, which its run has packed"],
    ),
    "a report with another split": (
        lambda f: edit_json(f, "report.json", lambda r: r["splits"].update(ghost=r["splits"]["train"])),
        ["report.json splits.ghost: no manifest is of this split"],
    ),
    "a report drawn from another file": (
        lambda f: edit_json(
            f, "report.json", lambda r: r["splits"]["train"]["drawn"].update(file="data/train/x.parquet")
        ),
        ["report.json splits.train.drawn: row group 0 of data/train/x.parquet is not in the manifest of train"],
    ),
    "a card whose splits are no text": (
        lambda f: card(f, "- config_name: packed\n  data_files: [{split: 5}, {split: train}, {path: x}, 3]"),
        ["README.md configs: splits ['5', 'train'], there are ['train', 'validation']"],
    ),
    "a card without files": (
        lambda f: card(f, "- config_name: packed\n  data_files: 5\n- config_name: [1]"),
        ["README.md configs: splits [], there are"],
    ),
}


def card(folder: Path, configs: str) -> None:
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}\n---\n")


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


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found(name, folder):
    damage, expected = DAMAGE[name]
    damage(folder)
    found = findings(folder)
    assert found
    unexpected = [line for line in found if not line.startswith(tuple(expected))]
    assert not unexpected
    missed = [start for start in expected if not any(line.startswith(start) for line in found)]
    assert not missed


def test_costs_that_the_processor_does_not_make(folder):
    """Manifest and packs agree on a cost; only the processor knows better."""

    def change(packs: list[dict]) -> None:
        packs[0]["vision_cost"] += 1

    rewrite(folder, FIRST, change)
    lines = findings(folder, processor=str(DEMO / "processor"))
    (line,) = [line for line in lines if line.startswith("data/")]
    assert "row group 0 pack 0 vision_cost: " in line
    assert "the processor makes" in line
    assert not [line for line in findings(folder) if line.startswith("data/")]


def test_packs_have_the_number_that_inspect_takes(folder):
    rewrite(folder, FIRST, swap_labels, row_group=1)
    (line,) = findings(folder)
    size = pq.read_metadata(folder / FIRST).row_group(0).num_rows
    assert line.startswith(f"{FIRST} row group 1 pack {size + 2} labels: ")


def test_samples_in_parts_and_copies_are_no_duplicates(tmp_path):
    """Long samples packed in parts share an id."""
    publish_demo(tmp_path, "pack.over_length=split_turns", "pack.seq_len=2048", rows=demo_rows()[:100])
    assert findings(tmp_path) == []


def test_command_line(published, folder, capsys):
    assert validate.main([str(published)]) == 0
    assert capsys.readouterr().out.startswith("no findings in 15 files, ")
    (folder / FIRST).unlink()
    assert validate.main([str(folder)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{FIRST}: missing; the manifest names it"
    assert out[-1].startswith(f"{len(out) - 1} findings in 14 files")
    assert validate.main(["no/such-dataset"]) == 1
    assert capsys.readouterr().err.startswith("error: no/such-dataset: is no folder, and no dataset owner/name at http")


def test_another_processor_is_refused(published, tmp_path, capsys):
    other = shutil.copytree(DEMO / "processor", tmp_path / "processor")
    (other / "more.json").write_text("{}")
    assert validate.main([str(published), "--processor", str(other)]) == 1
    assert "has other files than" in capsys.readouterr().err


COMMANDS = [(validate.main, []), (inspect.main, ["--pack", "0"]), (report.main, [])]


@pytest.mark.parametrize(("main", "more"), COMMANDS)
@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("/etc/passwd", "/etc/passwd: cannot be opened as a folder: [Errno 20] Not a directory"),
        ("nosuch://b/x", "Protocol not known: nosuch"),
        ("lacking://b/x", "lacking://b/x: cannot be opened as a folder: pip install lacking"),
    ],
)
def test_what_cannot_be_opened_is_one_line(main, more, dataset, said, capsys, monkeypatch):
    lacking = {"class": "no_such_module.X", "err": "pip install lacking"}
    monkeypatch.setitem(known_implementations, "lacking", lacking)
    assert main([dataset, *more]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")


@pytest.mark.parametrize(("main", "more"), COMMANDS[1:])
def test_a_missing_file_and_a_page_that_cannot_be_written_are_one_line(main, more, folder, tmp_path, capsys):
    assert main([str(folder), *more, "--out", str(tmp_path / "no" / "page.html")]) == 1
    assert "page.html" in capsys.readouterr().err.splitlines()[-1]
    assert main([str(folder), *more, "--out", str(tmp_path)]) == 1
    assert "Is a directory" in capsys.readouterr().err.splitlines()[-1]
    (folder / FIRST).unlink()
    assert main([str(folder), *more, "--out", str(tmp_path / "page.html")]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert FIRST in line


@pytest.mark.parametrize(("main", "more"), COMMANDS)
def test_a_hub_that_gives_no_files_is_one_line(main, more, monkeypatch, capsys):
    """As it is once the retries of the Hub's client are over."""

    def busy(self, path, **options):
        raise OSError("503 Server Error\nfor url")

    monkeypatch.setattr(LocalFileSystem, "find", busy)
    assert main([str(DEMO), *more]) == 1
    assert capsys.readouterr().err == "error: 503 Server Error for url\n"
