"""One pack for people: the right one, its text with what is trained, its images, where its samples are from."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from transformers import AutoProcessor

from jobs import inspect
from jobs.published import one_pack
from jobs.published.dataset import Packed, PackedError, open_packed
from packing_udfs import contract
from packing_udfs.manifest import Manifest
from tests.unit.demo_samples import DEMO, demo_rows

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def packed(published) -> Packed:
    return open_packed(str(published))


@pytest.fixture(scope="module")
def found(packed) -> Manifest:
    return packed.manifest("train")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoProcessor.from_pretrained(DEMO / "processor").tokenizer


@pytest.fixture(scope="module")
def stored(packed, found) -> list[dict]:
    """All packs of train in the manifest's order, without their images."""
    columns = [name for name in contract.PACK_SCHEMA.names if name != "images"]
    rows = found.row_groups.select(["file", "row_group"]).to_pylist()
    return pa.concat_tables(packed.row_group(r["file"], r["row_group"], columns) for r in rows).to_pylist()


def test_every_pack_has_a_place_of_its_own(found, packed, stored):
    places = [one_pack.locate(found, number) for number in range(found.num_packs)]
    assert len({(p.file, p.row_group, p.row) for p in places}) == len(stored) > 60
    for number in (0, 5, len(stored) - 1):
        place = places[number]
        table = packed.row_group(place.file, place.row_group, ["sample_ids"])
        assert table["sample_ids"][place.row].as_py() == stored[number]["sample_ids"]


@pytest.mark.parametrize("number", [-1, 10_000])
def test_no_such_pack(found, number):
    with pytest.raises(
        PackedError, match=rf"--pack: {number} is refused: the split has packs 0 to {found.num_packs - 1}"
    ):
        one_pack.locate(found, number)


def test_a_sample_is_found_by_its_id_alone(packed, found, stored, monkeypatch):
    asked = []
    of_class = Packed.row_group
    monkeypatch.setattr(Packed, "row_group", lambda self, *a: asked.append(a[2:]) or of_class(self, *a))
    assert one_pack.find_sample(packed, found, stored[7]["sample_ids"][-1]) == [7]
    assert one_pack.find_sample(packed, found, 1) == []
    assert set(map(str, asked)) == {"(['sample_ids'],)"}


def test_text_is_what_is_stored(packed, found, stored, tokenizer):
    """The pieces of all packs: trained text is the labels', and all text is the tokens' but for images'."""
    for number in range(0, found.num_packs, 9):
        pack, at = stored[number], 0
        described = one_pack.describe(packed, found, number, tokenizer.decode)
        for sample, num_tokens in zip(described["samples"], pack["sample_lengths"], strict=True):
            labels = [i for i in pack["labels"][at : at + num_tokens] if i >= 0]
            trained = "".join(p["text"] for p in sample["pieces"] if p["kind"] == "response")
            assert trained == tokenizer.decode(labels)
            assert labels
            text = "".join(p["text"] for p in sample["pieces"] if p["kind"] != "image")
            whole = tokenizer.decode(pack["input_ids"][at : at + num_tokens])
            image = "<image>"
            assert text == re.sub(f"{image}.*{image}", "", whole, flags=re.DOTALL) or sample["num_images"] > 1
            assert sum(p["kind"] == "image" for p in sample["pieces"]) == sample["num_images"]
            at += num_tokens


def test_provenance_names_the_source_and_its_commit(packed, found):
    for sample in one_pack.describe(packed, found, 0, None)["samples"]:
        assert sample["sources"] == [
            {"repo": "user/demo-source", "config": sample["source"], "split": "train", "commit": "c" * 40}
        ]


def test_each_sample_is_shown_with_the_row_that_it_came_from(packed, found, stored):
    rows = {row["sample_id"]: row for row in demo_rows()}
    described = one_pack.describe(packed, found, 0, None)
    described["samples"][0]["kept"] = '{"license":"a\x1bb"}'
    text = one_pack.as_text(described)
    for sample_id in stored[0]["sample_ids"]:
        row = rows[sample_id]
        assert f"  row {row['row']} of {row['file']}" in text
    assert ', {"license":"a\ufffdb"}\n' in text


def with_images(stored: list[dict]) -> int:
    return next(i for i, pack in enumerate(stored) if pack["num_images"] > 1)


def test_command_line_and_page(published, stored, tmp_path, capsys):
    number, out = with_images(stored), tmp_path / "pack.html"
    assert (
        inspect.main([str(published), "--pack", str(number), "--out", str(out), "--processor", str(DEMO / "processor")])
        == 0
    )
    text, html = capsys.readouterr().out, out.read_text("utf-8")
    pack = stored[number]
    assert text.startswith(f"pack {number}  data/train/00000.parquet row group ")
    for sample_id in pack["sample_ids"]:
        assert f"  {sample_id}: " in text
        assert f"sample_id {sample_id}<" in html
    assert "Assistant:«" in text
    assert "<end_of_utterance>»" in text
    assert text.count(" placeholders") == pack["num_images"]
    assert html.count('<figure><img src="data:image/jpeg') == pack["num_images"]
    assert html.count("<svg ") == 1
    assert '<span class="response">' in html
    references = re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]+)""", html)
    assert all(reference.startswith("data:image/") for reference in references)


def test_by_sample_and_in_another_split(published, packed, capsys):
    (row,) = packed.manifest("validation").row_groups.slice(0, 1).to_pylist()
    sample_id = packed.row_group(row["file"], 0, ["sample_ids"])["sample_ids"][1].as_py()[0]
    assert inspect.main([str(published), "--split", "validation", "--sample", str(sample_id)]) == 0
    assert capsys.readouterr().out.startswith("pack 1  data/validation/0000")
    assert inspect.main([str(published), "--sample", str(sample_id)]) == 1
    assert capsys.readouterr().err == f"error: --sample: no pack of {published} train holds {sample_id}\n"
    assert inspect.main([str(published), "--split", "test", "--pack", "0"]) == 1
    assert "has no packed split 'test'; it has train, validation" in capsys.readouterr().err


def test_without_the_processor_ids_are_shown(published, tmp_path, stored, capsys):
    moved = shutil.copytree(published, tmp_path / "copy")
    assert inspect.main([str(moved), "--pack", "0"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("text stays token ids: the dataset was packed with a folder 'processor', whose ")
    assert "with --processor" in captured.err
    assert f"| {stored[0]['input_ids'][0]} " in captured.out
    assert inspect.main([str(moved), "--pack", "0", "--processor", str(DEMO / "processor")]) == 0
    assert "Assistant:«" in capsys.readouterr().out


def test_another_processor_is_refused(published, tmp_path, capsys):
    other = shutil.copytree(DEMO / "processor", tmp_path / "processor")
    (other / "more.json").write_text("{}")
    assert inspect.main([str(published), "--pack", "0", "--processor", str(other)]) == 1
    assert "has other files than" in capsys.readouterr().err


def test_a_terminal_is_not_told_what_to_do(packed, found):
    """Control characters in somebody's text are shown, not obeyed."""
    described = one_pack.describe(packed, found, 0, lambda ids: "a\x1b[2Jb\rc\n")
    text = one_pack.as_text(described)
    assert "a\ufffd[2Jb\ufffdc" in text
    assert "\x1b" not in text
    assert "\x1b[1;36m" in one_pack.as_text(described, colours=True)


def test_an_image_that_does_not_decode():
    pack = {"images": [{"bytes": b"no image", "path": None}], "image_sizes": [{"height": 2, "width": 3}]}
    (image,) = one_pack._images(pack | {"image_num_tokens": [4]})
    assert (image["jpeg"], image["format"], image["width"]) == (None, "unknown format", 3)
    assert one_pack._image_line(image) == "1: 3 × 2, unknown format, 8 bytes, 4 placeholders"


def test_the_job_runs_as_a_file_beside_a_module_of_this_name():
    """spark-submit puts jobs/ first on the path, where `inspect` is not the standard library's."""
    command = [sys.executable, str(ROOT / "jobs/pack.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m jobs.pack")
