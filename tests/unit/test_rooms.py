"""The house: no circle of imports between files or folders, few modules a folder, and public paths that stay.

Imports inside functions and under `TYPE_CHECKING` count. For circles between folders a module at the top of a package
(`jobs/pack.py`, `packing_udfs/contract.py`) is a room of its own, since the top holds both what all stand on and what
stands on all.
"""

import ast
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("jobs", "packing_udfs")
MOST_MODULES = 14
COMMANDS = ("pack", "plan", "compare", "report", "inspect", "validate", "takedown", "standalone", "dist")
PUBLIC = {
    "packing_udfs.reader": "PackedDataset",
    "packing_udfs.mixed": "MixedDataset",
    "packing_udfs.collate": "collate",
    "packing_udfs.adapters": "for_sdpa",
    "packing_udfs.contract": "PACK_SCHEMA",
}


def modules() -> dict[str, Path]:
    """Dotted name → file of every module of the project; a package goes by its folder's name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: Iterable[str]) -> Iterator[str]:
    """The project's modules that a file imports, wherever in it the import stands."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                if inner in known:
                    yield inner
                elif base in known:
                    yield base


def edges() -> dict[str, set[str]]:
    """Module → modules that it imports."""
    known = modules()
    return {name: set(imported(name, path, known)) - {name} for name, path in known.items()}


def room_of(name: str) -> str:
    """The folder of a module, or the module itself where its folder has folders of its own."""
    folder = name if (ROOT / name.replace(".", "/")).is_dir() else name.rpartition(".")[0]
    has_folders = any((ROOT / folder.replace(".", "/")).glob("*/__init__.py"))
    return name if has_folders else folder


def find_circle(graph: Mapping[str, set[str]]) -> list[str]:
    """A path that ends where it begins, as [a, b, a]; [] where there is none."""
    done: set[str] = set()
    for start in sorted(graph):
        path: list[str] = []
        if circle := _walk(start, graph, path, done):
            return circle
    return []


def _walk(at: str, graph: Mapping[str, set[str]], path: list[str], done: set[str]) -> list[str]:
    if at in path:
        return [*path[path.index(at) :], at]
    if at in done:
        return []
    path.append(at)
    for following in sorted(graph.get(at, ())):
        if circle := _walk(following, graph, path, done):
            return circle
    done.add(path.pop())
    return []


def test_files_import_in_no_circle():
    graph = edges()
    assert sum(map(len, graph.values())) > 300  # the walk found the imports
    circle = find_circle(graph)
    assert not circle, f"{circle[-2]} imports {circle[-1]}, which closes the circle {' → '.join(circle)}"


def test_folders_import_in_no_circle():
    graph: dict[str, set[str]] = {}
    for name, others in edges().items():
        graph.setdefault(room_of(name), set()).update(room_of(other) for other in others)
    graph = {room: others - {room} for room, others in graph.items()}
    circle = find_circle(graph)
    assert not circle, f"{circle[-2]} imports {circle[-1]}, which closes the circle {' → '.join(circle)}"


def test_a_circle_is_found():
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_a_folder_has_few_modules_and_says_its_purpose():
    folders = {path.parent for path in modules().values()}
    assert len(folders) > 15
    for folder in sorted(folders):
        names = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
        assert len(names) <= MOST_MODULES, f"{folder.relative_to(ROOT)} has {len(names)} modules: {sorted(names)}"
        purpose = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or ""
        first = purpose.partition("\n\n")[0]
        assert re.fullmatch(r".{20,}\.", first, re.S), f"{folder.relative_to(ROOT)}/__init__.py: {first!r}"


@pytest.mark.parametrize(("module", "name"), PUBLIC.items())
def test_public_paths_stay(module, name):
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_stay_and_are_thin(command):
    path = ROOT / "jobs" / f"{command}.py"
    functions = [node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)]
    assert "main" in functions
    if command != "pack":  # whose `run` is the flow itself
        assert len(path.read_text("utf-8").splitlines()) <= 100


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def nested_comprehensions(code: str) -> list[int]:
    """Lines of the comprehensions that have another inside."""
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, COMPREHENSIONS)]
    return [node.lineno for node in found if sum(isinstance(inner, COMPREHENSIONS) for inner in ast.walk(node)) > 1]


def test_no_comprehension_is_in_another():
    assert nested_comprehensions("a = [b for b in c]\nd = {e: [f for f in g] for e in h}") == [2]
    found = {name: nested_comprehensions(path.read_text()) for name, path in modules().items()}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert len(found) > 100
