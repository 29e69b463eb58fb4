"""The stages of a comparison in numbers worked out by hand, its page, and what its command line refuses."""

import json
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import compare
from jobs.forecast import comparison as comparison_module
from jobs.forecast import comparison_page
from jobs.forecast.stages import Samples, StageFigures, make_stages, row_sums, stage_figures
from jobs.pages import share
from jobs.sources.sample import share_out
from packing_udfs import config, config_file
from packing_udfs.encode.encoder import Encoder
from packing_udfs.encode.processor import fetch
from packing_udfs.knapsack import Amounts
from packing_udfs.metrics import NAIVE_BATCH
from packing_udfs.published.pictures import IMAGE
from tests.unit.demo_samples import DEMO, as_spark_gives, demo_rows

STAGES = ["naive_padding", "constrained_padding", "greedy", "first_fit_decreasing", "balanced"]
CONF = str(DEMO.parents[1] / "conf" / "jobs" / "demo.yaml")


def made_samples(lengths: list[int], vision_costs: list[int]) -> Samples:
    """Samples of which only lengths and costs matter."""
    none = [np.empty(0)] * len(lengths)
    costs = np.asarray(vision_costs)
    return Samples(
        ids=np.arange(len(lengths)), input_ids=none, kinds=none, image_num_tokens=none, images=none,
        amounts=Amounts(num_tokens=lengths, vision_cost=costs, num_images=np.minimum(costs, 1)),
    )  # fmt: skip


def made_config(seq_len: int, num_packs_per_row_group: int = 4, **pack) -> config.Config:
    return config.parse(
        {
            "sources": [{"repo": "user/rows"}],
            "processor": {"path": "somewhere"},
            "pack": {"seq_len": seq_len, **pack},
            "shards": {"num_packs_per_row_group": num_packs_per_row_group},
            "output": {"repo": "user/packs"},
        }
    )


def figures_of(
    samples: Samples, settings: config.Config, *, global_batch_size=2, scale=Fraction(1)
) -> dict[str, StageFigures]:
    stages = make_stages(samples, settings)
    return {stage.name: stage_figures(stage, samples, settings, global_batch_size, scale) for stage in stages}


# Five samples for packs of 10 tokens and a vision cost of 4; the fourth is too long for any.
FIVE = made_samples([6, 2, 4, 12, 3], [3, 0, 2, 0, 2])


@pytest.fixture(scope="module")
def five() -> dict[str, StageFigures]:
    return figures_of(FIVE, made_config(10, max_vision_cost=4), scale=Fraction(3, 2))


@pytest.mark.parametrize(
    ("name", "rows", "positions", "waste", "lost", "tokens_lost", "steps"),
    [
        ("naive_padding", 5, 60, 0.55, 0, 0, 4),  # 5 × 12 positions, 27 tokens; ⌈7.5 / 2⌉ steps
        ("constrained_padding", 4, 40, 0.625, 1, 12, 3),  # 4 × 10, 15 tokens; 6 / 2
        ("greedy", 2, 20, 0.25, 1, 12, 2),  # (6 2) (4 3); ⌈3 / 2⌉
        ("first_fit_decreasing", 2, 20, 0.25, 1, 12, 2),  # (6 4) (3 2)
        ("balanced", 2, 20, 0.25, 1, 12, 2),  # (6 2) (4 3) is the only way under both budgets
    ],
)
def test_stage_in_numbers(five, name, rows, positions, waste, lost, tokens_lost, steps):
    got = five[name]
    assert (got.num_rows, got.num_positions, got.waste) == (rows, positions, waste)
    assert (got.num_samples_lost, got.num_tokens_lost, got.num_steps) == (lost, tokens_lost, steps)
    assert got.num_samples + lost == 5
    assert got.num_tokens + tokens_lost == 27


def test_packing_by_length_breaks_the_vision_budget(five):
    """First-fit decreasing puts 6 and 4 together, whose vision costs 3 and 2 are over 4."""
    over = {name: (five[name].num_rows_over_budget, five[name].largest_vision_cost) for name in STAGES[2:]}
    assert over == {"greedy": (0, 4), "first_fit_decreasing": (1, 5), "balanced": (0, 4)}


def test_bounds_are_of_the_budgets_that_a_stage_keeps():
    """15 tokens of 10 a pack need 2; a vision cost of 12, at 4 a pack, needs 3."""
    got = figures_of(made_samples([6, 2, 4, 3], [4, 4, 4, 0]), made_config(10, max_vision_cost=4))
    assert [got[name].bound for name in STAGES] == [None, None, 2, 2, 3]
    assert (got["balanced"].num_rows, got["balanced"].over_bound) == (3, 0.0)


def test_too_many_images_in_a_pack_count_as_over_budget():
    got = figures_of(made_samples([5, 5], [1, 1]), made_config(10, max_images_per_pack=1))
    assert got["first_fit_decreasing"].num_rows_over_budget == 1
    assert (got["balanced"].num_rows_over_budget, got["balanced"].num_rows) == (0, 2)


def test_naive_padding_is_by_batch():
    """One sample of 100 tokens costs its own batch only."""
    got = figures_of(made_samples([100] + [10] * (2 * NAIVE_BATCH - 1), [0] * 2 * NAIVE_BATCH), made_config(100))
    assert got["naive_padding"].num_positions == NAIVE_BATCH * 100 + NAIVE_BATCH * 10


def test_straggler_of_ranks_with_a_row_each():
    """Eight samples, one with all the vision: the busiest of 8 ranks has 8 times the mean."""
    got = figures_of(made_samples([10] * 8, [9] + [0] * 7), made_config(10))
    assert {got[name].straggler_8 for name in STAGES} == {8.0}
    assert figures_of(made_samples([10] * 7, [9] + [0] * 6), made_config(10))["naive_padding"].straggler_8 is None


def test_balanced_packs_meet_their_like():
    """64 packs of which half cost 1 and half 3: dealt by row groups, every step is of one kind."""
    got = figures_of(made_samples([10] * 64, [1, 3] * 32), made_config(10, num_packs_per_row_group=2))
    assert got["balanced"].straggler_8 == 1.0
    assert got["first_fit_decreasing"].straggler_8 > 1.2


def test_no_sample_fits():
    got = figures_of(made_samples([20, 30], [1, 1]), made_config(10))
    for name in STAGES[1:]:
        assert (got[name].num_rows, got[name].waste, got[name].num_samples_lost) == (0, None, 2)
        assert (got[name].num_steps, got[name].over_bound) == (0, None)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), min_size=1, max_size=60),
    st.integers(5, 40),
    st.integers(1, 12),
)
def test_stages_lay_out_every_sample_that_fits(samples, seq_len, budget):
    made = made_samples([length for length, _ in samples], [cost for _, cost in samples])
    stages = {stage.name: stage for stage in make_stages(made, made_config(seq_len, max_vision_cost=budget))}
    fits = [i for i, (length, _) in enumerate(samples) if length <= seq_len]
    fits_all = [i for i in fits if samples[i][1] <= budget]
    expected = [list(range(len(samples))), fits, fits, fits, fits_all]
    for stage, of_stage in zip(stages.values(), expected, strict=True):
        assert sorted(np.concatenate([[], *stage.rows]).tolist()) == of_stage
        assert (row_sums(stage, made.lengths) <= stage.widths).all()
        assert stage.bound is None or stage.bound <= len(stage.rows)
    assert row_sums(stages["balanced"], made.vision_costs).max(initial=0) <= budget


@given(st.integers(0, 200), st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_shares(total, sizes):
    shares = share_out(total, sizes)
    assert sum(shares) == min(total, sum(sizes))
    assert all(0 <= got <= size for got, size in zip(shares, sizes, strict=True))
    if total <= sum(sizes) > 0:
        exact = [total * size / sum(sizes) for size in sizes]
        assert all(abs(got - want) < 1 for got, want in zip(shares, exact, strict=True))


def test_shares_by_hand():
    assert share_out(10, [30, 60, 10]) == [3, 6, 1]
    assert share_out(4, [1, 1, 1, 2]) == [1, 1, 1, 1]  # 0.8 0.8 0.8 1.6: the remainders 0.8 come before 0.6
    assert share_out(10, [2, 3]) == [2, 3]


@pytest.fixture(scope="module")
def demo() -> comparison_module.Comparison:
    settings = config_file.load(CONF, [f"processor.path={DEMO / 'processor'}"])
    processor = fetch(settings.processor.path)
    sources = [
        comparison_module.SourceFigures(
            name=name,
            repo="user/demo-source",
            config=name,
            split="train",
            commit="0" * 40,
            num_rows=num_rows,
            num_rows_read=num_rows,
        )
        for name, num_rows in (("charts_and_pages", 136), ("photos_and_drawings", 93))
    ]
    frame = as_spark_gives(demo_rows())
    return comparison_module.lay_out(settings, processor, Encoder(processor.load()), sources, frame, 32)


@pytest.fixture(scope="module")
def page(demo) -> str:
    return comparison_page.page(demo)


def test_json(demo):
    found = json.loads(comparison_module.as_json(demo.figures))
    assert set(found) == {
        "config", "global_batch_size", "naive_batch", "num_ranks", "processor", "sample", "sources", "stages",
        "versions",
    }  # fmt: skip
    assert [stage["name"] for stage in found["stages"]] == STAGES
    assert set(found["stages"][0]) == {
        "bound", "largest_vision_cost", "name", "num_positions", "num_rows", "num_rows_over_budget", "num_samples",
        "num_samples_lost", "num_steps", "num_tokens", "num_tokens_lost", "over_bound", "straggler_8", "title", "waste",
    }  # fmt: skip


def test_printed_table(demo):
    header, *lines = comparison_module.as_text(demo.figures).splitlines()
    assert header.split() == ["waste", "lost", "rows", "bound", "over", "budget", "straggler", "steps"]
    assert [line[:20].strip() for line in lines] == [stage.title for stage in demo.figures.stages]
    naive = demo.figures.stages[0]
    expected = [f"{naive.waste:.1%}", "0", "219", "–", "–", f"{naive.straggler_8:.3f}", "7"]  # ⌈219 / 32⌉ steps
    assert lines[0].split()[2:] == expected


def test_every_demo_row_has_an_outcome(demo):
    """229 rows: two duplicates, and as the demo's README has it, three broken images, one without texts, four rated 1
    throughout. The row of 10,200 tokens is a sample, which no packing takes."""
    sample = demo.figures.sample
    assert (sample.num_selected, sample.num_duplicates, sample.num_samples) == (229, 2, 219)
    assert sum(sample.quarantine.values()) == 8
    assert sample.longest > 10_000
    assert [stage.num_samples_lost for stage in demo.figures.stages[:4]] == [0, 1, 1, 1]


def test_samples_are_what_the_encoder_makes(demo):
    samples = demo.samples
    assert len(samples.images) == len(samples) == 219
    for i in range(len(samples)):
        assert len(samples.input_ids[i]) == samples.lengths[i] == len(samples.kinds[i])
        assert (samples.kinds[i] == IMAGE).sum() == samples.image_num_tokens[i].sum() == 64 * samples.vision_costs[i]
        assert len(samples.images[i]) == samples.num_images[i] == len(samples.image_num_tokens[i])
    assert samples.num_images.max() > 1


def test_page_fetches_nothing(page):
    references = re.findall(r"""(?:src|href|srcset|action)\s*=\s*["']?([^"'\s>]+)""", page)
    assert references
    assert all(reference.startswith("data:image/") for reference in references)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "<script" not in page
    assert "<link" not in page


def test_page_has_every_stage_with_its_picture(page, demo):
    for number, anchor in enumerate(["samples", "naive_padding", "constrained_padding", "length_packing", "balanced"]):
        assert re.search(rf'<h2 id="{anchor}">{number + 1}\. ', page)
    for stage in demo.figures.stages:
        assert f"<td>{stage.title}</td>" in page
        assert share(stage.waste) in page
    # One of positions, one for each of the five layouts, two of histograms; photos are JPEG.
    assert page.count('src="data:image/png') == 1 + 5 + 2
    assert page.count('src="data:image/jpeg') >= 3
    images = re.findall(r"<img[^>]*>", page)
    assert all(re.search(r'alt="[^"]{10,}"', image) for image in images)


def test_page_shows_prompt_response_and_tokens(page):
    assert len(re.findall(r'<article class="sample">', page)) == 4
    for part in ('<div class="turn user">', '<div class="turn assistant">', '<span class="image">image, '):
        assert part in page
    assert "\ufffd" not in page  # characters of several tokens are whole


def test_same_data_gives_the_same_bytes(demo, page):
    shuffled = demo.frame.sample(frac=1, random_state=3)
    processor = fetch(str(DEMO / "processor"))
    settings = config.parse(demo.figures.config)
    again = comparison_module.lay_out(settings, processor, demo.encoder, demo.figures.sources, shuffled, 32)
    assert comparison_module.as_json(again.figures) == comparison_module.as_json(demo.figures)
    assert comparison_page.page(again) == page


def test_page_when_nothing_fits_no_budget_is_set_and_a_name_is_html(demo):
    tree = demo.figures.config
    tree = tree | {"pack": tree["pack"] | {"seq_len": 8, "max_vision_cost": None, "max_images_per_sample": None}}
    sources = [demo.figures.sources[0].model_copy(update={"name": "<script>alert(1)</script>"})]
    processor = fetch(str(DEMO / "processor"))
    found = comparison_module.lay_out(config.parse(tree), processor, demo.encoder, sources, demo.frame.head(30), 32)
    assert [stage.num_rows for stage in found.figures.stages][1:] == [0, 0, 0, 0]
    page = comparison_page.page(found)
    assert "no vision budget" in page
    assert "None" not in re.sub(r"<pre>.*</pre>", "", page, flags=re.DOTALL)
    assert "&lt;script&gt;alert(1)" in page
    assert "<script" not in page


def test_nothing_to_pack(demo):
    broken = demo.frame[demo.frame["reason"].notna()]
    processor = fetch(str(DEMO / "processor"))
    settings = config.parse(demo.figures.config)
    with pytest.raises(ValueError, match=r"none of the 5 rows read can be packed: .*'ratings': 4"):
        comparison_module.lay_out(settings, processor, demo.encoder, demo.figures.sources, broken, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "nowhere.yaml"], "error: configuration nowhere.yaml: cannot be read"),
        (["--config", CONF, "pack.seq_len=0"], "error: pack.seq_len: 0 is refused"),
        (["--config", CONF, "--max-samples", "0"], "error: max_samples: 0 is refused"),
        (["--config", CONF, "--global-batch-size", "-1"], "error: global_batch_size: -1 is refused"),
        (["--config", CONF, "processor.path=no/such"], "error: processor.path: 'no/such'"),
        (
            ["--config", CONF, f"processor.path={DEMO}/processor", "sources.0.repo=user/none"],
            "error: sources.0.repo: no dataset user/none",
        ),
    ],
)
def test_bad_input_is_said_and_nothing_written(arguments, message, tmp_path, capsys):
    assert compare.main([*arguments, "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith(message)
    assert not (tmp_path / "out").exists()
