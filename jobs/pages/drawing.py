"""Figures of tokens and packs, drawn with matplotlib's Agg and no global state (no pyplot, no change of rcParams).

All figures are PNG: the same numbers give the same bytes with one version of matplotlib, which SVG would only do with
a setting of the whole process.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jobs.pages import data_uri

try:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, MaxNLocator
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "matplotlib":
        raise
    raise ModuleNotFoundError(
        "the pages need matplotlib, which is not installed: pip install 'packing-udfs[pages]'", name="matplotlib"
    ) from None

PROMPT, RESPONSE, IMAGE, PAD = range(4)  # kinds of positions
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


def stacked_positions(names: Sequence[str], positions: Sequence[Sequence[int]]) -> Figure:
    """What an epoch computes: a bar for each name, stacked by kind of position (`positions`: [names][4 kinds])."""
    figure = Figure(figsize=(WIDTH, 0.8 + 0.42 * len(names)), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    counts = np.asarray(positions, np.int64)
    before = np.zeros(len(names), np.int64)
    for kind, colour in enumerate(KIND_COLOURS):
        axes.barh(range(len(names)), counts[:, kind], left=before, color=colour, label=KIND_NAMES[kind], height=0.7)
        before = before + counts[:, kind]
    for y, (total, pads) in enumerate(zip(counts.sum(axis=1), counts[:, PAD], strict=True)):
        text = f" {pads / total:.1%} padding" if total else " no sample fits"
        axes.text(total, y, text, va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, max(1, int(counts.sum(axis=1).max())) * 1.14)
    _label(axes, xlabel="positions of the sampled rows in one epoch, tokens and padding")
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=9)
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


def png_uri(figure: Figure) -> str:
    """A figure as the value of a `src`."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return data_uri(buffer.getvalue(), "image/png")
