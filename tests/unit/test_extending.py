"""A new budget axis and a new column: the changes that CONTRIBUTING.md shows, made in a copy of the code."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_CHANGE = re.compile(r"In `([\w/.]+)`,\s+at\s+the\s+end\s+of\s+`(\w+)`.*?```\n(.*?)```", re.DOTALL)


def changes_of(section: str) -> list[tuple[str, str, str]]:
    """(file, definition, lines to add at its end) of a section of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    found = _CHANGE.findall(text)
    assert len(found) == text.count("```") // 2 > 0
    return found


def extended(code: str, definition: str, lines: str) -> str:
    """Code with lines added at the end of a class, a tuple or a dict."""
    for node in ast.parse(code).body:
        named = getattr(node, "targets", [node])[0]
        if definition in (getattr(named, "id", None), getattr(named, "name", None)):
            of_code = code.splitlines(keepends=True)
            end = node.end_lineno if isinstance(node, ast.ClassDef) else node.end_lineno - 1
            return "".join([*of_code[:end], lines, *of_code[end:]])
    raise AssertionError(f"no {definition}")


@pytest.mark.parametrize(
    ("section", "most_files", "what"), [("Add a budget axis", 6, "axis"), ("Add a column", 4, "column")]
)
def test_the_example_of_contributing(section, most_files, what, tmp_path):
    """It changes few files, and a shard packed with them has the axis or column everywhere."""
    changes = changes_of(section)
    assert len({file for file, *_ in changes}) <= most_files
    for folder in ("packing_udfs", "jobs/demo", "tests/unit"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tests/__init__.py").touch()
    for file, definition, lines in changes:
        changed = extended((tmp_path / file).read_text(), definition, lines)
        (tmp_path / file).write_text(changed)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.unit.extended_shard", what]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=300)
