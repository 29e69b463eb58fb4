"""What `validate`, `inspect` and `report` say on the command line, also of what they cannot open."""

import shutil
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

from jobs import inspect, report, validate
from tests.unit.damage import FIRST, edit_json
from tests.unit.demo_samples import DEMO


@pytest.fixture
def folder(published, tmp_path) -> Path:
    """A copy to damage."""
    return shutil.copytree(published, tmp_path / "copy")


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
        ("/etc/passwd", "/etc/passwd: is no folder here, no URL and no repository owner/name"),
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


MANIFEST = "manifest/train.json"


@pytest.mark.parametrize(
    ("main", "more", "file", "change", "said"),
    [
        (
            inspect.main,
            ["--pack", "0"],
            MANIFEST,
            lambda info: info.pop("processor"),
            f"{MANIFEST}: processor: missing",
        ),
        (
            inspect.main,
            ["--pack", "0"],
            MANIFEST,
            lambda info: info.update(runs=3),
            f"{MANIFEST}: runs: Input should be",
        ),
        (report.main, [], MANIFEST, lambda d: d.pop("sums"), f"{MANIFEST}: sums: missing"),
        (report.main, [], "report.json", lambda d: d.pop("ledger"), "report.json: ledger: missing"),
        (report.main, [], "report.json", lambda d: d.update(splits={}), "report.json: splits: Dictionary should"),
    ],
)
def test_documents_of_another_shape_are_one_line(folder, main, more, file, change, said, capsys, tmp_path):
    edit_json(folder, file, change)
    if main is report.main:
        more = ["--out", str(tmp_path / "page.html")]
    assert main([str(folder), *more]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {folder}: {said}")
    assert line.endswith("jobs.validate tells all that is wrong")
