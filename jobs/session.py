"""The Spark session of a job: the caller's, spark-submit's, or a local one made from a properties file.

Spark's properties live in `conf/spark/*.conf` and nowhere in the code. Under spark-submit (and on Databricks) they
are given by whoever starts the job, and this module adds none.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from jobs.huggingface_source import HuggingFace
from jobs.java import java_home

ROOT = Path(__file__).resolve().parent.parent
LOCAL_CONF = ROOT / "conf" / "spark" / "local.conf"


def get_session(conf: str | Path | None = None) -> SparkSession:
    """The running session, or a new one; the repaired `huggingface` source is registered with it.

    `conf`: a Spark properties file for a session that has to be made here; conf/spark/local.conf when absent.
    """
    spark = SparkSession.getActiveSession() or _start(conf)
    spark.dataSource.register(HuggingFace)
    return spark


def _start(conf: str | Path | None) -> SparkSession:
    builder = SparkSession.builder.appName("packing")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # set by spark-submit, whose properties are its caller's
        _prepare_environment()
        for name, value in read_properties(conf or LOCAL_CONF).items():
            builder = builder.config(name, value)
    return builder.getOrCreate()


def _prepare_environment() -> None:
    """What must be set before the JVM starts, unless the user has set it: Java, Python workers, quiet logs."""
    os.environ["JAVA_HOME"] = java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("SPARK_CONF_DIR", str(LOCAL_CONF.parent))
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # workers import jobs and packing_udfs from here


def read_properties(path: str | Path) -> dict[str, str]:
    """A Spark properties file: `name value` lines, `#` comments. Raises ValueError for a line that is neither."""
    properties = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            name, _, value = line.partition(" ")
            if not value.strip():
                raise ValueError(f"{path}:{number}: {line!r} is not of the form `name value`")
            properties[name] = value.strip()
    return properties
