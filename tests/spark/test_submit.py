"""spark-submit runs the job as a script, from any folder, with properties of its caller's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.java import java_home
from jobs.session import ROOT
from tests.spark.conftest import demo_tree, files_of

pytestmark = pytest.mark.slow


def submit(tmp_path, tree: dict) -> subprocess.CompletedProcess:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(tree))
    command = [
        str(Path(sys.executable).with_name("spark-submit")),
        *("--master", "local[2]", "--properties-file", str(ROOT / "conf/spark/standalone.conf")),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.archives="),
        *(str(ROOT / "jobs/pack.py"), "--config", str(path)),
    ]
    env = os.environ | {"JAVA_HOME": java_home(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    env.pop("SPARK_CONF_DIR", None)
    return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)


def test_spark_submit_gives_the_same_dataset(source, packed, api, tmp_path):
    done = submit(tmp_path, demo_tree("user/packed"))
    assert done.returncode == 0, done.stderr
    assert f"published    user/packed at {packed['commit'][:12]}" in done.stdout
    assert api.dataset_info("user/packed").sha == packed["commit"]


def test_spark_submit_fails_with_the_job(source, api, tmp_path):
    done = submit(tmp_path, demo_tree("user/submitted", quality={"max_quarantine_fraction": 0.0}))
    assert done.returncode == 1
    assert "error: quality.max_quarantine_fraction: " in done.stdout  # spark-submit joins a script's two streams
    assert list(files_of(api, "user/submitted")) == [".gitattributes"]
