"""Compute that a job cannot run on is refused before anything else."""

import pytest
from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from jobs import pack
from jobs.shards.session import ComputeError, active_session, get_session
from packing_udfs import config


class ConnectSession:
    """What a Spark Connect session does when asked for its context (pyspark.sql.connect.session)."""

    @property
    def sparkContext(self):  # noqa: N802 - Spark's name
        raise PySparkAttributeError(
            errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "sparkContext"}
        )


class Bare:
    """A session without the attribute."""


@pytest.mark.parametrize("session", [ConnectSession(), Bare()])
def test_spark_connect_is_refused(session):
    for use in (active_session, lambda spark: get_session(spark=spark)):
        with pytest.raises(ComputeError, match=r"serverless.*standard \(shared\).*data_security_mode: SINGLE_USER"):
            use(session)


def test_the_job_says_so_first():
    """Before it looks at the processor or asks a Hub."""
    job = config.parse({"sources": [{"repo": "user/nothing"}], "processor": {"path": "user/nothing"},
                        "output": {"repo": "user/packed"}})  # fmt: skip
    with pytest.raises(ComputeError):
        pack.run(job, ConnectSession())


def test_a_classic_session_is_used():
    class Classic:
        sparkContext = object()  # noqa: N815 - Spark's name

    session = Classic()
    assert active_session(session) is session
    assert active_session(None) is SparkSession.getActiveSession()
