"""The notebooks for Databricks, and that of packing again, from top to bottom with warnings as errors."""

import json
import re

import nbformat
import pytest

from jobs.output.folder import Folder
from jobs.shards.session import ROOT
from tests.spark import notebooks
from tests.spark.conftest import demo_tree
from tests.spark.databricks_notebooks import execute

PACK = ROOT / "notebooks" / "3_pack_on_databricks.ipynb"
WHAT_CHANGED = ROOT / "notebooks" / "5_what_changed.ipynb"
REPORT = ROOT / "conf" / "databricks" / "report.ipynb"


def printed(notebook) -> str:
    """What the cells printed or showed."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output.get("data", {}).get("text/html", "") for output in outputs]
    return "\n".join([*(output.get("text", "") for output in outputs), *shown])


@pytest.mark.slow
def test_pack_and_report_into_a_volume(source, packed, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(demo_tree("user/elsewhere")))
    output = str(tmp_path / "packed")
    text = printed(execute(PACK, {"config": str(job), "output": output}))
    assert "4/4" in text  # the bar of shards
    assert "samples      229 in = " in text
    assert "charts_and_pages" in text
    assert "<html" in text
    stored = Folder(output).tree().files
    assert len([path for path in stored if path.startswith("data/train/")]) == 4
    shown = printed(execute(REPORT, {"output": output}))
    assert "samples      229 in = " in shown
    assert "<html" in shown


@pytest.mark.parametrize("path", [PACK, REPORT, WHAT_CHANGED], ids=lambda path: path.stem)
def test_no_logic_of_its_own(path):
    """Calls and prints alone; and no token."""
    notebook = nbformat.read(path, as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert not [word for word in ("def ", "class ", "if ", "try", "while ") if word in code]
    assert "HF_TOKEN" not in code
    assert notebook.cells[0].source.startswith("# ")


@pytest.mark.slow
def test_what_changed():
    """Five rows are edited: four packs change, one is new, and most stay where they are."""
    text = printed(notebooks.execute(WHAT_CHANGED))
    assert "5 rows have another answer" in text
    assert re.search(r"reuse        packs: \d\d kept, \d+ moved, 4 changed, 1 new", text), text


def test_the_pictures_of_what_changed_are_kept():
    cells = nbformat.read(WHAT_CHANGED, as_version=4).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert not [output for output in outputs if output.output_type == "error"]


def test_the_output_is_kept():
    notebook = nbformat.read(PACK, as_version=4)
    assert all(
        cell.outputs for cell in notebook.cells[3:] if cell.cell_type == "code" and "import" not in cell.source[:4]
    )
    assert "samples      229 in = " in printed(notebook)
