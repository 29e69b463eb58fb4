"""`packing_udfs` lives without Spark, and the reader with next to nothing."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in ROOT.glob("packing_udfs/**/*.py")
    if path.stem != "__init__"
)

# Imports modules while others cannot be imported; prints what was loaded.
_IMPORT = """
import importlib, json, sys
modules, banned = json.loads(sys.argv[1])

class Banned:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in banned:
            raise ImportError(f"{name} is banned here")

sys.meta_path.insert(0, Banned())
for module in modules:
    importlib.import_module(module)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def import_without(modules: list[str], banned: list[str]) -> set[str]:
    """Top-level names of what a fresh interpreter has loaded after importing `modules`."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT, json.dumps([modules, banned])], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_every_module_imports_without_spark():
    loaded = import_without(MODULES, ["pyspark", "pyspark_huggingface", "py4j", "jobs"])
    assert len(MODULES) > 40
    assert "tokenizers" in loaded  # they were really imported
    assert not loaded & {"pyspark", "py4j", "jobs"}


READER_NEEDS_NOT = ["pyspark", "transformers", "tokenizers", "datasets", "pandas", "pydantic", "jinja2", "jobs"]


def test_the_reader_needs_little():
    loaded = import_without(["packing_udfs.reader", "packing_udfs.collate"], READER_NEEDS_NOT)
    assert "torch" in loaded
    assert not loaded & set(READER_NEEDS_NOT)


def test_the_ban_works():
    """Else the tests above could not fail."""
    with pytest.raises(AssertionError, match="datasets is banned here"):
        import_without(["datasets"], ["datasets"])


@pytest.mark.parametrize(
    ("path", "num_faults"),
    [
        ("packing_udfs/x.py", 2),
        ("tests/unit/x.py", 2),
        ("tests/reader/x.py", 2),
        ("jobs/x.py", 0),
        ("tests/spark/x.py", 0),
    ],
)
def test_ruff_bans_spark(path, num_faults):
    text = "import pyspark\nfrom pyspark.sql import functions\n\nprint(pyspark, functions)\n"
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--output-format=json",
        "--stdin-filename",
        path,
        "-",
    ]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=ROOT)
    faults = json.loads(done.stdout)
    assert [fault["code"] for fault in faults] == ["TID251"] * num_faults
    assert all("packing_udfs is pure" in fault["message"] for fault in faults)


def test_nothing_pure_is_named_after_spark():
    """No import hidden in a function either, which the interpreter would only meet when it is called."""
    for path in ROOT.glob("packing_udfs/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"pyspark", "jobs", "tests"}, path.name
