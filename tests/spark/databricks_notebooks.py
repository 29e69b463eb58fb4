"""Runs the notebooks that are made for Databricks here: with a stand-in for what a notebook finds there.

    python -m tests.spark.databricks_notebooks        runs notebook 3 on the demo and keeps its output in the file

Databricks gives a notebook `spark` and `dbutils`. Here a cell in front of the others makes both, and is taken away
again; the cells themselves run as they are.
"""

import os
import tempfile
from pathlib import Path

import nbformat

from jobs.local_hub import LocalHub
from tests.spark.notebooks import ROOT
from tests.spark.notebooks import execute as run

PRELUDE = """
from jobs.shards.session import get_session
from tests.spark.databricks_notebooks import Dbutils
dbutils, spark = Dbutils({values!r}), get_session()
"""


class Widgets:
    """`dbutils.widgets`, for text: a job's parameter where there is one, else the default."""

    def __init__(self, values: dict[str, str]):
        self._given, self._values = values, {}

    def text(self, name: str, default: str, label: str | None = None) -> None:
        self._values[name] = self._given.get(name, default)

    def get(self, name: str) -> str:
        return self._values[name]


class Dbutils:
    """`dbutils`, as far as the notebooks need it."""

    def __init__(self, values: dict[str, str]):
        self.widgets = Widgets(values)


def execute(path: Path, values: dict[str, str]) -> nbformat.NotebookNode:
    """Run a notebook from top to bottom with a job's parameters and return it with its output.

    Raises CellExecutionError. The kernel has this process's environment, and warnings are errors in it.
    """
    return run(path, PRELUDE.format(values=values))


def main() -> None:
    """Notebook 3 on the demo, with its output kept."""
    path = ROOT / "notebooks" / "3_pack_on_databricks.ipynb"
    with tempfile.TemporaryDirectory() as folder, LocalHub(Path(folder, "hub")) as hub:
        os.environ |= hub.environment()  # before huggingface_hub is imported
        from jobs.demo.start import upload_source

        upload_source()
        executed = execute(path, {"config": "conf/jobs/demo.yaml", "output": "user/packed-on-databricks"})
    nbformat.write(executed, path)


if __name__ == "__main__":
    main()
