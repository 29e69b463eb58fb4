"""The Databricks bundle: of the published types, with every path, entry point, package and property that it names.

`databricks bundle validate` asks a workspace; these checks need no network. What they cannot see is a workspace's own
rules (node types, policies).
"""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from databricks.bundles.jobs import Job
from packaging.requirements import Requirement

from jobs import cli
from jobs.shards.session import ROOT, read_properties
from packing_udfs import config_file

BUNDLE = ROOT / "conf" / "databricks"
TREE = yaml.safe_load((BUNDLE / "databricks.yml").read_text("utf-8"))
(RESOURCES,) = [yaml.safe_load(path.read_text("utf-8")) for path in BUNDLE.glob("resources/*.yml")]
JOB = RESOURCES["resources"]["jobs"]["pack"]
PACK, REPORT = JOB["tasks"]
CLUSTER = JOB["job_clusters"][0]["new_cluster"]
# Of conf/spark, what goes for any cluster; the rest is about masters, machines and their memory.
SHARED = {
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.maxBytesPerBatch",
    "spark.sql.parquet.columnarReaderBatchSize",
    "spark.speculation",
    "spark.redaction.regex",
}


def test_the_job_is_of_the_published_types():
    job = Job.from_dict(JOB)
    assert [task.task_key for task in job.tasks] == ["pack", "report"]
    assert job.tasks[0].python_wheel_task.package_name == "packing_udfs"
    assert job.job_clusters[0].new_cluster.data_security_mode.name == "SINGLE_USER"


@pytest.mark.parametrize("wrong", [{"nodetype": "x"}, {"data_security_mode": "SHARED"}, {"num_workers": "two"}])
def test_the_published_types_refuse_what_is_wrong(wrong):
    """Or the test above would pass whatever the bundle says."""
    clusters = [{"job_cluster_key": "packing", "new_cluster": CLUSTER | wrong}]
    with pytest.raises(ValueError, match=r"nodetype|SHARED|two"):
        Job.from_dict(JOB | {"job_clusters": clusters})


def test_the_bundle_has_the_keys_that_bundles_have():
    assert TREE.keys() == {"bundle", "include", "sync", "artifacts", "variables", "targets"}
    assert TREE["targets"].keys() == {"dev", "prod"}
    assert {name: target["mode"] for name, target in TREE["targets"].items()} == {
        "dev": "development",
        "prod": "production",
    }
    assert [name for name, target in TREE["targets"].items() if target.get("default")] == ["dev"]
    assert TREE["artifacts"]["wheel"].keys() == {"type", "path", "build"}


def test_every_variable_is_defined_and_used():
    text = "".join(path.read_text("utf-8") for path in BUNDLE.rglob("*.yml"))
    assert set(re.findall(r"\$\{var\.(\w+)\}", text)) == TREE["variables"].keys()
    assert all(variable["description"] for variable in TREE["variables"].values())
    names = {parameter["name"] for parameter in JOB["parameters"]}
    assert set(re.findall(r"\{\{job\.parameters\.(\w+)\}\}", text)) == names


def test_every_path_exists():
    for folder in TREE["sync"]["paths"]:
        assert (BUNDLE / folder).is_dir(), folder
    assert sorted(BUNDLE.glob(TREE["include"][0])) == [BUNDLE / "resources" / "pack.yml"]
    assert (BUNDLE / TREE["artifacts"]["wheel"]["path"]).resolve() == ROOT
    resources = BUNDLE / "resources"
    assert (resources / REPORT["notebook_task"]["notebook_path"]).is_file()
    wheel, requirements = PACK["libraries"]
    assert (resources / wheel["whl"]).parent.resolve() == ROOT / "dist"  # where the artifact's build puts it
    assert "--wheel-dir dist" in TREE["artifacts"]["wheel"]["build"]
    assert (resources / requirements["requirements"]).is_file()
    default = TREE["variables"]["config"]["default"].removeprefix("${workspace.file_path}/")
    assert config_file.load(ROOT / default, [f"output.repo={TREE['variables']['output']['default']}"]).output


def test_the_entry_point_is_the_wheels(monkeypatch):
    """And its command and arguments are the job's."""
    task = PACK["python_wheel_task"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert task["package_name"] == project["name"].replace("-", "_")
    assert project["scripts"][task["entry_point"]] == "jobs.cli:main"
    seen = []
    monkeypatch.setattr("jobs.pack.run", lambda config, spark, spark_conf: seen.append(config) or 1 / 0)
    values = {"{{job.parameters.config}}": "conf/jobs/demo.yaml", "{{job.parameters.output}}": "user/elsewhere"}
    arguments = task["parameters"]
    for name, value in values.items():
        arguments = [argument.replace(name, value) for argument in arguments]
    monkeypatch.chdir(ROOT)
    with pytest.raises(ZeroDivisionError):
        cli.main(arguments)
    assert seen[0].output.repo == "user/elsewhere"


def test_the_requirements_are_the_extra_without_pyspark():
    lines = (BUNDLE / "requirements.txt").read_text("utf-8").splitlines()
    found = {Requirement(line) for line in lines if not line.startswith("#")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert found == {Requirement(text) for text in extras["spark"]} - {Requirement("pyspark>=4.0")}


def test_spark_properties_are_those_of_conf_spark():
    files = [read_properties(path) for path in ROOT.glob("conf/spark/*.conf")]
    assert CLUSTER["spark_conf"].keys() == SHARED
    for name, value in CLUSTER["spark_conf"].items():
        assert {file[name] for file in files if name in file} == {value}, name
    assert CLUSTER["spark_version"] == "17.3.x-scala2.13"


def test_the_token_comes_from_a_secret_and_is_nowhere_else():
    assert CLUSTER["spark_env_vars"]["HF_TOKEN"] == "{{secrets/${var.secret_scope}/token}}"
    for path in BUNDLE.rglob("*"):
        if path.is_file():
            assert not re.search(r"hf_[A-Za-z0-9]{6,}", path.read_text("utf-8")), path


def test_the_command_refuses_and_explains(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["pakc"])
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("error: no command 'pakc'\nusage: packing-udfs COMMAND")
    cli.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(cli.COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_no_command_is_a_request_for_help(arguments, capsys):
    cli.main(arguments)
    assert capsys.readouterr().out.startswith("usage: packing-udfs COMMAND")


def test_the_version_is_the_installed_one(capsys):
    assert cli.main(["--version"]) is None
    assert capsys.readouterr().out == f"packing-udfs {metadata.version('packing-udfs')}\n"


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_is_a_modules_main(name, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main([name, "--help"])
    assert exit_.value.code == 0
    assert "usage: " in capsys.readouterr().out


def test_a_failed_command_exits(monkeypatch):
    """A wheel task looks at no returned code."""
    monkeypatch.setattr("jobs.pack.main", lambda argv: 1)
    with pytest.raises(SystemExit) as exit_:
        cli.main(["pack"])
    assert exit_.value.code == 1
    monkeypatch.setattr("jobs.pack.main", lambda argv: 0)
    assert cli.main(["pack"]) is None
    assert metadata.version("packing-udfs")
    assert Path(cli.__file__).parent == ROOT / "jobs"
