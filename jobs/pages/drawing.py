"""Figures of tokens and packs, drawn with matplotlib's Agg and no global state (no pyplot, no change of rcParams).

All figures are PNG: the same numbers give the same bytes with one version of matplotlib. SVG would need a setting of
the whole process for that.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from jobs.pages import data_uri
from packing_udfs.published.pictures import IMAGE, PAD

__all__ = ["DPI", "GRID", "INK", "KIND_COLOURS", "KIND_NAMES", "WIDTH", "Counted", "Part", "TokenRow", "Valued",
           "counted", "histograms", "lines", "losses", "png", "png_uri", "stacked", "token_rows"]  # fmt: skip

KIND_NAMES = ("text, not trained", "text, trained", "image", "padding")
KIND_COLOURS = ("#7fb2e5", "#14508c", "#f2a33a", "#e6e6ea")
OVER, INK, GRID = "#c02231", "#24292f", "#d8dbe0"
SERIES_COLOURS = ("#8a8f98", "#7b5cc4", "#0f8a6d")
WIDTH = 11.0  # inches
DPI = 150
_ROWS_ON_TOP = 0.9  # inches for the legend and the axis below
_DASHED = {"color": OVER, "linewidth": 1.2, "linestyle": (0, (4, 2))}
_COUNT = "{x:,.0f}"  # of a tick


@dataclass(frozen=True)
class TokenRow:
    """A padded sample or a pack to draw."""

    kinds: np.ndarray  # uint8 [num_tokens]
    sample_lengths: Sequence[int]
    vision_cost: int
    label: str


@dataclass(frozen=True)
class Part:
    """A part of stacked bars: what it is and how much of it each bar has."""

    name: str
    colour: str
    counts: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A histogram, one of several side by side."""

    title: str
    xlabel: str
    ylabel: str
    limit: int | None = None  # a budget, drawn as a line


@dataclass(frozen=True, kw_only=True)
class Valued(Panel):
    """A histogram of values: one filled series, or several as outlines."""

    series: Mapping[str, np.ndarray]
    limit_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Counted(Panel):
    """A histogram that has been counted (`metrics.histograms`): counts by the largest value of a bin."""

    counts: Mapping[int, int]
    is_linear: bool = False  # every value is a bin, else bins are those of `metrics.bins`


def _figure(height: float) -> Figure:
    return Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")


def token_rows(
    rows: Sequence[TokenRow], *, width: int, vision_unit: str, max_vision_cost: int | None = None, name: str = "sample"
) -> Figure:
    """Rows of a batch position by position, padded to `width` tokens, and the vision cost of each beside them.

    `name`: what a row is. A vision cost above `max_vision_cost` is red.
    """
    figure = _figure(_ROWS_ON_TOP + 0.22 * max(len(rows), 3))
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(5, 1))
    grid = np.full((len(rows), width), PAD, np.uint8)
    for y, row in enumerate(rows):
        grid[y, : len(row.kinds)] = row.kinds
    left.imshow(
        grid, aspect="auto", interpolation="nearest", cmap=ListedColormap(KIND_COLOURS), vmin=0, vmax=3,
        extent=(0, width, len(rows) - 0.5, -0.5),
    )  # fmt: skip
    for y in np.arange(0.5, len(rows) - 1):
        left.axhline(y, color="white", linewidth=2.5)
    for y, row in enumerate(rows):
        left.vlines(np.cumsum(row.sample_lengths)[:-1], y - 0.5, y + 0.5, color="white", linewidth=1.6)
    left.set_yticks(range(len(rows)), [row.label for row in rows])
    left.set_ylabel(name)
    _label(left, "position in the row, tokens")
    _vision_bars(right, [row.vision_cost for row in rows], vision_unit, max_vision_cost)
    patches = [Patch(facecolor=c, label=n) for c, n in zip(KIND_COLOURS, KIND_NAMES, strict=True)]
    figure.legend(handles=patches, loc="outside upper left", ncols=4, frameon=False, fontsize=9)
    return figure


def _vision_bars(axes: Axes, costs: Sequence[int], unit: str, budget: int | None) -> None:
    colours = [OVER if budget is not None and cost > budget else KIND_COLOURS[IMAGE] for cost in costs]
    most = max([1, *costs, budget or 0])
    axes.barh(range(len(costs)), costs, color=colours, height=0.72)
    for y, cost in enumerate(costs):
        axes.text(most * 1.3, y, f"{cost:,}", va="center", ha="right", fontsize=7.5, color=INK)
    if budget is not None:
        axes.axvline(budget, **_DASHED)
        axes.set_title(f"budget {budget:,}", fontsize=8.5, color=OVER, loc="right")
    axes.set_xlim(0, most * 1.3)  # the numbers stand beside the bars and the budget
    axes.tick_params(axis="y", length=0, labelleft=False)
    _label(axes, f"vision cost, {unit}")


def stacked(names: Sequence[str], parts: Sequence[Part], notes: Sequence[str], xlabel: str) -> Figure:
    """A bar for each name, stacked of parts, with a note behind it."""
    figure = _figure(0.8 + 0.42 * len(names))
    axes = figure.subplots()
    ends = np.zeros(len(names), np.int64)
    for part in parts:
        axes.barh(range(len(names)), part.counts, left=ends, color=part.colour, label=part.name, height=0.7)
        ends = ends + np.asarray(part.counts, np.int64)
    for y, note in enumerate(notes):
        axes.text(ends[y], y, f" {note}", va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, max(1, int(ends.max())) * 1.14)
    _label(axes, xlabel)
    figure.legend(loc="outside upper left", ncols=len(parts), frameon=False, fontsize=9)
    return figure


def histograms(panels: Sequence[Valued], num_bins: int = 24) -> Figure:
    """Histograms side by side. Outlines of several series share their bins."""
    figure = _figure(2.7)
    for axes, panel in zip(_side_by_side(figure, panels), panels, strict=True):
        values = np.concatenate([[0], *panel.series.values(), [] if panel.limit is None else [panel.limit]])
        bins = _bins(int(values.max()), num_bins)
        for (name, series), colour in zip(panel.series.items(), SERIES_COLOURS[-len(panel.series) :], strict=False):
            style: dict[str, Any] = {"alpha": 0.85}
            if len(panel.series) > 1:
                style = {"histtype": "step", "linewidth": 1.8}
            axes.hist(series, bins=bins, color=colour, label=name, **style)
        if panel.limit is not None:
            axes.axvline(panel.limit, label=panel.limit_name, **_DASHED)
        if len(panel.series) > 1 or panel.limit is not None:
            axes.set_ymargin(0.35)
            axes.legend(frameon=False, fontsize=7.5, loc="upper left")
    return figure


def _bins(most: int, num_bins: int) -> list[float]:
    """Edges of bins from 0 to `most`, as many whole numbers in each."""
    step = max(1, -(-(most + 1) // num_bins))
    return (np.arange(0, most + step + 1, step) - 0.5).tolist()


def counted(panels: Sequence[Counted]) -> Figure:
    """Counted histograms side by side. Bins are equally wide on paper: the axis is linear to 16, then logarithmic."""
    figure = _figure(2.6)
    for axes, panel in zip(_side_by_side(figure, panels), panels, strict=True):
        place = float if panel.is_linear else _place
        axes.bar([place(v) for v in panel.counts], [*panel.counts.values()], 1, color=SERIES_COLOURS[-1], alpha=0.85)
        axes.yaxis.set_major_formatter(_COUNT)
        if panel.limit is not None:
            axes.axvline(place(panel.limit) + 0.5, **_DASHED)
            axes.set_title(f"at most {panel.limit:,}", fontsize=8.5, color=OVER, loc="right")
        if not panel.is_linear:
            _ticks(axes, min(panel.counts, default=0), max([*panel.counts, panel.limit or 1]))
    return figure


def _place(value: int) -> float:
    """The middle of a bin by its largest value, on an axis where bins are 1 wide: 1 → 1, 16 → 16, 18 → 17, 32 → 24."""
    doublings = max(0, max(0, value - 1).bit_length() - 4)
    return 8 * doublings + value / (1 << doublings)


def _ticks(axes: Axes, least: int, most: int) -> None:
    """Ticks at the middle of bins of one value, and at the end of wider bins, whose name is their largest value."""
    if most <= 16:
        values = list(range(least, most + 1, -(-(most + 1 - least) // 9)))
    else:
        powers = [1 << power for power in range(3, most.bit_length() + 1) if least <= 1 << power]
        values = [0] * (least < 8) + powers[:: -(-len(powers) // 7)]
    axes.set_xticks([_place(v) + (0.5 if v > 16 else 0) for v in values], [f"{v:,}" for v in values])


def lines(xs: Sequence[int], series: Mapping[str, Sequence[float]], xlabel: str, ylabel: str) -> Figure:
    """One line or two over equally spaced `xs`. Values stand above the points of the higher line, else below."""
    figure = _figure(2.8)
    axes = figure.subplots()
    for (name, values), colour in zip(series.items(), SERIES_COLOURS[-len(series) :], strict=True):
        axes.plot(range(len(xs)), values, marker="o", color=colour, label=name, linewidth=1.8, markersize=5)
        for x, value in enumerate(values):
            is_highest = value == max(of_other[x] for of_other in series.values())
            axes.annotate(f"{value:.3f}", (x, value), (0, 7 if is_highest else -14), textcoords="offset points",
                          ha="center", fontsize=8, color=colour)  # fmt: skip
    axes.margins(x=0.05, y=0.3)
    _label(axes, xlabel, ylabel)
    axes.set_xticks(range(len(xs)), [f"{x:,}" for x in xs])
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def losses(runs: Mapping[str, Sequence[float]], events: Mapping[str, int]) -> Figure:
    """Loss by step of one run or two, the second dashed so that both are seen. `events`: the step that each follows."""
    figure = _figure(3.2)
    axes = figure.subplots()
    styles = ({"linewidth": 5, "alpha": 0.45}, {"linewidth": 1.8, "linestyle": (0, (4, 2)), "marker": "o"})
    for (name, values), colour, style in zip(runs.items(), SERIES_COLOURS[-len(runs) :], styles, strict=False):
        axes.plot(range(1, len(values) + 1), values, color=colour, label=name, **style)
    for name, step in events.items():
        axes.axvline(step + 0.5, **_DASHED)
        axes.annotate(name, (step + 0.5, 1), (4, -4), xycoords=("data", "axes fraction"), textcoords="offset points",
                      fontsize=8.5, color=OVER, va="top")  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    _label(axes, "step", "loss per trained token")
    return figure


def _side_by_side(figure: Figure, panels: Sequence[Panel]) -> list[Axes]:
    """Axes for each panel, with its title and labels."""
    found = figure.subplots(1, len(panels), squeeze=False)[0].tolist()
    for axes, panel in zip(found, panels, strict=True):
        axes.set_title(panel.title, fontsize=10, color=INK, loc="left")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        _label(axes, panel.xlabel, panel.ylabel)
    return found


def _label(axes: Axes, xlabel: str, ylabel: str | None = None) -> None:
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.xaxis.set_major_formatter(_COUNT)
    axes.tick_params(labelsize=8, colors=INK)
    if ylabel is not None:
        axes.set_ylabel(ylabel, color=INK)
    axes.yaxis.label.set(fontsize=9, color=INK)
    for side in axes.spines.values():
        side.set_color(GRID)
    axes.spines[["top", "right"]].set_visible(False)


def png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def png_uri(figure: Figure) -> str:
    """A figure as the value of a `src`."""
    return data_uri(png(figure), "image/png")
