"""The page of a run: what it shows, that it fetches nothing, and that it is rebuilt from what is published."""

import html
import json
import re
import shutil

import pyarrow as pa
import pytest

from jobs import report
from jobs.pages import run, strips
from jobs.published import rebuild_report
from jobs.published.dataset import Packed, PackedError, open_packed
from packing_udfs import contract
from tests.unit.demo_samples import DEMO, demo_rows
from tests.unit.published_demo import publish_demo


@pytest.fixture(scope="module")
def page(published) -> str:
    return (published / "report.html").read_text("utf-8")


@pytest.fixture(scope="module")
def text(page) -> str:
    return html.unescape(page)


@pytest.fixture
def folder(published, tmp_path):
    """A copy to change."""
    return shutil.copytree(published, tmp_path / "copy")


def rebuild(folder, *arguments: str) -> str:
    assert report.main([str(folder), "--out", str(folder / "again.html"), *arguments]) == 0
    return (folder / "again.html").read_text("utf-8")


def test_rebuilt_to_the_byte(page, folder, capsys):
    assert rebuild(folder) == page
    assert capsys.readouterr().out.startswith("samples      229 in = ")


def test_two_checkouts_publish_the_same_bytes(published, tmp_path):
    """Nothing that is published says where the processor was."""
    copy = shutil.copytree(DEMO / "processor", tmp_path / "elsewhere" / "processor")
    publish_demo(tmp_path / "again", "shards.validation_fraction=0.1", f"processor.path={copy}")
    files = [path.relative_to(published) for path in sorted(published.rglob("*")) if path.is_file()]
    assert "report.html" in map(str, files)
    for path in files:
        data = (published / path).read_bytes()
        assert str(DEMO).encode() not in data, path
        assert data == (tmp_path / "again" / path).read_bytes(), path


def test_only_drawn_packs_are_read_with_their_images(published, monkeypatch):
    """And they are one row group of each split."""
    read = []
    of_class = Packed.row_group

    def row_group(self, file, index, columns=None):
        read.append((file, index, columns))
        return of_class(self, file, index, columns)

    monkeypatch.setattr(Packed, "row_group", row_group)
    rebuild_report.rebuild(open_packed(str(published)))
    assert read == [("data/train/00000.parquet", 0, None), ("data/validation/00000.parquet", 0, None)]


def test_packed_before_there_were_histograms(folder, published):
    """They come from light columns then; of packs, and but for the vision cost of samples, they are the same."""
    path = folder / "report.json"
    found = json.loads(path.read_text("utf-8"))
    for part in found["splits"].values():
        del part["sums"]["histograms"], part["drawn"]
    del found["quarantine_examples"]
    path.write_text(json.dumps(found))
    again, _, drawn = rebuild_report.rebuild(open_packed(str(folder)))
    before = json.loads((published / "report.json").read_text("utf-8"))
    for split in ("train", "validation"):
        want = before["splits"][split]["sums"]["histograms"] | {"sample_vision": {}}
        assert again.splits[split].sums.histograms == want
        assert len(drawn[split]) > 1
    assert "Quarantine" in rebuild(folder)


def test_a_run_that_drew_nothing(folder):
    """Its first shards held no pack; no picture of packs is on its card, and the page says so."""
    path = folder / "report.json"
    found = json.loads(path.read_text("utf-8"))
    for part in found["splits"].values():
        part["drawn"] = None
    path.write_text(json.dumps(found))
    assert rebuild(folder).count("None were drawn.") == 2
    assert list(run.pictures(*rebuild_report.rebuild(open_packed(str(folder))))) == ["report/histograms.png"]


def test_speed_makes_hours(folder, published):
    """Positions spared / tokens a second / 3600, by hand from the report."""
    found = json.loads((published / "report.json").read_text("utf-8"))
    sums = [part["sums"] for part in found["splits"].values()]
    spared = sum(s["naive_tokens"] for s in sums) - 4096 * sum(s["num_packs"] for s in sums)
    assert spared > 200_000
    text = rebuild(folder, "--tokens-per-second", "5")
    assert f"<b>{spared / 5 / 3600:,.1f}</b>" in text
    assert f"{spared:,} positions an epoch less" in text


def test_it_fetches_nothing(page):
    references = re.findall(r"""(?:src|href|srcset|action)\s*=\s*["']?([^"'\s>]+)""", page)
    assert len(references) > 15
    assert all(reference.startswith("data:image/") for reference in references)
    assert not re.search(r"url\(|@import|<script|<link", page)


def test_it_has_no_clock_and_is_the_same_again(published, tmp_path):
    publish_demo(tmp_path, "shards.validation_fraction=0.1", rows=demo_rows()[::-1])
    for name in ("report.html", "report.json", "README.md", "report/packs.png", "report/histograms.png"):
        assert (tmp_path / name).read_bytes() == (published / name).read_bytes()


def test_every_figure_of_a_run_is_there(text, published):
    found = json.loads((published / "report.json").read_text("utf-8"))
    for split in found["splits"].values():
        assert f"<td>{split['totals']['num_packs']}</td><td>{split['sums']['bound']}</td>" in text
    for source in found["sources"]:
        assert f"<small>user/demo-source at {source['commit'][:12]}</small>" in text
        assert f"<td>{source['num_packed']}</td><td>{source['num_quarantined']}</td>" in text
    for reason, num_rows in found["quarantine"].items():
        assert f"<td>{reason}<small>{contract.REASONS[reason]}</small></td><td>{num_rows}</td>" in text
        assert 1 <= len(found["quarantine_examples"][reason]) <= 3
    assert "10187 tokens, at most 4096" in text
    for title in ("Some packs", "Balance over GPUs", "Distributions", "Configuration and versions"):
        assert f"<h2>{title}</h2>" in text
    assert "seq_len: 4096" in text
    assert "<dt>pyarrow</dt>" in text


def test_drawn_packs_have_their_parts(page, published):
    found = [pack for part in rebuild_report.rebuild(open_packed(str(published)))[2].values() for pack in part]
    assert page.count("<svg ") == len(found) >= 6
    assert page.count("<image ") == sum(len(pack["images"]) for pack in found) > 8
    for pack in found:
        for sample in pack["samples"]:
            assert f"<title>sample {sample['id']} of {sample['source']}: {sample['num_tokens']:,} tokens" in page


def test_a_strip_lies_in_its_box(published):
    for pack in rebuild_report.rebuild(open_packed(str(published)))[2]["train"]:
        strip = strips.strip(pack, 4096, ["charts_and_pages", "photos_and_drawings"])
        widths = sum(float(kind["width"]) for kind in strip["kinds"])
        assert abs(widths - strips.WIDTH) < 0.005 * len(strip["kinds"]) + 0.01
        ends = [float(i["x"]) + float(i["width"]) for i in strip["images"]]
        assert all(float(i["x"]) >= 0 and end <= strips.WIDTH for i, end in zip(strip["images"], ends, strict=True))
        starts = [float(i["x"]) for i in strip["images"]]
        assert all(end < start for end, start in zip(ends, starts[1:], strict=False))


def test_images_without_room_are_counted(published):
    """Forty images of one token each at the pack's end: those that fit stand side by side, none outside."""
    (pack, *_) = rebuild_report.rebuild(open_packed(str(published)))[2]["train"]
    images = [pack["images"][0] | {"start": 90, "num_tokens": 1, "height": 10, "width": 10}] * 40
    crowded = pack | {"images": images, "num_images": 41, "num_tokens": 100, "runs": [[0, 100]]}
    strip = strips.strip(crowded, 100, ["charts_and_pages", "photos_and_drawings"])
    assert len(strip["images"]) == strips.WIDTH // (strips.THUMB + strips.GAP) == 41 - strip["num_hidden"]
    assert float(strip["images"][0]["x"]) >= 0
    assert float(strip["images"][-1]["x"]) + strips.THUMB <= strips.WIDTH


def test_a_name_is_not_html(published):
    found, manifests, drawn = rebuild_report.rebuild(open_packed(str(published)))
    found.sources[0].repo = "<script>alert(1)</script>"
    text = run.page(found, manifests, drawn)
    assert "&lt;script&gt;alert(1)" in text
    assert "<script" not in text


def test_the_card_shows_two_pictures(published):
    card = (published / "README.md").read_text("utf-8")
    for name in ("packs", "histograms"):
        assert f"\n![{name}](report/{name}.png)\n" in card
        data = (published / f"report/{name}.png").read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < 100_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/such-dataset"], "no/such-dataset: is no folder, and no dataset owner/name at http"),
        (["not a name"], "not a name: is no folder here, no URL and no repository owner/name"),
        (["{folder}", "--revision", "v1"], "{folder}: is a folder, which has no revision 'v1'"),
        (["{empty}"], "{empty}: has no report.json; is it a dataset that jobs.pack has published?"),
        (["{folder}", "--tokens-per-second", "0"], "--tokens-per-second: 0 is refused: must be at least 1"),
    ],
)
def test_what_cannot_be_shown_is_said(arguments, message, published, tmp_path, capsys):
    names = {"folder": published, "empty": tmp_path}
    out = tmp_path / "report.html"
    assert report.main([*(a.format(**names) for a in arguments), "--out", str(out)]) == 1
    assert capsys.readouterr().err.startswith("error: " + message.format(**names))
    assert not out.exists()


def test_a_report_that_is_no_json(folder):
    (folder / "report.json").write_text("{")
    with pytest.raises(PackedError, match=r"report\.json is no JSON"):
        rebuild_report.rebuild(open_packed(str(folder)))


def test_row_groups_by_columns(published):
    table = open_packed(str(published)).row_group("data/train/00000.parquet", 0, ["num_tokens"])
    assert table.schema == pa.schema([("num_tokens", pa.int32())])
