"""Notebooks run from top to bottom with warnings as errors, say what they said, and have no logic of their own."""

import nbformat
import pytest

from tests.spark.notebooks import NOTEBOOKS, execute, settled, texts

ids = {"ids": lambda path: path.stem}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, **ids)
def test_it_runs_and_says_what_it_said(path):
    assert texts(settled(execute(path))) == texts(nbformat.read(path, as_version=4))


@pytest.mark.parametrize("path", NOTEBOOKS, **ids)
def test_pictures_are_kept_and_small(path):
    notebook = nbformat.read(path, as_version=4)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr" or output.output_type == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert path.stat().st_size < 1_500_000


@pytest.mark.parametrize("path", NOTEBOOKS, **ids)
def test_no_logic_of_its_own(path):
    notebook = nbformat.read(path, as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert not [word for word in ("def ", "class ", "lambda", "while ", "try:", "import tests") if word in code]
    assert notebook.cells[0].source.startswith("# ")


def test_there_are_three():
    assert [path.name[:2] for path in NOTEBOOKS] == ["1_", "2_", "4_"]
