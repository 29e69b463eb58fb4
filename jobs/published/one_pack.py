"""One pack of a published dataset, for people: its samples, their text, what is trained, their images and sources.

    python -m jobs.inspect user/packed --pack 17 --out pack.html
    python -m jobs.inspect user/packed --sample -8233405489761510930

Packs are numbered from 0 in the order of the manifest. Only one row group is read; to find a sample, also the column
`sample_ids`. Text is decoded with the processor that the manifest names, or `--processor`. Each sample is shown with
its source (repo, configuration, split, commit), the file and row that it came from, and what was kept of that row.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from jobs import pages
from jobs.pages import strips
from jobs.published.dataset import Packed, PackedError
from packing_udfs import walk
from packing_udfs.manifest import Manifest
from packing_udfs.published import pictures
from packing_udfs.published.shape import ManifestInfo
from packing_udfs.published.trained_text import COLOURS, MARKS, Decode, as_marked, pieces, printable

__all__ = ["Place", "as_text", "describe", "find_sample", "locate", "page"]

EDGE, QUALITY = 320, 82  # of images on the page: pixels of the longer side, JPEG's quality


@dataclass(frozen=True)
class Place:
    """Where a pack is stored."""

    number: int
    file: str
    row_group: int
    row: int


def locate(found: Manifest, number: int) -> Place:
    """A pack's place by its number. Raises PackedError for a number that no pack has."""
    if not 0 <= number < found.num_packs:
        raise PackedError(f"--pack: {number} is refused: the split has packs 0 to {found.num_packs - 1}")
    starts = walk.offsets(found.row_groups["num_rows"].to_numpy())
    at = int(np.searchsorted(starts, number, side="right")) - 1
    row = found.row_groups.slice(at, 1).to_pylist()[0]
    return Place(number, row["file"], row["row_group"], number - int(starts[at]))


def find_sample(packed: Packed, found: Manifest, sample_id: int) -> list[int]:
    """Numbers of the packs that hold a sample: several when it has copies or was packed in parts."""
    numbers, first = [], 0
    for row in found.row_groups.select(["file", "row_group", "num_rows"]).to_pylist():
        ids = packed.row_group(row["file"], row["row_group"], ["sample_ids"])["sample_ids"].to_pylist()
        numbers += [first + i for i, of_pack in enumerate(ids) if sample_id in of_pack]
        first += row["num_rows"]
    return numbers


def describe(packed: Packed, found: Manifest, number: int, decode: Decode | None) -> dict[str, Any]:
    """A pack in plain values, for a page's template. `decode`: None leaves token ids.

    {"place", "seq_len", "vision_unit", "drawn": as `pictures.draw`, "samples": [{"id", "sources": where from, "files",
    "rows", "kept": of which row, "num_tokens", "num_label_tokens", "images": [{"height", "width", "format",
    "num_bytes", "num_tokens", "path", "jpeg"}], "pieces": as `trained_text.pieces`}], "source_names", "is_decoded"}
    """
    place = locate(found, number)
    row_group = packed.row_group(place.file, place.row_group)
    (pack,) = pictures.draw(row_group, [place.row])
    stored = row_group.slice(place.row, 1).to_pylist()[0]
    samples = list(_samples(stored, pictures.image_token_id(row_group), decode or _ids))
    for sample, of_pack in zip(samples, pack["samples"], strict=True):
        sample |= of_pack | {"sources": _sources(found, of_pack["source"])}
    return {
        "place": place,
        "seq_len": found.info["seq_len"],
        "vision_unit": found.info["vision_unit"],
        "drawn": pack,
        "samples": samples,
        "source_names": list(dict.fromkeys(sample["source"] for sample in samples)),
        "is_decoded": decode is not None,
    }


def _ids(ids: list[int]) -> str:
    return "".join(f"{i} " for i in ids)


def _sources(found: Manifest, name: str) -> list[dict[str, str | None]]:
    """Repository, configuration, split and commit of a source: one for each commit that a run read."""
    sources = [source for run in ManifestInfo.of(found).runs for source in run.sources if source.name == name]
    described: list[dict[str, str | None]] = []
    for source in sources:
        fields = {field: getattr(source, field) for field in ("repo", "config", "split", "commit")}
        described += [fields] if fields not in described else []
    return described


def _samples(pack: dict[str, Any], token: int | None, decode: Decode) -> Iterator[dict[str, Any]]:
    """Images and pieces of text of each sample."""
    images = _images(pack)
    for sample in walk.samples(pack):
        ids, labels = np.asarray(sample["input_ids"]), np.asarray(sample["labels"])
        own = [next(images) for _ in sample["images"]]
        origin = {name: sample[f"sample_{name}"] for name in ("files", "rows", "kept")}
        yield origin | {"images": own, "pieces": list(pieces(ids, labels, own, token, decode))}


def _images(pack: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number, (image, size, num_tokens) in enumerate(
        zip(pack["images"], pack["image_sizes"], pack["image_num_tokens"], strict=True), 1
    ):
        jpeg = pictures.thumbnail(image["bytes"], EDGE, QUALITY)
        yield {
            **size,
            "number": number,
            "format": "unknown format" if jpeg is None else Image.open(io.BytesIO(image["bytes"])).format,
            "num_bytes": len(image["bytes"]),
            "num_tokens": num_tokens,
            "path": image["path"],
            "jpeg": jpeg,
        }


def as_text(found: dict[str, Any], colours: bool = False) -> str:
    """A pack for a terminal: trained text in colour, or between « and »."""
    place, pack = found["place"], found["drawn"]
    lines = [
        f"pack {place.number}  {place.file} row group {place.row_group} row {place.row}",
        f"{pack['num_tokens']:,} of {found['seq_len']:,} tokens, {pack['num_label_tokens']:,} trained; "
        f"{_num(len(found['samples']), 'sample')}, {_num(pack['num_images'], 'image')}, "
        f"vision cost {pack['vision_cost']:,} "
        f"{found['vision_unit']}",
    ]
    for number, sample in enumerate(found["samples"], 1):
        lines += ["", f"sample {number}  {sample['id']}: {sample['num_tokens']:,} tokens, "
                      f"{sample['num_label_tokens']:,} trained, of {sample['source']}"]  # fmt: skip
        lines += [f"  from {_origin(source)}" for source in sample["sources"]]
        lines.append(f"  row {_row_line(sample)}")
        lines += [f"  image {_image_line(image)}" for image in sample["images"]]
        text = as_marked(sample["pieces"], COLOURS if colours else MARKS)
        lines += [f"  | {line}" for line in text.splitlines()]
    return "\n".join(lines)


def _num(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _origin(source: dict[str, str | None]) -> str:
    parts = [source["repo"], source["config"], source["split"]]
    return f"{' '.join(part for part in parts if part)} at {source['commit']}"


def _row_line(sample: dict[str, Any]) -> str:
    kept = f", {sample['kept']}" if sample["kept"] else ""
    return printable(f"{sample['rows']} of {sample['files']}{kept}")


def _image_line(image: dict[str, Any]) -> str:
    path = f", {image['path']}" if image["path"] else ""
    size = f"{image['width']} × {image['height']}, {image['format']}, {image['num_bytes']:,} bytes"
    return f"{image['number']}: {size}, {image['num_tokens']:,} placeholders{path}"


def page(found: dict[str, Any], name: str) -> str:
    """The HTML of a pack. `name`: the dataset and split."""
    return pages.render(
        "pack.html.jinja",
        name=name,
        pack=found,
        strip=strips.strip(found["drawn"], found["seq_len"], found["source_names"]),
        legend=strips.legend(found["source_names"]),
        origin=_origin,
        image_line=_image_line,
        row_line=_row_line,
    )
