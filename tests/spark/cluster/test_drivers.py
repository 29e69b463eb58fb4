"""spark-submit to the cluster as the README says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from jobs import dist
from jobs.session import ROOT
from tests.spark.cluster.conftest import driver_environment

README = (ROOT / "README.md").read_text("utf-8")


def readme_command(start: str) -> str:
    """The README's command with a text in it."""
    (found,) = [c for c in re.findall(r"((?:^    .*\n)+)", README, re.MULTILINE) if start in c]
    return found[found.index("PYSPARK_PYTHON") :]


def test_the_readme_runs_on_workers_with_a_bare_python(source, cluster, faults, api, same_packs, tmp_path):
    """Their Python has none of our packages; `env` is the archive there, and a link to the environment here."""
    bare = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    assert subprocess.run([bare, "-c", "import pyarrow"], env={}, capture_output=True, check=False).returncode == 1
    names = dist.build(tmp_path / "dist" / "packing-env.tar.gz")
    assert {"packing-udfs", "pyarrow", "huggingface-hub"} <= set(names)
    assert not {"pyspark", "torch"} & set(names)
    (tmp_path / "env").symlink_to(sys.prefix)
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    with open(tmp_path / "conf/spark/standalone.conf", "a") as file:
        file.write("spark.cores.max 2\n")
        file.write(f"spark.executorEnv.PATH {bare.parent}:/usr/bin:/bin\n")
        file.write("spark.executorEnv.PYTHONPATH /nowhere\n")
    command = readme_command("spark://").replace("spark://127.0.0.1:7077", cluster.master)
    environment = driver_environment(cluster)
    del environment["PYSPARK_PYTHON"], environment["PYTHONPATH"], environment["SPARK_HOME"]
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"published    user/demo-packed at {api.dataset_info('user/demo-packed').sha[:12]}" in done.stdout
    same_packs("user/demo-packed")
