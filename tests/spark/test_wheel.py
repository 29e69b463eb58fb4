"""The wheel that conf/databricks builds: it holds what a job needs, and its entry point runs without the checkout."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from jobs.shards.session import ROOT
from tests.spark.conftest import demo_tree

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built by the bundle's own command, in a copy of the checkout without what git ignores."""
    copy = tmp_path_factory.mktemp("checkout")
    files = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in files.stdout.decode().strip("\0").split("\0"):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, target, follow_symlinks=False)
    build = yaml.safe_load((ROOT / "conf/databricks/databricks.yml").read_text())["artifacts"]["wheel"]["build"]
    build = build.replace("python3 -m pip wheel", f"{sys.executable} -m pip wheel --no-build-isolation")  # no network
    subprocess.run(["bash", "-c", build], cwd=copy, check=True, capture_output=True)
    (found,) = (copy / "dist").glob("*.whl")
    return found


def test_the_wheel_holds_what_a_job_needs_and_no_more(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    folders = {name.split("/")[0] for name in names}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"jobs", "packing_udfs"}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    needed = [name for name in tracked if name.startswith(("jobs/", "packing_udfs/")) and (ROOT / name).is_file()]
    assert len(needed) > 80
    assert set(needed) <= names
    assert {
        "jobs/conf/spark/local.conf",
        "jobs/conf/jobs/demo.yaml",
    } <= names


def test_the_wheels_entry_point_packs(wheel, source, packed, api, tmp_path):
    """In an environment that has the dependencies and not the checkout, without a word on standard error that warns."""
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv").glob("lib/*/site-packages")
    here = next(path for path in sys.path if path.endswith("site-packages"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    (site / "dependencies.pth").write_text(f"import site; site.addsitedir({here!r})\n")  # behind the wheel's
    config = tmp_path / "job.yaml"
    config.write_text(json.dumps(demo_tree("user/packed")))
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "SPARK_CONF_DIR", "PYSPARK_PYTHON")
    }
    code = (
        "from importlib.metadata import entry_points; import jobs; print(jobs.__path__); "
        "entry_points(group='console_scripts')['packing-udfs'].load()()"
    )
    command = [
        str(tmp_path / "venv/bin/python"),
        "-W",
        "error::UserWarning",
        "-c",
        code,
        "pack",
        "--config",
        str(config),
    ]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert str(site) in done.stdout.splitlines()[0]
    assert f"published    user/packed at {packed['commit'][:12]}" in done.stdout
