"""Charts drawn with matplotlib from seeded numbers, with questions whose answers follow from those numbers."""

import math
import random
import string

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.style import context
from PIL import Image

from tests.demo.encoded import encode

MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
# Title, unit, categories, smallest and largest value.
BARS = [
    ("Bicycles counted on the Harbour Bridge", "riders", ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], 120, 980),
    ("Loans by branch library", "thousand books", ["Central", "Northgate", "Riverside", "Old Mill", "Hill"], 8, 64),
    ("Energy use by floor", "kWh", ["Ground", "First", "Second", "Third", "Fourth", "Attic"], 200, 1900),
    ("Harvest by orchard", "tonnes", ["Apples", "Pears", "Plums", "Cherries", "Quinces"], 2, 48),
    ("Visitors to the five museums", "thousand", ["Art", "Natural history", "Rail", "Toys", "Sea"], 15, 310),
    ("Bugs closed by team", "issues", ["Search", "Mobile", "Billing", "Data", "Web", "Infra", "Docs"], 4, 90),
    ("Mean waiting time by clinic", "minutes", ["Eyes", "Skin", "Heart", "Bones", "Children"], 6, 55),
    ("Trees planted by district", "trees", ["North", "East", "South", "West", "Centre", "Harbour"], 40, 700),
]
# Title, unit, swing of the year, and for each of two series its name, mean and peak month (0 is January).
LINES = [
    ("Mean temperature", "°C", 8, ("Bergen", 8.5, 6), ("Seville", 19, 7)),
    ("Rainfall", "mm", 35, ("Coast", 85, 10), ("Inland", 70, 5)),
    ("Electricity from wind and sun", "GWh", 28, ("Wind", 62, 0), ("Sun", 40, 6)),
    ("Tickets sold", "thousand", 14, ("Theatre", 36, 1), ("Cinema", 45, 11)),
    ("Web traffic", "million requests", 6, ("Search", 30, 11), ("Checkout", 27, 10)),
    ("Water level", "cm", 60, ("Upper lock", 260, 3), ("Lower lock", 240, 4)),
]
SHARES = [
    ("How pupils come to school", ["On foot", "Bicycle", "Bus", "Car", "Train"]),
    ("Household waste by kind", ["Paper", "Glass", "Organic", "Plastic", "Residual"]),
    ("Budget of the sports club", ["Staff", "Hall rent", "Equipment", "Travel"]),
    ("Languages of the catalogue", ["English", "French", "Arabic", "Chinese", "Other"]),
]
SIZES = [(640, 480), (800, 400), (480, 640), (1000, 600), (400, 300), (1200, 500), (600, 600), (1280, 960)]
KINDS = ["PNG", "PNG", "JPEG", "PNG", "WEBP"]


def chart_rows() -> list[dict]:
    """All drawn chart rows, in a fixed order; each from a random state of its own."""
    with context("default"):
        rows = [_bar_row(i) for i in range(12)]
        rows += [_line_row(i) for i in range(10)]
        rows += [_share_row(i) for i in range(4)]
        rows += [_wide_row(i) for i in range(3)]
        rows += [_scatter_row(i) for i in range(3)]
        rows += [_pair_row(i) for i in range(4)]
    return rows


def _row(images: list[dict], turns: list[tuple[str, str]]) -> dict:
    texts = [{"user": user, "assistant": assistant} for user, assistant in turns]
    return {"images": images, "texts": texts, "source": "drawn_charts", "license": "Apache-2.0"}


def _figure(size: tuple[int, int]) -> Figure:
    figure = Figure(figsize=(size[0] / 100, size[1] / 100), dpi=100, layout="tight")
    FigureCanvasAgg(figure)
    return figure


def _encode(figure: Figure, name: str, kind: str) -> dict:
    figure.canvas.draw()
    image = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    return encode(image, name, kind, quality=60, colours=24)


def _draw_bars(topic: tuple, values: list[int], size: tuple[int, int], number: int, suffix: str = "") -> Figure:
    title, unit, names, _, _ = topic
    figure = _figure(size)
    axes = figure.add_subplot()
    colour = f"C{number % 10}"
    if number % 3 == 1:
        axes.barh(names, values, color=colour)
        axes.set_xlabel(unit)
    else:
        axes.bar_label(axes.bar(names, values, color=colour), fontsize=8)
        axes.set_ylabel(unit)
    axes.set_title(title + suffix)
    axes.tick_params(labelsize=8)
    return figure


def _bar_values(topic: tuple, draw: random.Random) -> list[int]:
    return draw.sample(range(topic[3], topic[4]), len(topic[2]))


def _bar_row(i: int) -> dict:
    topic, draw = BARS[i % len(BARS)], random.Random(100 + i)
    values = _bar_values(topic, draw)
    names, unit = topic[2], topic[1]
    most, least = names[values.index(max(values))], names[values.index(min(values))]
    turns = [
        ("What is the title of the chart?", topic[0]),
        ("Which category has the highest value?", f"{most}, with {max(values)} {unit}."),
        ("Which one is the lowest?", f"{least}, with {min(values)} {unit}."),
        (
            "How far apart are the highest and the lowest value?",
            f"{max(values)} − {min(values)} = {max(values) - min(values)} {unit}.",
        ),
        ("Give the sum over all categories.", f"The total is {sum(values)} {unit}."),
        (
            "Write the data as CSV.",
            "category,value\n" + "\n".join(f"{n},{v}" for n, v in zip(names, values, strict=True)),
        ),
    ]
    first = draw.randrange(3)
    kept = turns[first : first + 1 + i % 6]
    figure = _draw_bars(topic, values, SIZES[i % len(SIZES)], i)
    return _row([_encode(figure, f"bars_{i:02d}", KINDS[i % len(KINDS)])], kept)


def _year(draw: random.Random, swing: float, mean: float, peak: int) -> list[float]:
    return [
        round(mean + swing * math.cos((m - peak) / 6 * math.pi) + draw.uniform(-0.2, 0.2) * swing, 1) for m in range(12)
    ]


def _line_row(i: int) -> dict:
    title, unit, swing, *both = LINES[i % len(LINES)]
    draw = random.Random(200 + i)
    names = [name for name, _, _ in both]
    series = [_year(draw, swing, mean, peak) for _, mean, peak in both]
    year = 2015 + i
    figure = _figure(SIZES[(i + 3) % len(SIZES)])
    axes = figure.add_subplot()
    for name, values, style in zip(names, series, ("-o", "--s"), strict=True):
        axes.plot(MONTHS, values, style, label=name, markersize=4)
    axes.set(title=f"{title}, {year}", ylabel=unit)
    axes.grid(alpha=0.3)
    axes.legend()
    highest = max(series[0])
    above = [m for m, a, b in zip(MONTHS, *series, strict=True) if a > b]
    turns = [
        ("What do the two lines show?", f"{title} in {unit} for {names[0]} and {names[1]}, month by month in {year}."),
        (f"When is {names[0]} at its highest?", f"In {MONTHS[series[0].index(highest)]}, at about {highest} {unit}."),
        (
            f"In which months is {names[0]} above {names[1]}?",
            f"In {', '.join(above)}." if above else f"In none; {names[1]} is above it all year.",
        ),
    ]
    if i % 2:
        table = "\n".join(f"| {m} | {a} | {b} |" for m, a, b in zip(MONTHS, *series, strict=True))
        turns.append(("Turn it into a table.", f"| Month | {names[0]} | {names[1]} |\n| --- | --- | --- |\n{table}"))
    return _row([_encode(figure, f"lines_{i:02d}", KINDS[(i + 1) % len(KINDS)])], turns[i % 3 :])


def _share_row(i: int) -> dict:
    title, names = SHARES[i]
    draw = random.Random(300 + i)
    cuts = sorted(draw.sample(range(8, 92, 2), len(names) - 1))
    shares = [b - a for a, b in zip([0, *cuts], [*cuts, 100], strict=True)]
    figure = _figure([(480, 480), (600, 420), (360, 360), (900, 700)][i])
    figure.add_subplot().pie(shares, labels=names, autopct="%d%%", startangle=90)
    figure.suptitle(title)
    largest = names[shares.index(max(shares))]
    turns = [
        ("Which part is the largest?", f"{largest}, with {max(shares)} %."),
        (f"What do {names[0]} and {names[1]} make up together?", f"{shares[0] + shares[1]} %."),
    ]
    return _row([_encode(figure, f"shares_{i:02d}", "PNG")], turns)


def _wide_row(i: int) -> dict:
    draw = np.random.default_rng(400 + i)
    days = np.arange(365)
    load = np.round(50 + 20 * np.cos((days - 15) / 365 * 2 * np.pi) + draw.integers(-6, 7, 365), 1)
    spike = int(draw.integers(60, 300))
    load[spike] = 110
    figure = _figure([(1900, 400), (1600, 300), (1900, 500)][i])
    axes = figure.add_subplot()
    axes.plot(days + 1, load, linewidth=0.9, color="C3")
    axes.set(title=f"Daily peak load of substation {string.ascii_uppercase[i]}", xlabel="day of the year", ylabel="MW")
    turns = [
        ("Is there an outlier?", f"Yes, one day near day {spike + 1}, at 110 MW."),
        ("When is the load lowest apart from that?", "In summer, in the middle of the year, at around 30 MW."),
    ]
    return _row([_encode(figure, f"load_{i}", "PNG")], turns)


def _scatter_row(i: int) -> dict:
    draw = np.random.default_rng(500 + i)
    slope = (-1.2, 0.0, 1.6)[i]
    x = draw.integers(0, 100, 60) / 10
    y = slope * x + draw.integers(-20, 21, 60) / 10 + 12
    figure = _figure([(500, 500), (640, 480), (320, 240)][i])
    axes = figure.add_subplot()
    axes.scatter(x, y, s=14, alpha=0.8)
    axes.set(title=f"Sample {i + 1}", xlabel="dose (mg)", ylabel="response")
    said = (
        "a negative one: the response falls as the dose grows",
        "none to speak of",
        "a positive one, close to a line",
    )[i]
    return _row([_encode(figure, f"scatter_{i}", "PNG")], [("Which correlation do you see?", f"I see {said}.")])


def _pair_row(i: int) -> dict:
    topic, draw = BARS[(2 * i + 1) % len(BARS)], random.Random(600 + i)
    before, after = _bar_values(topic, draw), _bar_values(topic, draw)
    years = (2021 + i, 2022 + i)
    images = [
        _encode(_draw_bars(topic, values, (480, 360), i, f", {year}"), f"pair_{i}_{year}", "PNG")
        for values, year in zip((before, after), years, strict=True)
    ]
    change = [b - a for a, b in zip(before, after, strict=True)]
    name = topic[2][change.index(max(change, key=abs))]
    grown = [n for n, c in zip(topic[2], change, strict=True) if c > 0]
    turns = [
        (f"What changed most from {years[0]} to {years[1]}?", f"{name}, by {max(change, key=abs):+d} {topic[1]}."),
        ("What grew?", f"{', '.join(grown)} grew." if grown else "Nothing grew."),
        ("Compare the totals.", f"{sum(before)} {topic[1]} in {years[0]}, {sum(after)} in {years[1]}."),
    ]
    return _row(images, turns)
