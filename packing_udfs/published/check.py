"""What is wrong with stored packs: every rule of the contract that packs can be held to without their samples.

A row group is checked as whole arrays, and each rule names the first packs that break it. Rules about counts come
first: where lists and totals disagree, nothing can be said of which token belongs to which sample, so the row group's
other rules wait until that is mended. Cost: about 0.1 ms a pack, of which images' headers are most.
Rejected: checking pack by pack in Python (a hundred times slower), stopping at the first fault (a repair needs all).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from packing_udfs import contract
from packing_udfs.contract import IGNORE_INDEX
from packing_udfs.encode.family import Family, Size
from packing_udfs.encode.images import ImageError, decode, read_size
from packing_udfs.knapsack import axes
from packing_udfs.walk import offsets, segment_sums

MAX_FAULTS = 3  # of one rule in one row group that are named one by one
_MAY_BE_NULL = ("images.path", "sample_kept")


class Fault(NamedTuple):
    """A rule that is broken: the pack's row in its row group (None for the row group), the field, and how."""

    row: int | None
    field: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What packs are held to. `image_token`: the id of images' placeholders, None when not known."""

    pack: Mapping[str, int | None]
    """The limits of packs and samples by their field of `config.Pack`; None or no entry is no limit."""
    sources: Sequence[str] = ()
    image_token: int | None = None
    family: Family | None = None
    """Counts placeholders and vision cost of images by their size, when the processor is at hand."""
    decodes: bool = False
    """Whether images are decoded; otherwise their headers are read."""


def check_row_group(packs: pa.Table, limits: Limits) -> Iterator[Fault]:
    """The faults of one row group's packs. `packs` has `contract.PACK_SCHEMA`."""
    assert packs.schema.equals(contract.PACK_SCHEMA)
    columns = {name: packs[name].combine_chunks() for name in packs.column_names}
    for check in (_nulls, _counts):
        faults = list(check(columns))
        yield from faults
        if faults:
            return
    yield from _budgets(columns, limits)
    yield from _tokens(columns)
    yield from _samples(columns, limits)
    yield from _placeholders(columns, limits)
    yield from _images(columns, limits)


def _nulls(columns: dict[str, pa.Array]) -> Iterator[Fault]:
    def walk(name: str, values: pa.Array) -> Iterator[Fault]:
        if values.null_count and (name not in _MAY_BE_NULL or pa.types.is_list(values.type)):
            yield Fault(None, name, f"{values.null_count} nulls; the contract has none")
        if pa.types.is_list(values.type):
            yield from walk(name, values.flatten())
        elif pa.types.is_struct(values.type):
            for field, inner in zip(values.type, values.flatten(), strict=True):
                yield from walk(f"{name}.{field.name}", inner)

    for name, values in columns.items():
        yield from walk(name, values)


def _counts(columns: dict[str, pa.Array]) -> Iterator[Fault]:
    tokens, images, samples = columns["num_tokens"], columns["num_images"], _lengths(columns["sample_ids"])
    stated = {"token": ("num_tokens says", tokens.to_numpy()), "image": ("num_images says", images.to_numpy())}
    stated["sample"] = "sample_ids has", samples
    facts = [
        (name, "values", _lengths(columns[name]), column.level)
        for name, column in contract.PACK_COLUMNS.items()
        if column.level != "pack"
    ]
    for name, what, level in (("sample_lengths", "tokens", "token"), ("sample_num_images", "images", "image")):
        total = segment_sums(columns[name].flatten().to_numpy(), _lengths(columns[name]))
        facts.append((name, f"{what} in all samples", total, level))
    for name, what, found, level in facts:
        says, number = stated[level]
        told = f"{what}, {says}"
        yield from _named(found != number, lambda i, f=found, n=number, t=told: f"{f[i]} {t} {n[i]}", name)
    yield from _named(samples < 1, lambda i: "no sample", "sample_ids")
    for name, least in (("sample_lengths", 1), ("sample_num_images", 0), ("image_num_tokens", 1), ("input_ids", 0)):
        low = columns[name].flatten().to_numpy() < least
        packs = _owners(_lengths(columns[name]))
        yield from _named(_any(low, packs, len(tokens)), lambda i, least=least: f"a value below {least}", name)


def _budgets(columns: dict[str, pa.Array], limits: Limits) -> Iterator[Fault]:
    for axis in axes.AXES:
        limit, values = limits.pack.get(axis.limit), columns[axis.name].to_numpy()
        if limit is not None:
            told = f"{axis.limit} is {limit}"
            yield from _named(values > limit, lambda i, v=values, t=told: f"{v[i]}, {t}", axis.name)


def _tokens(columns: dict[str, pa.Array]) -> Iterator[Fault]:
    ids, labels = (columns[name].flatten().to_numpy() for name in ("input_ids", "labels"))
    num_tokens, num_label_tokens = columns["num_tokens"].to_numpy(), columns["num_label_tokens"].to_numpy()
    packs, starts = _owners(num_tokens), offsets(num_tokens)

    def at(i: int, wrong: np.ndarray) -> int:
        return int(np.flatnonzero(wrong & (packs == i))[0])

    odd = (labels != IGNORE_INDEX) & (labels != ids)
    yield from _named(
        _any(odd, packs, len(num_tokens)),
        lambda i: f"{labels[at(i, odd)]} at token {at(i, odd) - starts[i]}, where input_ids has {ids[at(i, odd)]}",
        "labels",
    )
    lengths = columns["sample_lengths"].flatten().to_numpy()
    first = np.zeros(len(labels), bool)
    first[offsets(lengths)[:-1]] = True
    early = first & (labels != IGNORE_INDEX)
    yield from _named(
        _any(early, packs, len(num_tokens)),
        lambda i: f"token {at(i, early) - starts[i]} is a sample's first and trained; nothing comes before it",
        "labels",
    )
    found = segment_sums(labels != IGNORE_INDEX, num_tokens)
    wrong = found != num_label_tokens
    yield from _named(wrong, lambda i: f"{num_label_tokens[i]}, labels has {found[i]}", "num_label_tokens")


def _samples(columns: dict[str, pa.Array], limits: Limits) -> Iterator[Fault]:
    samples = _lengths(columns["sample_ids"])
    packs = _owners(samples)
    most = limits.pack.get("max_images_per_sample")
    many = columns["sample_num_images"].flatten().to_numpy() > (np.inf if most is None else most)
    message = f"a sample has more images than max_images_per_sample, {most}"
    yield from _named(_any(many, packs, len(samples)), lambda i: message, "sample_num_images")
    if limits.sources:
        names = columns["sample_sources"].flatten()
        unknown = ~np.isin(names.to_numpy(zero_copy_only=False), list(limits.sources))
        of_pack = dict(zip(packs[unknown][::-1].tolist(), names.filter(unknown).to_pylist()[::-1], strict=True))
        unknown_packs = _any(unknown, packs, len(samples))
        yield from _named(unknown_packs, lambda i: f"{of_pack[i]!r} is no source of the manifest", "sample_sources")


def _placeholders(columns: dict[str, pa.Array], limits: Limits) -> Iterator[Fault]:
    if limits.image_token is None:
        return
    is_image = columns["input_ids"].flatten().to_numpy() == limits.image_token
    labels, lengths = columns["labels"].flatten().to_numpy(), columns["sample_lengths"].flatten().to_numpy()
    num_images = columns["sample_num_images"].flatten().to_numpy()
    samples = _lengths(columns["sample_ids"])
    packs, num_packs = _owners(samples), len(samples)
    stated = segment_sums(columns["image_num_tokens"].flatten().to_numpy(), num_images)
    found = segment_sums(is_image, lengths)
    off = found != stated

    def message(i: int) -> str:
        k = int(np.flatnonzero(off & (packs == i))[0])
        return f"{stated[k]} placeholders in its sample {k - int(samples[:i].sum())}, input_ids has {found[k]}"

    yield from _named(_any(off, packs, num_packs), message, "image_num_tokens")
    of_token = np.repeat(packs, lengths)
    trained = is_image & (labels != IGNORE_INDEX)
    yield from _named(_any(trained, of_token, num_packs), lambda i: "a placeholder of an image is trained", "labels")


def _images(columns: dict[str, pa.Array], limits: Limits) -> Iterator[Fault]:
    num_images = columns["num_images"].to_numpy()
    packs = _owners(num_images)
    data = columns["images"].flatten().field("bytes")
    heights, widths = (columns["image_sizes"].flatten().field(name).to_numpy() for name in ("height", "width"))
    sizes = list(map(Size, heights.tolist(), widths.tolist()))
    wrong: dict[int, str] = {}
    for k, (image, size) in enumerate(zip(data, sizes, strict=True)):
        problem = _image_problem(image.as_py(), size, limits.decodes)
        if problem:
            wrong.setdefault(int(packs[k]), f"image {k - int(num_images[: packs[k]].sum())}: {problem}")
    at = np.isin(np.arange(len(num_images)), list(wrong))
    yield from _named(at, wrong.__getitem__, "images")
    if limits.family is not None:
        yield from _costs(columns, sizes, limits.family)


def _image_problem(data: bytes, size: Size, decodes: bool) -> str | None:
    try:
        if decodes:
            width, height = decode(data).size
        else:
            height, width = read_size(data)
    except ImageError as error:
        return str(error)
    stated = f"{size.width} × {size.height}"
    return None if (height, width) == size else f"{width} × {height} pixels, image_sizes says {stated}"


def _costs(columns: dict[str, pa.Array], sizes: list[Size], family: Family) -> Iterator[Fault]:
    """Placeholders and vision cost as the processor has them for images of these sizes."""
    samples = _lengths(columns["sample_ids"])
    counts, costs, stated = [], [], columns["vision_cost"].to_numpy()
    remaining = iter(sizes)
    for num_images in columns["sample_num_images"].flatten().to_pylist():
        made = family.expand(tuple(next(remaining) for _ in range(num_images))) if num_images else []
        counts += [image.num_placeholders for image in made]
        costs.append(sum(image.vision_cost for image in made))
    found = segment_sums(np.asarray(costs, np.int64), samples)
    yield from _named(found != stated, lambda i: f"{stated[i]}, the processor makes {found[i]}", "vision_cost")
    num_images, have = columns["num_images"].to_numpy(), columns["image_num_tokens"].flatten().to_numpy()
    off = np.asarray(counts, np.int64) != have
    packs = _owners(num_images)
    message = "not the placeholders that the processor makes of images of these sizes"
    yield from _named(_any(off, packs, len(num_images)), lambda i: message, "image_num_tokens")


def _named(wrong: np.ndarray, message, field: str) -> Iterator[Fault]:
    """Faults of the first packs that are wrong, and how many more there are."""
    rows = np.flatnonzero(wrong).tolist()
    for row in rows[:MAX_FAULTS]:
        yield Fault(row, field, message(row))
    if len(rows) > MAX_FAULTS:
        yield Fault(None, field, f"{len(rows) - MAX_FAULTS} more packs like it")


def _lengths(lists: pa.ListArray) -> np.ndarray:
    """How many values each list has."""
    return np.diff(lists.offsets.to_numpy())


def _owners(counts: np.ndarray) -> np.ndarray:
    """Whose each value is, where the i-th pack or sample has counts[i] of them."""
    return np.repeat(np.arange(len(counts)), counts)


def _any(wrong: np.ndarray, packs: np.ndarray, num_packs: int) -> np.ndarray:
    """Which packs have anything wrong, where `packs` says whose each value is."""
    return np.isin(np.arange(num_packs), packs[wrong])
