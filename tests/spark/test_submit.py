"""spark-submit runs the job as a script, from any folder, with properties of its caller's."""

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from jobs.java import java_home
from jobs.shards.session import ROOT
from tests.spark.conftest import demo_tree, files_of

pytestmark = pytest.mark.slow
README = (ROOT / "README.md").read_text("utf-8")


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


def refused(line_with: str, replaced: dict[str, str], **environment: str) -> str:
    """Output of the README's command with a text in it, for a cluster that is not there."""
    (command,) = [c for c in re.findall(r"((?:^    .*\n)+)", README, re.MULTILINE) if line_with in c]
    for old, new in replaced.items():
        assert old in command
        command = command.replace(old, new)
    command = re.sub(r"(\.venv|env)/bin\b", str(Path(sys.executable).parent), command)
    env = os.environ | {"JAVA_HOME": java_home(), "SPARK_LOCAL_IP": "127.0.0.1"} | environment
    env.pop("SPARK_CONF_DIR", None)
    shell = ["bash", "-ec", command]
    done = subprocess.run(shell, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_kubernetes_is_refused_by_nothing_but_the_missing_cluster():
    out = refused(
        "k8s://",
        {"https://my-cluster:6443": "https://127.0.0.1:1", "spark-submit ": "spark-submit --verbose "},
        KUBERNETES_REQUEST_RETRY_BACKOFFLIMIT="0",
    )
    assert "spark.executor.memoryOverhead=5800m" in out.replace(" -> ", "=")
    assert re.search(r"refused: .*127\.0\.0\.1:1\b|127\.0\.0\.1:1\b.*refused", out), out[-3000:]


def test_yarn_is_refused_by_nothing_but_the_missing_cluster(source, tmp_path):
    names = {"yarn.resourcemanager.address": "127.0.0.1:1", "yarn.resourcemanager.connect.max-wait.ms": "1000"}
    names |= {"yarn.resourcemanager.connect.retry-interval.ms": "500", "ipc.client.connect.max.retries": "0"}
    text = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in names.items())
    for file in ("yarn-site.xml", "core-site.xml"):
        (tmp_path / file).write_text(f"<configuration>{text}</configuration>")
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/token").write_text("hf_anytoken")
    tarfile.open(tmp_path / "env.tar.gz", "w:gz").close()  # where `make dist` has not been run
    verbose = f"spark-submit --verbose --conf spark.archives={tmp_path}/env.tar.gz#env "
    out = refused(
        "yarn.conf",
        {"my_job.yaml": "conf/jobs/demo.yaml", "spark-submit ": verbose},
        HOME=str(tmp_path), HADOOP_CONF_DIR=str(tmp_path),
    )  # fmt: skip
    assert "spark.executor.memoryOverhead=5800m" in out.replace(" -> ", "=")
    assert "hf_anytoken" not in out
    assert "to localhost:1 failed on connection exception" in out, out[-3000:]
