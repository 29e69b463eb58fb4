"""The Spark session of a job: the caller's, spark-submit's, or a local one made from a properties file.

Spark's properties are in `conf/spark/*.conf` and nowhere in the code. Under spark-submit (and on Databricks) whoever
starts the job gives them, and this module adds none.
"""

import os
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jobs.java import java_home
from jobs.sources.huggingface import HuggingFace

__all__ = ["LOCAL_CONF", "ROOT", "ComputeError", "active_session", "get_session", "read_properties"]

ROOT = Path(__file__).resolve().parents[2]
LOCAL_CONF = ROOT / "jobs" / "conf" / "spark" / "local.conf"  # a link in a checkout, a folder in a wheel


class ComputeError(ValueError):
    """Spark compute that a job cannot run on; the message says which it can."""


def get_session(conf: str | Path | None = None, spark: SparkSession | None = None) -> SparkSession:
    """`spark`, the running session, or a new one; the repaired `huggingface` source is registered with it.

    `conf`: a Spark properties file for a new session; conf/spark/local.conf when absent. Raises ComputeError for a
    session that no job can run in.
    """
    spark = active_session(spark) or _start(conf)
    spark.dataSource.register(HuggingFace)
    return spark


def active_session(given: SparkSession | None = None) -> SparkSession | None:
    """The session to use if there is one: `given`, else the running one.

    Raises ComputeError for a Spark Connect session, and for one that hides its SparkContext.
    """
    spark = given or SparkSession.getActiveSession()
    try:
        if spark is None or spark.sparkContext is not None:
            return spark
    except (PySparkException, AttributeError):
        pass
    raise ComputeError(
        "this Spark session has no SparkContext: it is Spark Connect, as on Databricks serverless compute and in the "
        "standard (shared) access mode, where Python workers cannot reach the Hub or hold a shard. Use classic compute "
        "with dedicated access (data_security_mode: SINGLE_USER), as conf/databricks does, or plain spark-submit"
    )


def _start(conf: str | Path | None) -> SparkSession:
    builder = SparkSession.builder.appName("packing")
    # Set by spark-submit and by Databricks, where the caller gives the properties.
    if not {"PYSPARK_GATEWAY_PORT", "DATABRICKS_RUNTIME_VERSION"} & os.environ.keys():
        # What the JVM reads when it starts, unless the user has set it: Java, Python workers, quiet logs.
        os.environ["JAVA_HOME"] = java_home()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("SPARK_CONF_DIR", str(LOCAL_CONF.parent))
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # workers import jobs and packing_udfs from here
        for name, value in read_properties(conf or LOCAL_CONF).items():
            builder = builder.config(name, value)
    return builder.getOrCreate()


def read_properties(path: str | Path) -> dict[str, str]:
    """A Spark properties file: `name value` lines, `#` comments. Raises ValueError for any other line."""
    properties = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            name, _, value = line.partition(" ")
            if not value.strip():
                raise ValueError(f"{path}:{number}: {line!r} is not of the form `name value`")
            properties[name] = value.strip()
    return properties
