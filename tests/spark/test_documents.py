"""Every command in a document is run by a test: here, or by the one that the table names.

Commands are the lines of code blocks and the `code` in the text that begin with a program. A document with a new one
fails until a test runs it; a table with an old one fails too.
"""

import ast
import re
import subprocess
import sys

import pytest
import yaml

from jobs.shards.session import ROOT

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "conf/databricks/README.md", "jobs/demo/README.md")
PROGRAMS = (
    "make",
    ".venv/bin/",
    "env/bin/",
    "python",
    "pip",
    "spark-submit",
    "databricks",
    "export",
    "cd",
    "git",
    "packing-udfs",
)

# Command → the test that runs it. Behind # is what it leaves out.
HERE = "tests/spark/test_documents.py"
FORECAST = "tests/unit/forecast/test_forecast.py"
PUBLISHED = "tests/unit/published"
CLUSTER = "tests/spark/cluster/test_faults.py"
SUBMIT = "tests/spark/test_submit.py"
RUN_BY = {
    r"\.venv/bin/python -m jobs\.pack --help": "tests/unit/test_databricks.py::test_every_command_is_a_modules_main",
    r"\.venv/bin/python -m jobs\.pack --config .*": "tests/spark/test_readme.py::test_the_override_example_runs",
    r"\.venv/bin/pytest tests/\S+ -k \w+": f"{HERE}::test_the_single_test_runs",
    r"\.venv/bin/python -m jobs\.compare --config my_job\.yaml": "tests/spark/test_compare.py::test_command_line",
    r"\.venv/bin/python -m jobs\.plan --config my_job\.yaml .*": f"{FORECAST}::test_command_line",
    r".*python -m jobs\.takedown .*": f"{PUBLISHED}/test_take_out.py::test_two_samples_go_and_nothing_else_changes",
    r"\.venv/bin/python -m jobs\.report user/packed": "tests/spark/test_job.py",
    r"\.venv/bin/python -m jobs\.validate user/packed": "tests/spark/test_job.py",
    r"\.venv/bin/python -m jobs\.inspect user/packed .*": f"{PUBLISHED}/test_one_pack.py::test_command_line_and_page",
    r"packing-udfs pack": "tests/spark/test_wheel.py::test_the_wheels_entry_point_packs",
    r"python -m tests\.demo\.build": "tests/unit/demo/test_data.py::test_rebuild_gives_the_same_bytes",
    r"export HF_TOKEN=…": "tests/spark/test_messages.py::test_no_token",
    r"pip install '\.\[reader\]'": "tests/unit/test_boundary.py",  # of a wheel: tests/spark/test_wheel.py
    r"cd conf/databricks": f"{HERE}::test_databricks_commands_name_what_the_bundle_has",
    r"databricks (secrets|bundle) .*": f"{HERE}::test_databricks_commands_name_what_the_bundle_has",
    r".*spark-submit --master k8s://.*": f"{SUBMIT}::test_kubernetes_is_refused_by_nothing_but_the_missing_cluster",
    r".*spark-submit .*yarn\.conf .*": f"{SUBMIT}::test_yarn_is_refused_by_nothing_but_the_missing_cluster",
    r".*spark-submit .*standalone\.conf .*": f"{CLUSTER}::test_the_bytes_are_those_of_local_mode",
    r"spark-submit": f"{SUBMIT}::test_spark_submit_gives_the_same_dataset",
    r"env/bin/python3": "tests/spark/test_conf.py",
    r"\.venv/bin/pre-commit install": f"{HERE}::test_before_a_commit_runs_what_lint_runs",
    r"packing-udfs --version": "tests/unit/test_databricks.py::test_every_command_is_a_modules_main",
}
# Target of the Makefile → what its recipe runs, and the test that runs the same.
MAKE = {
    "setup": (r"pip install .* -e '\.\[dev\]'", ".ci/run"),
    "run": (r"python -m jobs\.demo$", f"{HERE}::test_make_run"),
    "compare": (r"python -m jobs\.demo\.compare$", "tests/spark/test_compare.py"),
    "notebooks": (r"python -m tests\.spark\.notebooks", "tests/spark/test_notebooks.py"),
    "hub": (
        r"python -m jobs\.local_hub \.local_hub",
        "tests/hub/test_durability.py::test_a_killed_process_keeps_what_it_acknowledged",
    ),
    "test": (r"pytest -m 'not slow'", ".ci/run"),
    "test-slow": (r"pytest -m slow", ".ci/run"),
    "test-spark-4.0": (r"pytest tests/spark -m 'not slow'", ".ci/run"),
    "lint": (r"pyright", ".ci/run"),
    "fmt": (r"ruff check --fix \.", ".ci/run"),  # lint, and what it would change
    "bench": (r"python -m tests\.bench", f"{HERE}::test_every_bench_has_a_name"),
    "soak": (r"python -W ignore -m tests\.reader\.soak", "tests/reader/test_soak.py"),
    "cluster": (r"python -m jobs\.standalone", f"{CLUSTER}::test_the_bytes_are_those_of_local_mode"),
    "dist": (r"python -m jobs\.dist dist/packing-env\.tar\.gz", "tests/spark/test_conf.py"),
    "help": (r"grep", f"{HERE}::test_help_lists_every_target"),
}


def blocks(text: str) -> list[str]:
    """Lines of indented blocks and shell fences, joined where they end in a backslash, without comments."""
    text = re.sub(r" *\\\n\s+", " ", text)
    lines = re.findall(r"^    (?! )(.*)$", text, re.MULTILINE)
    for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL):
        lines += block.splitlines()
    return [re.sub(r"\s+#\s.*", "", line).strip() for line in lines]


def is_command(text: str) -> bool:
    first = re.sub(r"^(\w+=\S+ )+", "", text).split(" ")[0]
    return first in PROGRAMS or first.startswith((".venv/bin/", "env/bin/"))


def commands() -> list[tuple[str, str]]:
    """(document, command) of all documents."""
    found = []
    for name in DOCUMENTS:
        if (ROOT / name).exists():
            text = (ROOT / name).read_text("utf-8")
            prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
            inline = re.findall(r"`([^`\n]+)`", re.sub(r"^    .*$", "", prose, flags=re.MULTILINE))
            found += [(name, line) for line in [*blocks(text), *inline] if is_command(line)]
    return found


COMMANDS = commands()


@pytest.mark.parametrize(("document", "command"), sorted(set(COMMANDS)))
def test_every_command_is_run_by_a_test(document, command):
    if command.startswith("make"):
        parts = command.split()[1:] or ["help"]
        targets = [part for part in parts if "=" not in part and part[0] != "#"]
        assert targets, command
        for target in targets:
            recipe, test = MAKE[target]
            done = subprocess.run(["make", "-nB", target], cwd=ROOT, capture_output=True, text=True, check=True)
            assert re.search(recipe, done.stdout, re.MULTILINE), done.stdout
            assert_exists(test)
        return
    tests = [test for pattern, test in RUN_BY.items() if re.fullmatch(pattern, command)]
    assert tests, f"{document}: no test runs `{command}`; write one and add it to RUN_BY"
    assert_exists(tests[0])


def assert_exists(test: str) -> None:
    """A test that is there: path, or path::function."""
    path, _, name = test.partition("::")
    assert (ROOT / path).is_file(), test
    if name:
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        assert name in [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)], test


def test_the_table_has_no_command_that_no_document_has():
    texts = {command for _, command in COMMANDS}
    for pattern in RUN_BY:
        assert any(re.fullmatch(pattern, text) for text in texts), pattern
    assert len(texts) > 20


def test_commands_are_found():
    """Or the tests above would be about nothing."""
    text = "Run `make x y=1` and\n\n    A=b .venv/bin/python -m z \\\n      --more   # why\n    a ─▶ b\n\nthen `z.py`."
    assert [line for line in blocks(text) if is_command(line)] == ["A=b .venv/bin/python -m z --more"]
    assert is_command("make x y=1")
    assert not is_command("makefile")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_in_a_document_exists(document):
    text = (ROOT / document).read_text("utf-8")
    paths = re.findall(r"`((?:jobs|packing_udfs|conf|tests|notebooks)/[\w./-]+)`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_databricks_commands_name_what_the_bundle_has():
    bundle = yaml.safe_load((ROOT / "conf/databricks/databricks.yml").read_text("utf-8"))
    job = yaml.safe_load((ROOT / "conf/databricks/resources/pack.yml").read_text("utf-8"))["resources"]["jobs"]
    lines = [command for _, command in COMMANDS if command.startswith("databricks ")]
    assert [line for line in lines if line.startswith("databricks secrets")] == [
        f"databricks secrets create-scope {bundle['variables']['secret_scope']['default']}",
        f"databricks secrets put-secret {bundle['variables']['secret_scope']['default']} token",
    ]
    of_bundle = [line.split()[2:] for line in lines if line.startswith("databricks bundle")]
    assert {words[0] for words in of_bundle} == {"validate", "deploy", "run"}
    for words in of_bundle:
        assert words[words.index("-t") + 1] in bundle["targets"], words
        for name in re.findall(r"--var (\w+)=", " ".join(words)):
            assert name in bundle["variables"]
        if words[0] == "run":
            assert words[words.index("-t") + 2] in job
            names = re.findall(r"--params (\w+)=", " ".join(words))
            assert set(names) <= {parameter["name"] for parameter in job["pack"]["parameters"]}


def test_the_single_test_runs():
    (command,) = {command for _, command in COMMANDS if command.startswith(".venv/bin/pytest")}
    path, _, word = command.split()[1:]
    done = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", path, "-k", word], cwd=ROOT,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_every_bench_has_a_name():
    """Without importing them: their peers are installed by `make bench` alone."""
    names = re.findall(
        r"BENCH=(\w+)",
        "".join((ROOT / name).read_text("utf-8") for name in ("README.md", "CONTRIBUTING.md", "Makefile")),
    )
    assert names
    for name in names:
        assert_exists(f"tests/bench/{name}.py::run")


def test_help_lists_every_target():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = re.findall(r"^  make (\S+)", done.stdout, re.MULTILINE)
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(phony.split())
    assert set(listed) - {"clean"} <= MAKE.keys()


def lint_commands() -> list[str]:
    done = subprocess.run(["make", "-n", "lint"], cwd=ROOT, capture_output=True, text=True, check=True)
    return re.findall(r"^\.venv/bin/((?:ruff|pyright).*)$", done.stdout, re.MULTILINE)


def test_before_a_commit_runs_what_lint_runs():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    hooks = [hook["entry"].removeprefix(".venv/bin/").replace(" --force-exclude", "") for hook in local["hooks"]]
    assert hooks == [command.removesuffix(" .") for command in lint_commands()]
    assert len(hooks) == 3


def test_the_workflow_runs_what_a_person_runs():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    steps = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    targets = [re.fullmatch(r"make (\S+) PIP_ARGS=.*", step)[1] for step in steps]
    assert targets == re.findall(r"^make (\S+)$", (ROOT / ".ci/run").read_text("utf-8"), re.MULTILINE)
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 200


@pytest.mark.slow
def test_make_run(tmp_path):
    command = [sys.executable, "-m", "jobs.demo", str(tmp_path / "hub")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert "published    user/demo-packed at " in done.stdout
    assert "batch        1 of " in done.stdout
