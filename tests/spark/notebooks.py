"""Runs notebooks from top to bottom: python -m tests.spark.notebooks [PATH …] keeps the output in the files.

What differs from run to run is taken away: times, and what goes to standard error (Spark's and the jobs' progress).
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").glob("*.ipynb") if not path.name.startswith(("3_", "5_")))
WARNINGS_ARE_ERRORS = """
import warnings
warnings.simplefilter("error")
warnings.simplefilter("ignore", ResourceWarning)  # PySpark leaves sockets to the garbage collector
"""


def execute(path: Path, prelude: str = "") -> nbformat.NotebookNode:
    """Run a notebook and return it with its output. `prelude`: code before the first cell, which is taken away again.

    Raises CellExecutionError. The kernel has this process's environment, and warnings are errors in it.
    """
    notebook = nbformat.read(path, as_version=4)
    given = notebook.cells
    notebook.cells = [nbformat.v4.new_code_cell(WARNINGS_ARE_ERRORS + prelude), *given]
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}).execute()
    notebook.cells = notebook.cells[1:]
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
    return notebook


def settled(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A notebook without what differs from run to run: standard error and the Python that ran it."""
    notebook.metadata.pop("language_info", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """What each code cell printed, and the kinds of what it showed; "varies" of cells with that tag."""

    def of_output(output) -> str:
        return output.get("text", "") or " ".join(sorted(output.get("data", {})))

    return [
        "varies" if "varies" in cell.metadata.get("tags", []) else "\n".join(map(of_output, cell.outputs))
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def main(paths: list[str]) -> None:
    """Run notebooks, all of them but the one for Databricks by default, and keep their output."""
    for path in [Path(name) for name in paths] or NOTEBOOKS:
        nbformat.write(settled(execute(path)), path)
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
