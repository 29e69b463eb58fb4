"""The property files: every property is one that Spark knows, with a value that it takes, below a comment."""

import re

import pytest
from pyspark.errors import IllegalArgumentException

from jobs.shards.session import ROOT, read_properties

FILES = sorted((ROOT / "conf" / "spark").glob("*.conf"))
REGISTRIES = (  # objects that register their entries when they are loaded
    "org.apache.spark.internal.config.package$",
    "org.apache.spark.internal.config.UI$",
    "org.apache.spark.internal.config.Python$",
    "org.apache.spark.sql.internal.SQLConf$",
    "org.apache.spark.deploy.k8s.Config$",
    "org.apache.spark.deploy.yarn.config.package$",
)
BY_PREFIX = re.compile(  # names that go on with one of the user's choice, and so are in no registry
    r"spark\.executorEnv\.\w+"
    r"|spark\.kubernetes\.(driver|executor)\.secretKeyRef\.\w+"
    r"|spark\.kubernetes\.executor\.volumes\.emptyDir\.spark-local-dir-\d\.(mount\.path|options\.sizeLimit)"
    r"|spark\.master"
)


@pytest.fixture(scope="module")
def fault_of(spark):
    """What Spark has against a property, None when it knows the name and takes the value."""
    jvm = spark.sparkContext._jvm
    for name in REGISTRIES:
        jvm.java.lang.Class.forName(name)

    def fault(name: str, value: str) -> str | None:
        if BY_PREFIX.fullmatch(name):
            return None
        entry = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry(name)
        if entry is None:
            return "unknown"
        try:
            jvm.org.apache.spark.SparkConf(False).set(name, value).get(entry)
        except IllegalArgumentException as error:
            return str(error)
        return None

    return fault


def choices(text: str) -> dict[str, str]:
    """Properties that a file offers in its comments."""
    return dict(re.findall(r"^# (spark\.\S+) (\S+)$", text, re.MULTILINE))


def test_there_is_a_file_for_each_kind_of_cluster():
    assert [file.stem for file in FILES] == ["kubernetes", "local", "standalone", "yarn"]


def test_unknown_names_and_bad_values_are_seen(fault_of):
    assert fault_of("spark.executor.memori", "1g") == "unknown"
    assert fault_of("spark.executor.memory", "much") is not None
    assert fault_of("spark.executor.memory", "1g") is None


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_spark_knows_every_property(fault_of, file):
    properties = read_properties(file) | choices(file.read_text("utf-8"))
    assert len(properties) > 5
    assert {name: fault_of(name, value) for name, value in properties.items() if fault_of(name, value)} == {}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_property_stands_below_its_comment(file):
    """One comment may stand above a few properties of one purpose; an empty line ends what it is about."""
    for paragraph in re.split(r"\n\n+", file.read_text("utf-8").strip()):
        is_property = [line.startswith("spark.") for line in paragraph.splitlines()]
        assert not is_property[0], paragraph
        assert max(len(run) for run in "".join("p" if p else " " for p in is_property).split() or [""]) <= 3, paragraph


def test_no_file_has_a_token():
    assert not [file for file in FILES if re.search(r"\bhf_(?!token\b|\[)\w{6,}", file.read_text("utf-8"))]
