"""What a forecast says of a job is what the job then does, within 5 % of its packs."""

import pytest

from jobs import pack
from jobs.forecast.forecast import forecast
from packing_udfs import config
from tests import drawn_sources
from tests.spark.conftest import demo_tree

# Of small shards and of few, of a part of the rows, of rows that are set aside, of two splits.
CASES = {
    "whole": ({}, {}),
    "many shards": ({"shards": {"num_shards": 16}}, {}),
    "limit and weight": ({}, {"limit": 900, "weight": 1.5}),
    "two splits": ({"shards": {"num_shards": 4, "validation_fraction": 0.3}}, {}),
    "one budget": ({"pack": {"max_vision_cost": None, "seq_len": 8192}}, {}),
}


@pytest.fixture(scope="module")
def repo(session_hub) -> str:
    return drawn_sources.upload("user/drawn-job", drawn_sources.rows(1500, 4))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_packs_are_as_many_as_was_said(spark, repo, case):
    sections, source = CASES[case]
    out = f"user/forecast-{case.replace(' ', '-')}"
    settings = config.parse(demo_tree(out, **({"sources": [{"repo": repo, **source}]} | sections)))
    said = forecast(settings, max_rows=500)
    report = pack.run(settings, spark)
    num_packs = sum(split["totals"]["num_packs"] for split in report["splits"].values())
    num_tokens = sum(split["totals"]["num_tokens"] for split in report["splits"].values())
    assert num_packs > 50
    assert said.num_packs.estimate == pytest.approx(num_packs, rel=0.05)
    assert said.num_tokens.estimate == pytest.approx(num_tokens, rel=0.05)
    assert said.num_shards == sum(split["totals"]["num_files"] for split in report["splits"].values())
    written = sum(split["totals"]["num_bytes"] for split in report["splits"].values())
    assert said.upload_bytes.estimate == pytest.approx(written, rel=0.1)


def test_the_demo_is_read_as_a_whole_and_foreseen(spark, source, packed):
    said = forecast(config.parse(demo_tree("user/packed")))
    total = packed["splits"]["train"]["totals"]
    assert said.num_packs.low <= total["num_packs"] <= said.num_packs.high
    assert said.num_tokens.estimate == total["num_tokens"]
    assert said.num_samples.estimate == total["num_samples"]
    assert said.quarantine_in_sample == packed["quarantine"]
    assert said.num_duplicates.estimate == sum(source["num_duplicates"] for source in packed["sources"])
    assert said.num_files == total["num_files"] + 8  # README, two reports, two pictures, two manifests, quarantine
    assert said.num_commits == 1
