"""spark-submit to the cluster as the README says, and a driver that is killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cluster import dist
from jobs.cluster.standalone import HOSTS
from jobs.shards.session import ROOT
from tests.spark.cluster.conftest import (
    command_lines,
    driver_environment,
    leftovers,
    packs,
    processes,
    until,
    write_properties,
)
from tests.spark.conftest import demo_tree

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


@pytest.fixture
def submit(cluster, source, tmp_path):
    """Start `spark-submit jobs/pack.py` on a configuration; what is left of it is killed in the end."""
    started = []

    def start(tree: dict) -> subprocess.Popen:
        job = tmp_path / "job.yaml"
        job.write_text(json.dumps(tree))
        conf = write_properties(tmp_path / "submit.conf", cluster)
        program = Path(sys.executable).with_name("spark-submit")
        command = [program, "--properties-file", conf, ROOT / "jobs/pack.py", "--config", job]
        started.append(
            subprocess.Popen(
                command,
                cwd=tmp_path, env=driver_environment(cluster),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )
        )  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize(
    ("number", "route"),
    [(signal.SIGKILL, "preupload"), (signal.SIGKILL, "commit"), (signal.SIGTERM, "preupload")],
    ids=["killed-before-the-commit", "killed-in-the-commit", "terminated"],
)
def test_a_dead_driver_leaves_the_old_commit_or_the_new(
    submit, run_demo, cluster, faults, session_hub, api, same_packs, number, route, request, tmp_path
):
    repo = f"user/{request.node.callspec.id}"
    before = run_demo(repo, shards={"seed": 3})["commit"]
    old = packs(api, repo)
    others, before_it = executors(cluster), leftovers(cluster)
    session_hub.requests.clear()
    slow = faults(route=route, delay=3.0, times=None)
    driver = submit(demo_tree(repo))
    until(lambda: slow.hits or driver.poll() is not None, f"no {route}")
    assert driver.poll() is None
    assert executors(cluster) - others
    assert route != "preupload" or leftovers(cluster) - before_it
    os.killpg(driver.pid, number)
    driver.wait(60)
    until(lambda: executors(cluster) <= others, "executors of the dead driver are left")
    until(lambda: not any(str(tmp_path) in line for line in command_lines().values()), "a driver is left")
    until(lambda: leftovers(cluster) <= before_it, "its files are left")
    session_hub.faults.clear()
    until(lambda: any(r.route == route for r in session_hub.requests.records()), "the Hub has not answered")
    if api.dataset_info(repo).sha == before:
        assert packs(api, repo) == old
    else:
        assert route == "commit"
        same_packs(repo)
    assert run_demo(repo)["commit"] == api.dataset_info(repo).sha != before
    same_packs(repo)


def executors(cluster) -> set[int]:
    return {pid for host in HOSTS for pid in processes(cluster, host, "CoarseGrainedExecutorBackend")}
