"""The demo for a notebook: an embedded Hub of its own with the source on it, and the configuration to read it with."""

import os
import sys
import tempfile

from jobs.demo.__main__ import DEMO, ROOT, upload_source
from jobs.local_hub import LocalHub
from packing_udfs.config import Config
from packing_udfs.config_file import load


def start_hub() -> LocalHub:
    """A Hub in a temporary folder, in this process's environment; it ends with the process.

    Raises RuntimeError when huggingface_hub is imported already: it reads the environment when it is imported.
    """
    if "huggingface_hub" in sys.modules:
        raise RuntimeError("huggingface_hub is imported already and keeps its Hub; restart the kernel")
    hub = LocalHub(tempfile.mkdtemp(prefix="packing-notebook-")).start()
    os.environ |= hub.environment()
    return hub


def start_spark():
    """A Spark session, with the demo's source put on the Hub."""
    from jobs.shards.session import get_session

    spark = get_session()
    upload_source()
    return spark


def demo_config(*overrides: str) -> Config:
    """conf/jobs/demo.yaml from wherever the kernel runs, with overrides as on the command line."""
    return load(ROOT / "conf" / "jobs" / "demo.yaml", [f"processor.path={DEMO}/processor", *overrides])
