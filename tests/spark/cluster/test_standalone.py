"""`python -m jobs.standalone`, as `make cluster` runs it."""

import os
import signal
import subprocess
import sys

from jobs.shards.session import ROOT
from tests.spark.cluster.conftest import command_lines, until

SERVE = [sys.executable, "-m", "jobs.standalone"]


def test_it_says_what_to_paste_and_leaves_nothing_behind(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path), "HF_TOKEN": ""}
    process = subprocess.Popen([*SERVE, "--port", "0"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        master = lines[0].split("cluster at ")[1].split(";")[0]
        assert master.startswith("spark://127.0.0.1:")
        assert "HF_TOKEN is not set here" in lines[1]
        assert f"spark-submit --master {master} --properties-file conf/spark/standalone.conf" in lines[2]
        assert len([line for line in command_lines().values() if master in line]) == 2  # its workers
    finally:
        process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    until(lambda: not any(master in line for line in command_lines().values()), "a daemon is left", 30)
    assert not list(tmp_path.glob("packing-cluster-*"))


def test_a_port_in_use_is_said(cluster):
    port = cluster.master.rpartition(":")[2]
    done = subprocess.run([*SERVE, "--port", port], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr == f"error: port {port} is in use; choose another with --port\n"
