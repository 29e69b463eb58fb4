"""A standalone Spark cluster on this machine: a master and two workers from the pip package, which has no scripts.

    python -m jobs.standalone                  serves until Ctrl-C and prints the spark-submit line to paste
    with LocalCluster(folder) as cluster:      in a test: free ports, and nothing is left behind
        subprocess.run(["spark-submit", "--master", cluster.master, ...], env=cluster.environment())

The workers have hosts of their own, 127.0.0.1 and 127.0.0.2: Spark starts a speculative attempt only on another host,
and loses shuffle files by host. Ready in about 10 s. Rejected: `local-cluster[2,1,1024]`, whose workers are threads of
the driver and die only with it.

The daemons inherit this process's environment and executors inherit theirs, so HF_TOKEN and HF_ENDPOINT reach the
Python workers without being a Spark property.
"""

import errno
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pyspark

from jobs.java import java_home

__all__ = ["HOSTS", "ClusterError", "LocalCluster"]

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("127.0.0.1", "127.0.0.2")  # of the workers; the master is on the first
START_SECONDS, STOP_SECONDS = 120, 15


class ClusterError(RuntimeError):
    """The cluster did not start; the message says which daemon and what its log ends with."""


class LocalCluster:
    """A master and a worker on each of `HOSTS`.

    `folder`: logs, executors' folders and shuffle files, made if missing; `port`: of the master, 0 for a free one;
    `cores`, `memory`: of each worker; `environment`: variables of the daemons beside this process's own. Once started,
    `master` is spark://host:port, and `daemons` has the processes of "master" and of each host.
    """

    def __init__(
        self, folder: str | Path, *, port: int = 0, cores: int = 1, memory: str = "1g",
        environment: Mapping[str, str] | None = None,
    ):  # fmt: skip
        self.folder = Path(folder).absolute()
        self._port, self._cores, self._memory = port, cores, memory
        self._environment = dict(environment or {})
        self.daemons: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> "LocalCluster":
        """Start the daemons and wait for both workers. Raises ClusterError, JavaError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        port, self._web_port = _free_port(self._port), _free_port()
        self.master = f"spark://{HOSTS[0]}:{port}"
        with ExitStack() as undo:
            undo.callback(self.stop)
            where = ("--host", HOSTS[0], "--port", str(port), "--webui-port", str(self._web_port))
            self._spawn("master", HOSTS[0], "master.Master", *where)
            for host in HOSTS:
                self.start_worker(host)
            self.wait_for_workers(len(HOSTS))
            undo.pop_all()
        return self

    def start_worker(self, host: str) -> None:
        """Start the worker of a host, which must not be running."""
        assert host not in self.daemons or self.daemons[host].poll() is not None, f"{host} has a worker"
        resources = ("--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(self.folder / host))
        self._spawn(host, host, "worker.Worker", "--host", host, "--webui-port", "0", *resources, self.master)

    def wait_for_workers(self, num: int) -> None:
        """Until the master counts `num` workers. Raises ClusterError after START_SECONDS, or when a daemon ends."""
        end = time.monotonic() + START_SECONDS
        while self.num_workers() != num:
            for name, process in self.daemons.items():
                if process.poll() is not None:
                    log = (self.folder / f"{name}.log").read_text(errors="replace")
                    raise ClusterError(f"the daemon {name} ended:\n{log[-2000:]}")
            if time.monotonic() > end:
                raise ClusterError(f"{self.num_workers()} of {num} workers after {START_SECONDS} s: see {self.folder}")
            time.sleep(0.2)

    def num_workers(self) -> int:
        """Living workers that the master knows; 0 while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{HOSTS[0]}:{self._web_port}/json/", timeout=5) as answer:
                state = json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return 0
        if state["url"] != self.master:  # Spark takes the next port if one is in use
            raise ClusterError(f"port {self.master.rpartition(':')[2]} is in use; choose another with --port")
        return sum(worker["state"] == "ALIVE" for worker in state["workers"])

    def stop(self) -> None:
        """End all daemons, and with them the executors and their Python workers."""
        running = [process for process in self.daemons.values() if process.poll() is None]
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        end = time.monotonic() + STOP_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.daemons.clear()

    def __exit__(self, *exception) -> None:
        self.stop()

    def environment(self) -> dict[str, str]:
        """The environment of the daemons, which also fits a driver's spark-submit."""
        own = {
            "JAVA_HOME": java_home(),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_CONF_DIR": str(ROOT / "conf" / "spark"),
            "SPARK_NO_DAEMONIZE": "1",
        }
        return os.environ | own | self._environment

    def _spawn(self, name: str, host: str, main_class: str, *arguments: str) -> None:
        environment = self.environment() | {"SPARK_LOCAL_IP": host, "SPARK_LOCAL_DIRS": str(self.folder / "local")}
        command = [f"{environment['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{main_class}", *arguments]
        with open(self.folder / f"{name}.log", "ab") as log:
            # In a session of its own: Ctrl-C in a terminal is for this process, which then ends the daemons in order.
            self.daemons[name] = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


def _free_port(wanted: int = 0) -> int:
    """A port to listen on. With one in use, the workers would join somebody else's master. Raises ClusterError."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: closed connections linger
        try:
            probe.bind((HOSTS[0], wanted))
        except OSError as error:
            why = f"cannot be used: {error.strerror}"
            if error.errno == errno.EADDRINUSE:
                why = "is in use; choose another with --port"
            raise ClusterError(f"port {wanted} {why}") from None
        return probe.getsockname()[1]
