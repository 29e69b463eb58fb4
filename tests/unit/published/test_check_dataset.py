"""A published dataset damaged in every way we could think of: each is found, named, and nothing else is."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.published import check_dataset
from packing_udfs import contract
from tests.unit.damage import FIRST, TRAIN, VALIDATION, card, edit_json, edit_rows, findings, in_rows, rewrite
from tests.unit.demo_samples import DEMO, demo_rows
from tests.unit.published_demo import publish_demo


@pytest.fixture
def folder(published, tmp_path) -> Path:
    """A copy to damage."""
    return shutil.copytree(published, tmp_path / "copy")


def test_a_sound_dataset(published):
    assert findings(published, processor=str(DEMO / "processor"), decodes=True) == []


def test_it_reads_every_pack(published, monkeypatch):
    """Else a sound dataset would say nothing."""
    seen = []
    of_module = check_dataset.check_data

    def check_data(*arguments):
        yield from of_module(*arguments)
        seen.append(sum(map(len, arguments[-1].ids)))

    monkeypatch.setattr(check_dataset, "check_data", check_data)
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
