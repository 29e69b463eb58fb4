"""What a forecast says, against what the same rows are when all of them are packed."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from jobs.forecast import estimates
from jobs.forecast import forecast as module
from jobs.forecast.forecast import Forecast, as_text, forecast
from jobs.plan import main as plan_command
from jobs.shards import plan
from packing_udfs import config, knapsack
from packing_udfs.config import ConfigError
from tests import drawn_sources

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<:DeprecationWarning", "ignore::ResourceWarning")

NUM_ROWS = 1200
PROCESSOR = str(Path(__file__).parents[3] / "jobs" / "demo" / "processor")


@pytest.fixture(scope="module")
def repo(session_hub) -> str:
    return drawn_sources.upload("user/drawn", drawn_sources.rows(NUM_ROWS, 0))


def job(repo: str, source: dict | None = None, **sections) -> config.Config:
    tree = {
        "sources": [{"repo": repo, **(source or {})}],
        "processor": {"path": PROCESSOR},
        "pack": {"max_vision_cost": 56},
        "shards": {"num_shards": 4},
        "output": {"repo": "user/forecast"},
    }
    return config.parse({name: {**tree.get(name, {}), **fields} for name, fields in sections.items()} | {
        name: value for name, value in tree.items() if name not in sections
    })  # fmt: skip


@pytest.fixture(scope="module")
def whole(repo) -> Forecast:
    """The forecast from all rows."""
    return forecast(job(repo), max_rows=NUM_ROWS, global_batch_size=16)


def test_of_rows_that_are_all_read_nothing_but_the_shuffle_is_uncertain(whole):
    assert whole.sources[0].num_rows_read == NUM_ROWS
    for name in ("num_samples", "num_tokens", "num_label_tokens", "num_images", "vision_cost"):
        assert getattr(whole, name).low == getattr(whole, name).estimate == getattr(whole, name).high > 0
    assert whole.upload_bytes.low > 0.99 * whole.upload_bytes.high
    assert whole.num_samples.estimate + whole.num_duplicates.estimate == NUM_ROWS
    packs = whole.num_packs
    assert packs.low <= packs.estimate <= packs.high <= packs.low * 1.02
    least = max(whole.num_tokens.estimate / 4096, whole.vision_cost.estimate / 56)
    assert least <= packs.low
    assert whole.fill.estimate == pytest.approx(whole.num_tokens.estimate / packs.estimate / 4096, rel=3e-3)
    assert whole.num_steps.estimate == packs.estimate // 16


def test_images_are_those_of_the_rows(whole):
    rows = drawn_sources.rows(NUM_ROWS, 0)
    assert whole.num_images.estimate == sum(len(row["images"]) for row in rows)
    assert whole.num_quarantined.estimate == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_third_of_the_rows_tells_of_the_rest(repo, whole, seed):
    """Within the 5 % that are promised; intervals are meant to hold nine times in ten, and hold for these seeds."""
    found = forecast(job(repo, shards={"num_shards": 4, "seed": seed}), max_rows=420)
    assert found.sources[0].num_rows_read in range(400, 480)
    assert found.num_packs.estimate == pytest.approx(whole.num_packs.estimate, rel=0.05)
    for name in ("num_packs", "num_tokens", "num_samples"):
        assert getattr(found, name).low <= getattr(whole, name).estimate <= getattr(found, name).high, name
    assert 0.01 < found.num_packs.high / found.num_packs.low - 1 < 0.15


def test_the_same_seed_says_the_same(repo):
    assert forecast(job(repo), max_rows=200) == forecast(job(repo), max_rows=200)


def test_limits_and_weights_are_applied(repo, whole):
    """Half the rows, three times each: one and a half times as much of everything."""
    found = forecast(job(repo, {"limit": NUM_ROWS // 2, "weight": 3.0}), max_rows=NUM_ROWS)
    for name in ("num_samples", "num_tokens", "num_packs"):
        assert getattr(found, name).estimate == pytest.approx(1.5 * getattr(whole, name).estimate, rel=0.02)
    assert found.sources[0].num_rows_used == 1.5 * NUM_ROWS


def test_a_weight_is_met_about(repo, whole):
    """Hashes take half of 1,200 rows give or take √(1200 / 4) = 17, in nine of ten runs by no more than 28."""
    found = forecast(job(repo, {"weight": 0.5}), max_rows=NUM_ROWS)
    samples, middle = found.num_samples, NUM_ROWS / 2
    assert samples.estimate == middle
    assert [samples.low, samples.high] == pytest.approx([middle - 28, middle + 28], abs=5)
    assert found.num_packs.high / found.num_packs.low > 1.08


def test_steps_are_of_training_packs(repo, whole):
    found = forecast(job(repo, shards={"validation_fraction": 0.25}), max_rows=NUM_ROWS, global_batch_size=1)
    assert found.num_steps.estimate == pytest.approx(0.75 * found.num_packs.estimate, rel=0.02)
    none = forecast(job(repo), max_rows=200, global_batch_size=1 << 20)
    assert none.num_steps.high == 0
    assert "1048576 packs a step are more than" in module.as_text(none)


def test_reasons_are_said(repo):
    found = forecast(
        job(repo, pack={"seq_len": 1200, "max_vision_cost": 56}, quality={"max_quarantine_fraction": 1.0}), max_rows=200
    )
    (reason,) = found.quarantine_in_sample
    count, read = found.quarantine_in_sample[reason], found.sources[0].num_rows_read
    assert reason == "too_long"
    assert f"\n  {count:,} of {read:,} rows read: too_long" in module.as_text(found)


def test_small_shards_pack_worse(repo, whole):
    found = forecast(job(repo, shards={"num_shards": 256}), max_rows=NUM_ROWS)
    assert found.num_tokens == whole.num_tokens
    assert found.num_packs.low > 1.01 * whole.num_packs.high


@pytest.mark.parametrize("num_shards", [1 << 11, 1 << 16])
def test_there_are_no_more_packs_than_samples(repo, whole, num_shards):
    """Shards of hardly a sample: one pack each of those that have any, which are 2¹⁶ × (1 − e^(−1200 / 2¹⁶)) or so."""
    samples = whole.num_samples.estimate
    with_any = num_shards * -math.expm1(-samples / num_shards)
    for max_rows in (NUM_ROWS, 420):
        found = forecast(job(repo, shards={"num_shards": num_shards}), max_rows=max_rows)
        assert found.num_packs.estimate == pytest.approx(with_any, rel=0.08)
        assert found.num_packs.high <= found.num_samples.high
        assert 0.9 * with_any < found.num_packs.low


@pytest.mark.parametrize(("mean", "expected"), [(1e-4, 1.0), (1.0, 1.582), (5.0, 5.034), (300.0, 300.0)])
def test_sizes_of_shards_that_have_any(mean, expected):
    """mean / (1 − e^−mean)."""
    sizes = estimates._sizes(mean, 20_000, 3)
    assert sizes.min() >= 1
    assert sizes.mean() == pytest.approx(expected, rel=0.01)
    assert sizes.var() == pytest.approx(expected * (1 + mean - expected), rel=0.05, abs=1e-3)


@pytest.mark.parametrize("source", [{"weight": 1e-9}, {"weight": 1e-300}, {"limit": 1, "weight": 0.25}])
def test_limits_and_weights_that_leave_nothing(repo, source, monkeypatch):
    monkeypatch.setattr(module, "draw", lambda *args: pytest.fail("rows are read"))
    with pytest.raises(ConfigError, match=r"leave about .* of 1200 rows: no sample could be packed; use larger ones"):
        forecast(job(repo, source))


@pytest.mark.parametrize("status", [401, 403, 404])
def test_rows_that_cannot_be_read_are_an_error_of_the_source(repo, session_hub, tmp_path, capsys, monkeypatch, status):
    """Footers could be: access ended in between."""
    path = tmp_path / "job.yaml"
    path.write_text(job(repo).model_dump_json())
    draw = module.draw

    def draw_without_access(*args):
        session_hub.inject(route="resolve", path="parquet", status=status, times=None)
        return draw(*args)

    monkeypatch.setattr(module, "draw", draw_without_access)
    try:
        assert plan_command(["--config", str(path)]) == 1
    finally:
        session_hub.faults.clear()
    assert re.match(f"error: sources.0.repo: rows of {repo} cannot be read: .*{status}", capsys.readouterr().err)


def test_rows_that_are_set_aside_are_counted(repo, whole):
    found = forecast(job(repo, pack={"max_vision_cost": 56, "max_images_per_sample": 1}), max_rows=NUM_ROWS)
    several = sum(len(row["images"]) > 1 for row in drawn_sources.rows(NUM_ROWS, 0))
    assert found.quarantine_in_sample == {"too_many_images": several}
    assert found.num_quarantined.estimate == several
    assert any("the run fails" in text for text in found.warnings) == (several > 0.05 * NUM_ROWS)


def test_files_commits_memory_and_disk(repo):
    """64 shards: README, two reports, two pictures, two manifests; four parts of 19, one for the rest, the merge."""
    settings = job(repo, shards={"num_shards": 64}, output={"repo": "user/forecast", "max_operations_per_commit": 20})
    found = forecast(settings, max_rows=300, num_executors=4)
    assert (found.num_shards, found.num_files, found.num_commits) == (64, 71, 6)
    disk, memory = found.executor_shuffle_bytes, found.task_memory_bytes
    assert memory.estimate == pytest.approx(400e6 + 3.5 * disk.estimate * 4 / 64, rel=1e-6)
    given = sum(_num_bytes(row) for row in drawn_sources.rows(NUM_ROWS, 0))
    assert disk.estimate * 4 == pytest.approx(given, rel=0.1)


def _num_bytes(row: dict) -> int:
    images = sum(len(image["bytes"]) for image in row["images"])
    return images + sum(len(turn["user"]) + len(turn["assistant"]) for turn in row["texts"])


def test_demand_is_that_of_the_scarcest_budget():
    def demand(budgets, *sums):
        names = ("num_tokens", "vision_cost", "num_images")
        return estimates.demand(budgets, dict(zip(names, sums, strict=True)))

    budgets = knapsack.Budgets(num_tokens=100, vision_cost=10, num_images=4)
    assert demand(budgets, 1000, 50, 8) == 10
    assert demand(budgets, 1000, 150, 8) == 15
    assert demand(budgets, 1000, 50, 80) == 20
    assert demand(knapsack.Budgets(num_tokens=100), 1000, 999, 999) == 10
    assert demand(budgets, np.array([100, 200]), np.array([50, 0]), np.array([0, 0])).tolist() == [5, 2]


def test_few_blocks_widen_an_interval():
    assert estimates._widened(16) == pytest.approx(1.0328 * (1 + 0.9265 / 15), rel=1e-3)
    assert estimates._widened(10_000) == pytest.approx(1, abs=1e-3)
    assert math.isfinite(estimates._widened(1))


def test_sources_without_a_sample_are_refused(session_hub):
    rows = [row | {"texts": []} for row in drawn_sources.rows(40, 1)]
    repo = drawn_sources.upload("user/drawn-mute", rows)
    with pytest.raises(ConfigError, match="none of 40 rows read can be packed"):
        forecast(job(repo))


def test_limits_of_the_hub_are_refused(repo, monkeypatch):
    many = job(repo, output={"repo": "user/forecast", "max_operations_per_commit": 101})
    with pytest.raises(ConfigError, match="more than the 100 that the Hub"):
        forecast(many, max_rows=64)
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 10_000)
    with pytest.raises(ConfigError, match=r"shards.num_shards: 4 makes files of .* use more shards"):
        forecast(job(repo), max_rows=64)
    monkeypatch.setattr(plan, "MAX_FILES", 4)
    with pytest.raises(ValueError, match="makes 4 files"):
        forecast(job(repo), max_rows=64)


@pytest.mark.parametrize(
    ("num_packs", "num_bytes", "num_groups", "global_batch_size", "better"),
    [
        (32, 80_000_000, 1000, 8, None),  # large enough
        (32, 8_000_000, 1000, 8, 128),  # 16, then 32 MB
        (32, 20_000_000, 1000, 8, 64),
        (32, 100_000, 10_000, 8, 128),  # texts only: no more than 128
        (128, 8_000_000, 1000, 8, None),
        (100, 8_000_000, 1000, 8, None),
        (32, 8_000_000, 64, 8, 64),  # 32 of 64 packs: four for each of 8 lanes
        (32, 8_000_000, 32, 8, None),  # as few as there should be
        (32, 8_000_000, 3, 8, None),
    ],
)
def test_larger_row_groups_are_told_where_they_pay(num_packs, num_bytes, num_groups, global_batch_size, better):
    assert module.better_row_groups(num_packs, num_bytes, num_groups, global_batch_size) == better


def test_row_groups_of_an_odd_size_are_said(repo, monkeypatch):
    def said(num_packs: int, **options) -> list[str]:
        shards = {"num_shards": 1, "num_packs_per_row_group": num_packs}
        warnings = forecast(job(repo, shards=shards), max_rows=NUM_ROWS, **options).warnings
        return [text for text in warnings if text.startswith("shards.num_packs_per_row_group: row groups of ")]

    (small,) = said(1, global_batch_size=1)
    num_packs = int(re.search(r"with (\d+) packs each, a reader asks less often", small)[1])
    assert num_packs > 1
    assert said(num_packs, global_batch_size=1) == []
    monkeypatch.setattr(module, "VIEWER_BYTES", 1)
    (large,) = said(1, global_batch_size=1)
    assert large.endswith("; the Hub's viewer reads 0 MB")


@pytest.mark.parametrize("name", ["max_rows", "global_batch_size", "num_executors"])
def test_arguments_below_one_are_refused(repo, name):
    with pytest.raises(ConfigError, match=f"{name}: 0 is refused"):
        forecast(job(repo), **{name: 0})


def test_command_line(repo, tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(job(repo).model_dump_json())
    assert plan_command(["--config", str(path), "--max-rows", "128", "--json"]) == 0
    found = forecast(job(repo), max_rows=128)
    assert json.loads(capsys.readouterr().out) == found.model_dump()
    assert plan_command(["--config", str(path), "--max-rows", "128"]) == 0
    shown = capsys.readouterr().out
    assert shown == as_text(found) + "\n"
    assert f"{found.num_packs.low:,} – {found.num_packs.high:,}" in shown
    assert "user/forecast: 4 shards, 11 files, 1 commit\n" in shown
    assert plan_command(["--config", str(path), "output.max_operations_per_commit=500"]) == 1
    assert "output.max_operations_per_commit" in capsys.readouterr().err


def test_three_rows_of_each_source_are_drawn_as_they_will_be_trained(session_hub):
    """Prompt, image and answer of the first; why nothing is trained of the others."""
    rows = [row for row in drawn_sources.rows(60, 7) if row["images"]][:20]
    rows[1]["texts"][0]["assistant"] = " "
    rows[2] = dict(rows[0])
    found = forecast(job(drawn_sources.upload("user/drawn-rows", rows)), max_rows=20, global_batch_size=1)
    (source,) = found.sources
    assert (source.adapter, source.unused, source.kept) == ("finevision", [], [])
    assert source.why == "auto, by images, texts (a list of {user, assistant})"
    first, blank, again = source.drawn
    assert [row.row for row in source.drawn] == [0, 1, 2]
    turn, (height, width) = rows[0]["texts"][0], drawn_sources.size_of(rows[0])
    assert f"[image 1: {width} × {height}, " in first.text
    assert turn["user"] in first.text
    assert f"« {turn['assistant']}<end_of_utterance>»" in first.text
    assert (blank.reason, again.reason) == ("texts_missing", "duplicate: an earlier row has the same content")
    text = as_text(found)
    assert f"row 0: {first.num_tokens:,} tokens, trained between « »" in text
    assert "row 1: nothing is trained, texts_missing" in text


def test_columns_are_named_as_used_kept_or_unused(session_hub):
    rows = [row | {"license": "mit", "note": i, "id": i} for i, row in enumerate(drawn_sources.rows(4, 8))]
    repo = drawn_sources.upload("user/more-columns", rows, more={"license": "string", "note": "int64", "id": "int64"})
    found = forecast(job(repo, {"keep": ["license"], "ignore": ["id"]}), max_rows=4, global_batch_size=1)
    (source,) = found.sources
    assert (source.columns, source.kept, source.unused) == (
        ["images", "texts.user", "texts.assistant"], ["license"], ["note"]
    )  # fmt: skip
    text = as_text(found)
    assert "\n    unused  note\n" in text
    assert "\n    kept    license\n" in text
