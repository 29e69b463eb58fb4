"""One standalone cluster for the run, one long-lived application on it, and what kills parts of them."""

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from jobs.cluster.standalone import HOSTS, LocalCluster
from jobs.shards.session import ROOT
from tests.spark.conftest import demo_tree, files_of

DISK_BYTES = 512 << 20  # room for the archive on both hosts
CONTROL = "hf_acontrolthatisnotoken"  # a value that only redaction by value can hide
SECONDS = 300
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # as in test.conf: none of these lives for long


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("cluster"))  # one cluster, so one process


@pytest.fixture(scope="session")
def cluster(tmp_path_factory, session_hub):
    """A cluster whose Spark folders lie on a small disk of their own, where this process may mount one."""
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "local").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "packing", str(folder / "local")]
    is_mounted = bool(shutil.which("mount")) and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        options = dict.fromkeys(("SPARK_DAEMON_JAVA_OPTS", "SPARK_SUBMIT_OPTS"), QUICK_JVM)
        with LocalCluster(folder, cores=2, memory="2g", environment={"PYTHONPATH": str(ROOT), **options}) as running:
            running.has_small_disk = is_mounted
            yield running
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder / "local")], check=True)


def driver_environment(cluster: LocalCluster) -> dict[str, str]:
    """What a driver on this machine starts with: none of what this process's own Spark session has set."""
    own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOSTS[0]}
    return {k: v for k, v in cluster.environment().items() if not k.startswith(("PYSPARK_", "_PYSPARK"))} | own


def write_properties(path: Path, cluster: LocalCluster, **more: str) -> Path:
    """conf/spark/standalone.conf without the archive, since these workers have the packages, and with `more`.

    Half of the cluster's cores, one on each host: another application has room beside it.
    """
    lines = (ROOT / "conf/spark/standalone.conf").read_text("utf-8").splitlines()
    kept = [line for line in lines if not line.startswith("spark.archives")]
    added = {"spark.master": cluster.master, "spark.driver.host": HOSTS[0], "spark.cores.max": "2"}
    added |= {"spark.executor.extraJavaOptions": QUICK_JVM, **more}
    path.write_text("\n".join([*kept, *(f"{name} {value}" for name, value in added.items())]) + "\n")
    return path


class Application:
    """The driver of `driver.py` in a process of its own."""

    def __init__(self, folder: Path, cluster: LocalCluster, **more: str):
        self.events, self.log, self.ui_port = folder / "events", folder / "driver.log", free_port()
        self.events.mkdir()
        properties = {
            "spark.ui.enabled": "true",
            "spark.ui.port": str(self.ui_port),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.executorEnv.SOME_KEY": CONTROL,
            **more,
        }
        conf = write_properties(folder / "driver.conf", cluster, **properties)
        self._answers: queue.Queue = queue.Queue()
        self._log = open(self.log, "wb")  # noqa: SIM115 - closed by `stop`
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.cluster.driver", str(conf)],
            cwd=ROOT, env=driver_environment(cluster), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            text=True, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()
        self.id = self.answer()["application"]

    def _read(self) -> None:
        with self.process.stdout as lines:
            for line in lines:
                if line.startswith("ANSWER "):
                    self._answers.put(json.loads(line.removeprefix("ANSWER ")))
        self._answers.put({"ended": self.process.wait()})

    def page(self, name: str) -> str:
        """What Spark's web interface says of the application."""
        url = f"http://{HOSTS[0]}:{self.ui_port}/api/v1/applications/{self.id}/{name}"
        with urllib.request.urlopen(url, timeout=60) as page:
            return page.read().decode()

    def hosts(self) -> list[str]:
        """The host of each executor, sorted."""
        executors = json.loads(self.page("executors"))
        return sorted(e["hostPort"].partition(":")[0] for e in executors if e["isActive"] and e["id"] != "driver")

    def start(self, repo: str, ask: str = "pack", **sections) -> None:
        """Begin a job on the demo into `repo`, on both hosts; `answer` waits for it."""
        until(lambda: self.hosts() == [*HOSTS], "an executor is missing, or both are on one host")
        self.process.stdin.write(json.dumps({"ask": ask, "tree": demo_tree(repo, **sections)}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict:
        """{"commit"} or {"error"} of the job that was begun."""
        answer = self._answers.get(timeout=SECONDS)
        assert "ended" not in answer, self.log.read_text(errors="replace")[-4000:]
        return answer

    def run(self, repo: str, **sections) -> dict:
        self.start(repo, **sections)
        return self.answer()

    def events_of(self, name: str) -> list[dict]:
        """What the event log has of a kind."""
        (log,) = self.events.iterdir()
        return [json.loads(line) for line in log.read_text().splitlines() if f'"Event":"{name}"' in line]

    def stop(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._log.close()


@pytest.fixture(scope="session")
def application(cluster, source, tmp_path_factory):
    started = Application(tmp_path_factory.mktemp("application"), cluster)
    yield started
    started.stop()


@pytest.fixture
def faults(session_hub):
    """Inject faults that end with the test; the Hub's log begins with it."""
    session_hub.requests.clear()
    yield session_hub.inject
    session_hub.faults.clear()


def packs(api, repo: str) -> dict[str, str]:
    """Data and row groups of a dataset; report, card and manifest name the repository."""
    return {p: oid for p, oid in files_of(api, repo).items() if p.startswith("data/") or p == "manifest/train.parquet"}


@pytest.fixture
def same_packs(api, packed):
    """Check that a repository holds exactly what local mode made of the demo."""
    expected = packs(api, "user/packed")
    assert len(expected) == 5

    def check(repo: str) -> None:
        assert packs(api, repo) == expected

    return check


def leftovers(cluster: LocalCluster) -> set[str]:
    """Folders of shards in Spark's own, which the worker daemon removes with the application."""
    return {str(path) for path in (cluster.folder / "local").rglob("packing-*")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOSTS[0], 0))
        return probe.getsockname()[1]


def until(condition, what: str, seconds: float = SECONDS) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} after {seconds} s"
        time.sleep(0.05)


def command_lines() -> dict[int, str]:
    """The arguments of every process of this machine, by its number."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


def processes(cluster: LocalCluster, host: str, word: str) -> list[int]:
    """Processes below a host's worker daemon with a word among their arguments."""
    session = cluster.daemons[host].pid
    return [pid for pid, line in command_lines().items() if word in line and is_in_session(pid, session)]


def is_in_session(pid: int, session: int) -> bool:
    try:
        return os.getsid(pid) == session
    except ProcessLookupError:
        return False


def kill(pids: list[int]) -> int:
    """SIGKILL; the number of processes that were there."""
    killed = 0
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            killed += 1
        except ProcessLookupError:
            continue
    return killed
