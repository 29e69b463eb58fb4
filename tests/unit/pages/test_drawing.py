"""Figures that are drawn from counts and cards: where bars, ticks and texts stand."""

import io

import numpy as np
import pytest
from PIL import Image

from jobs.pages import drawing, sample_cards
from jobs.pages.drawing import Counted
from jobs.pages.sample_cards import SampleCard
from packing_udfs import metrics


def test_bins_stand_side_by_side():
    """The bins of all values to 5,000, one behind the other, each one wide."""
    ends = np.unique(metrics.bins(np.arange(5000))).tolist()
    places = [drawing._place(end) for end in ends]
    assert places[:18] == list(range(18))
    assert np.diff(places).tolist() == [1] * (len(ends) - 1)


def panel(**changes) -> Counted:
    values = {"title": "Length", "xlabel": "tokens", "ylabel": "samples", "counts": {16: 3, 18: 5, 4096: 1}}
    return Counted(**values | changes)


def test_a_histogram_by_hand():
    """Three bars of one bin each; the budget stands at the right end of the bin that it ends."""
    axes = drawing.counted([panel(limit=4096)]).axes[0]
    bars = [(bar.get_x() + 0.5, bar.get_width(), bar.get_height()) for bar in axes.patches]
    assert bars == [(16, 1, 3), (17, 1, 5), (drawing._place(4096), 1, 1)]
    (line,) = axes.lines
    assert set(line.get_xdata()) == {drawing._place(4096) + 0.5}
    ticks = {label.get_text(): at for at, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)}
    assert ticks["4,096"] == drawing._place(4096) + 0.5
    assert ticks["16"] == 16


@pytest.mark.parametrize("counts", [{}, {0: 4}, {3: 1}, {16: 2}, {17: 1}, {1 << 20: 7}])
def test_any_counts_can_be_drawn(counts):
    figure = drawing.counted(
        [panel(counts=counts), panel(counts=counts, limit=8), panel(counts=counts, is_linear=True)]
    )
    assert drawing.png(figure).startswith(b"\x89PNG")
    for axes in figure.axes:
        assert len(axes.get_xticks()) <= 12


def test_equal_figures_are_equal_bytes():
    one, other = (drawing.png(drawing.lines([2, 4], {"a": [1.0, 1.1], "b": [1.2, 1.0]}, "x", "y")) for _ in range(2))
    assert one == other


def test_the_higher_line_has_its_values_above():
    axes = drawing.lines([2, 4], {"a": [1.0, 1.1], "b": [1.2, 1.0]}, "ranks", "y").axes[0]
    above = {text.get_text() for text in axes.texts if text.xyann[1] > 0}
    assert above == {"1.200", "1.100"}


def test_losses_have_their_event_behind_its_step():
    axes = drawing.losses({"whole": [3.0, 2.0], "killed": [3.0, 2.0]}, {"killed": 1}).axes[0]
    assert [line.get_xdata()[0] for line in axes.lines] == [1, 1, 1.5]


def jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 20)).save(buffer, "JPEG")
    return buffer.getvalue()


def sample(**changes) -> SampleCard:
    turns = [{"role": "user", "text": "What costs $5 and $6?"}, {"role": "assistant", "text": "Tea 漢."}]
    values = {
        "id": 1, "source": "charts", "turns": turns, "num_turns_hidden": 0,
        "images": [{"jpeg": jpeg(), "width": 400, "height": 200}], "num_images": 1,
        "num_tokens": 100, "num_image_tokens": 64, "num_label_tokens": 6, "vision_cost": 1,
        "tokens": [], "num_tokens_hidden": 0,
    }  # fmt: skip
    return SampleCard(**values | changes)


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def test_a_card_has_its_turns_and_its_image():
    figure = sample_cards.card(sample(), "tiles")
    assert texts(figure)[1:] == ["prompt", r"What costs \$5 and \$6?", "response", "Tea □."]
    assert "100 tokens: 64 of images, 6 trained     1 image, vision cost 1 tiles" in texts(figure)[0]
    picture, strip = figure.axes
    assert picture.images[0].get_array().shape == (20, 40, 3)
    assert [bar.get_width() for bar in strip.patches] == [64, 30, 6]
    drawing.png(figure)  # with warnings as errors: no glyph is missing


def test_long_turns_are_cut_and_broken_images_left_out():
    long = [{"role": "user", "text": "word " * 1000}]
    figure = sample_cards.card(sample(turns=long, images=[{"jpeg": None, "width": 4, "height": 2}]), "tiles")
    lines = texts(figure)[2:]
    assert len(lines) == sample_cards.LINES_A_TURN
    assert lines[-1].endswith("word …")
    assert not figure.axes[0].images
