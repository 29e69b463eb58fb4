"""Figures of tokens and packs, drawn with matplotlib's Agg and no global state (no pyplot, no change of rcParams).

All figures are PNG: the same numbers give the same bytes with one version of matplotlib, which SVG would only do with
a setting of the whole process.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from jobs.pages import data_uri
from packing_udfs.published.pictures import IMAGE, PAD

KIND_NAMES = ("text, not trained", "text, trained", "image", "padding")
KIND_COLOURS = ("#7fb2e5", "#14508c", "#f2a33a", "#e6e6ea")
OVER, INK, GRID = "#c02231", "#24292f", "#d8dbe0"
SERIES_COLOURS = ("#8a8f98", "#7b5cc4", "#0f8a6d")
WIDTH = 11.0  # inches
DPI = 150
_ROWS_ON_TOP = 0.9  # inches for the legend and the axis below


@dataclass(frozen=True)
class TokenRow:
    """A padded sample or a pack to draw."""

    kinds: np.ndarray  # uint8 [num_tokens]
    sample_lengths: Sequence[int]
    vision_cost: int
    label: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A histogram: one filled series, or several as outlines."""

    title: str
    xlabel: str
    ylabel: str
    series: dict[str, np.ndarray]
    limit: int | None = None
    """A budget, drawn as a line."""
    limit_name: str = field(default="budget")


def token_rows(
    rows: Sequence[TokenRow], *, width: int, vision_unit: str, max_vision_cost: int | None = None, name: str = "sample"
) -> Figure:
    """Rows of a batch position by position, padded to `width` tokens, and the vision cost of each beside them.

    `name`: what a row is. A vision cost above `max_vision_cost` is red.
    """
    figure = Figure(figsize=(WIDTH, _ROWS_ON_TOP + 0.22 * max(len(rows), 3)), dpi=DPI, layout="constrained")
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
    _label(left, xlabel="position in the row, tokens")
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
        axes.axvline(budget, color=OVER, linewidth=1.2, linestyle=(0, (4, 2)))
        axes.set_title(f"budget {budget:,}", fontsize=8.5, color=OVER, loc="right")
    axes.set_xlim(0, most * 1.3)  # the numbers stand beside the bars and the budget
    axes.tick_params(axis="y", length=0, labelleft=False)
    _label(axes, xlabel=f"vision cost, {unit}")


@dataclass(frozen=True)
class Part:
    """A part of stacked bars: what it is and how much of it each bar has."""

    name: str
    colour: str
    counts: Sequence[int]


def stacked(names: Sequence[str], parts: Sequence[Part], notes: Sequence[str], xlabel: str) -> Figure:
    """A bar for each name, stacked of parts, with a note behind it."""
    figure = Figure(figsize=(WIDTH, 0.8 + 0.42 * len(names)), dpi=DPI, layout="constrained")
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
    _label(axes, xlabel=xlabel)
    figure.legend(loc="outside upper left", ncols=len(parts), frameon=False, fontsize=9)
    return figure


def histograms(panels: Sequence[Panel], num_bins: int = 24) -> Figure:
    """Panels side by side. Outlines of several series share their bins."""
    figure = Figure(figsize=(WIDTH, 2.7), dpi=DPI, layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        values = np.concatenate([[0], *panel.series.values(), [] if panel.limit is None else [panel.limit]])
        bins = _bins(int(values.max()), num_bins)
        for (name, series), colour in zip(panel.series.items(), SERIES_COLOURS[-len(panel.series) :], strict=False):
            style = {"histtype": "step", "linewidth": 1.8} if len(panel.series) > 1 else {"alpha": 0.85}
            axes.hist(series, bins=bins, color=colour, label=name, **style)
        if panel.limit is not None:
            axes.axvline(panel.limit, color=OVER, linewidth=1.2, linestyle=(0, (4, 2)), label=panel.limit_name)
        axes.set_title(panel.title, fontsize=10, color=INK, loc="left")
        axes.set_ylabel(panel.ylabel, fontsize=9, color=INK)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        _label(axes, xlabel=panel.xlabel)
        if len(panel.series) > 1 or panel.limit is not None:
            axes.set_ymargin(0.35)
            axes.legend(frameon=False, fontsize=7.5, loc="upper left")
    return figure


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A histogram that has been counted (`metrics.histograms`): counts by the largest value of a bin."""

    title: str
    xlabel: str
    ylabel: str
    counts: dict[int, int]
    limit: int | None = None
    """A budget, drawn as a line."""
    is_linear: bool = False
    """Every value is a bin, else bins are those of `metrics.bins`."""


def counted(panels: Sequence[Counted]) -> Figure:
    """Counted histograms side by side. Bins are equally wide on paper: the axis is linear to 16, then logarithmic."""
    figure = Figure(figsize=(WIDTH, 2.6), dpi=DPI, layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        place = float if panel.is_linear else _place
        axes.bar([place(v) for v in panel.counts], panel.counts.values(), 1, color=SERIES_COLOURS[-1], alpha=0.85)
        axes.set_title(panel.title, fontsize=10, color=INK, loc="left")
        axes.set_ylabel(panel.ylabel, fontsize=9, color=INK)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        _label(axes, xlabel=panel.xlabel)
        if panel.limit is not None:
            axes.axvline(place(panel.limit) + 0.5, color=OVER, linewidth=1.2, linestyle=(0, (4, 2)))
            axes.set_title(f"at most {panel.limit:,}", fontsize=8.5, color=OVER, loc="right")
        if not panel.is_linear:
            _ticks(axes, min(panel.counts, default=0), max([*panel.counts, panel.limit or 1]))
    return figure


def _place(value: int) -> float:
    """The middle of a bin by its largest value, the bins one behind the other: 1 → 1, 16 → 16, 18 → 17, 32 → 24."""
    doublings = max(0, max(0, value - 1).bit_length() - 4)
    return 8 * doublings + value / (1 << doublings)


def _ticks(axes: Axes, least: int, most: int) -> None:
    """Ticks at the middle of bins of one value, and at the end of wider ones, which is where their name stands."""
    if most <= 16:
        values = list(range(least, most + 1, -(-(most + 1 - least) // 9)))
    else:
        powers = [1 << power for power in range(3, most.bit_length() + 1) if least <= 1 << power]
        values = [0] * (least < 8) + powers[:: -(-len(powers) // 7)]
    axes.set_xticks([_place(v) + (0.5 if v > 16 else 0) for v in values], [f"{v:,}" for v in values])


def lines(xs: Sequence[int], series: dict[str, Sequence[float]], xlabel: str, ylabel: str) -> Figure:
    """One line or two over equally spaced `xs`, with the values of the higher written above its points, else below."""
    figure = Figure(figsize=(WIDTH, 2.8), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    for (name, values), colour in zip(series.items(), SERIES_COLOURS[-len(series) :], strict=True):
        axes.plot(range(len(xs)), values, marker="o", color=colour, label=name, linewidth=1.8, markersize=5)
        for x, value in enumerate(values):
            is_highest = value == max(of_other[x] for of_other in series.values())
            axes.annotate(f"{value:.3f}", (x, value), (0, 7 if is_highest else -14), textcoords="offset points",
                          ha="center", fontsize=8, color=colour)  # fmt: skip
    axes.set_xticks(range(len(xs)), [f"{x:,}" for x in xs])
    axes.margins(x=0.05, y=0.3)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
    _label(axes, xlabel=xlabel)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{xs[int(x)]:,}" if 0 <= int(x) < len(xs) else ""))
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def _bins(most: int, num_bins: int) -> np.ndarray:
    """Edges of bins that start at 0, of whole numbers each, so that no bin is emptier for its width."""
    step = max(1, -(-(most + 1) // num_bins))
    return np.arange(0, most + step + 1, step) - 0.5


def _label(axes: Axes, xlabel: str) -> None:
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(labelsize=8, colors=INK)
    axes.yaxis.label.set(fontsize=9, color=INK)
    for side in axes.spines.values():
        side.set_color(GRID)
    axes.spines[["top", "right"]].set_visible(False)


def losses(runs: dict[str, Sequence[float]], events: dict[str, int]) -> Figure:
    """Loss by step of one run or two, the second dashed so that both are seen; `events` happened behind a step."""
    figure = Figure(figsize=(WIDTH, 3.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    styles = ({"linewidth": 5, "alpha": 0.45}, {"linewidth": 1.8, "linestyle": (0, (4, 2)), "marker": "o"})
    for (name, values), colour, style in zip(runs.items(), SERIES_COLOURS[-len(runs) :], styles, strict=False):
        axes.plot(range(1, len(values) + 1), values, color=colour, label=name, **style)
    for name, step in events.items():
        axes.axvline(step + 0.5, color=OVER, linewidth=1.2, linestyle=(0, (4, 2)))
        axes.annotate(name, (step + 0.5, 1), (4, -4), xycoords=("data", "axes fraction"), textcoords="offset points",
                      fontsize=8.5, color=OVER, va="top")  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("loss per trained token", fontsize=9, color=INK)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    _label(axes, xlabel="step")
    return figure


def png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def png_uri(figure: Figure) -> str:
    """A figure as the value of a `src`."""
    return data_uri(png(figure), "image/png")
