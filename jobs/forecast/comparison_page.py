"""The page of `jobs.compare`: pictures and samples for the numbers that it found."""

from collections.abc import Iterator

import numpy as np
import yaml
from matplotlib.figure import Figure

from jobs import pages
from jobs.forecast.comparison import Comparison
from jobs.forecast.stages import Stage, row_sums
from jobs.pages import drawing
from jobs.pages.drawing import Part, TokenRow, Valued
from jobs.pages.sample_cards import SampleCard
from packing_udfs.encode.images import read_size
from packing_udfs.published.pictures import IMAGE, PAD, RESPONSE, spread, thumbnail
from packing_udfs.walk import slices

__all__ = ["figures", "page", "sample_cards"]

NUM_ROWS = 16  # of a stage in its picture
QUANTILES = (0.2, 0.5, 0.85)  # of length: which samples with images are shown …
TEXT_QUANTILE = 0.5  # … and which without
MAX_THUMBNAILS = 3
THUMBNAIL, QUALITY = 360, 82  # pixels on the longest side; of a JPEG
MAX_MESSAGES = 4
MAX_CHARS = 600  # of a message; the page shows a few lines of it
UTF8_BYTES = 4  # of a character at most
MAX_TOKENS = 110  # single tokens shown of a sample


def page(found: Comparison) -> str:
    """The HTML of a comparison, with all its figures inside."""
    uris = {name: drawing.png_uri(figure) for name, figure in figures(found).items()}
    stages = {stage.name: stage for stage in found.figures.stages}
    return pages.render(
        "compare.html.jinja",
        figures=found.figures,
        stages=stages,
        samples=list(sample_cards(found)),
        pictures={name: uris.get(name) for name in stages},
        positions=uris["positions"],
        histograms={name: uris[name] for name in ("samples", "packs")},
        config_yaml=yaml.safe_dump(found.figures.config, sort_keys=False, allow_unicode=True),
    )


def _vision_unit(found: Comparison) -> str:
    return found.encoder.family.vision_unit


def figures(found: Comparison) -> dict[str, Figure]:
    """The pictures: one of each stage that has rows, by its name; `positions`, `samples` and `packs` of all stages."""
    of_stage = {stage.name: _picture(found, stage) for stage in found.stages if stage.rows}
    return {**of_stage, "positions": _positions(found), **_histograms(found)}


def _picture(found: Comparison, stage: Stage) -> Figure:
    """Rows of a stage."""
    chosen = _typical_batch(found, stage) if stage.name == "naive_padding" else spread(len(stage.rows), NUM_ROWS)
    costs = row_sums(stage, found.samples.vision_costs)
    rows = []
    for at in chosen:
        members = stage.rows[at]
        kinds = np.concatenate([found.samples.kinds[i] for i in members])
        rows.append(TokenRow(kinds, found.samples.lengths[members].tolist(), int(costs[at]), f"{at + 1:,}"))
    return drawing.token_rows(
        rows,
        width=int(stage.widths[chosen].max()),
        vision_unit=_vision_unit(found),
        max_vision_cost=None if stage.bound is None else found.figures.config["pack"]["max_vision_cost"],
        name="sample" if stage.bound is None else "pack",
    )


def _typical_batch(found: Comparison, stage: Stage) -> list[int]:
    """The rows of the full batch whose share of padding is nearest to that of the stage."""
    size = found.figures.naive_batch
    if len(stage.rows) <= size:
        return list(range(len(stage.rows)))
    full = len(stage.rows) // size * size
    tokens = found.samples.lengths[:full].reshape(-1, size).sum(axis=1)
    positions = stage.widths[:full].reshape(-1, size).sum(axis=1)
    waste = 1 - found.samples.lengths.sum() / stage.widths.sum()
    batch = int(np.abs(1 - tokens / positions - waste).argmin())
    return list(range(batch * size, (batch + 1) * size))


def _positions(found: Comparison) -> Figure:
    """Positions of an epoch by kind, a bar for each stage."""
    per_sample = np.asarray([np.bincount(of_sample, minlength=PAD) for of_sample in found.samples.kinds])
    counts = np.zeros((len(found.stages), PAD + 1), np.int64)
    for at, stage in enumerate(found.stages):
        counts[at, :PAD] = sum((per_sample[row].sum(axis=0) for row in stage.rows), np.zeros(PAD, np.int64))
        counts[at, PAD] = stage.widths.sum() - counts[at].sum()
    totals = counts.sum(axis=1).tolist()
    notes = [f"{pads / total:.1%} padding" if total else "no sample fits"
             for total, pads in zip(totals, counts[:, PAD].tolist(), strict=True)]  # fmt: skip
    named = zip(drawing.KIND_NAMES, drawing.KIND_COLOURS, counts.T.tolist(), strict=True)
    xlabel = "positions of the sampled rows in one epoch, tokens and padding"
    return drawing.stacked([stage.title for stage in found.stages], [Part(*part) for part in named], notes, xlabel)


def _histograms(found: Comparison) -> dict[str, Figure]:
    """Lengths, images and vision cost for each sample and for each pack."""
    samples, pack = found.samples, found.figures.config["pack"]
    packed = [stage for stage in found.stages if stage.bound is not None]
    axes = (
        ("Length", "tokens", samples.lengths, "seq_len", None),
        ("Images", "images", samples.num_images, "max_images_per_sample", "max_images_per_pack"),
        ("Vision cost", _vision_unit(found), samples.vision_costs, "max_vision_cost", "max_vision_cost"),
    )
    of_sample, of_pack = [], []
    for title, xlabel, values, limit, pack_limit in axes:
        of_sample.append(Valued(title=title, xlabel=xlabel, ylabel="samples", series={"samples": values},
                                limit=pack[limit], limit_name=limit))  # fmt: skip
        of_stage = {stage.title: row_sums(stage, values) for stage in packed}
        of_pack.append(Valued(title=title, xlabel=xlabel, ylabel="packs", series=of_stage,
                              limit=pack.get(pack_limit), limit_name=pack_limit))  # fmt: skip
    return {"samples": drawing.histograms(of_sample), "packs": drawing.histograms(of_pack)}


def sample_cards(found: Comparison) -> Iterator[SampleCard]:
    """A few samples as people see them, shorter ones first."""
    samples = found.samples
    ranked = np.argsort(samples.lengths, kind="stable")
    ranked = ranked[samples.lengths[ranked] <= found.figures.config["pack"]["seq_len"]]
    with_images, without = ranked[samples.num_images[ranked] > 0], ranked[samples.num_images[ranked] == 0]
    chosen = [with_images[int(q * len(with_images))] for q in QUANTILES if len(with_images)]
    chosen += [without[int(TEXT_QUANTILE * len(without))]] if len(without) else []
    rows = found.frame.drop_duplicates("sample_id", keep="last").set_index("sample_id")
    for i in dict.fromkeys(map(int, chosen)):
        sample_id = int(samples.ids[i])
        messages = rows.at[sample_id, "messages"]
        tokens, num_shown = _token_strip(found, i)
        yield SampleCard(
            id=sample_id,
            source=rows.at[sample_id, "source"],
            turns=[_turn(message) for message in messages[:MAX_MESSAGES]],
            num_turns_hidden=max(0, len(messages) - MAX_MESSAGES),
            images=[_thumbnail(image["bytes"]) for image in samples.images[i][:MAX_THUMBNAILS]],
            num_images=int(samples.num_images[i]),
            num_tokens=int(samples.lengths[i]),
            num_image_tokens=int((samples.kinds[i] == IMAGE).sum()),
            num_label_tokens=int((samples.kinds[i] == RESPONSE).sum()),
            vision_cost=int(samples.vision_costs[i]),
            tokens=tokens,
            num_tokens_hidden=int(samples.lengths[i]) - num_shown,
        )


def _turn(message: dict) -> dict:
    text = "\n".join(part["text"] for part in message["content"] if part["text"])
    text = "\n".join(line for line in text.splitlines() if line.strip())
    return {"role": message["role"], "text": text[:MAX_CHARS] + ("…" if len(text) > MAX_CHARS else "")}


def _thumbnail(data: bytes) -> dict:
    """A small JPEG of an image, None when it does not decode, and the image's own size."""
    height, width = read_size(data)
    return {"jpeg": thumbnail(data, THUMBNAIL, QUALITY), "height": height, "width": width}


def _token_strip(found: Comparison, i: int) -> tuple[list[dict], int]:
    """The first tokens of a sample as pieces of text, and how many tokens they are.

    An image is one piece, from its first placeholder to its last: {"kind": "image", "text": "image, 320 tokens"}.
    """
    samples, decode_ids = found.samples, found.encoder.tokenizer.decode
    placeholders, parts = np.flatnonzero(samples.kinds[i] == IMAGE), slices(samples.image_num_tokens[i])
    stops = {int(placeholders[part.start]): int(placeholders[part.stop - 1]) + 1 for part in parts}
    tokens, at = [], 0
    while at < samples.lengths[i] and len(tokens) < MAX_TOKENS:
        if at in stops:
            tokens.append({"kind": "image", "text": f"image, {stops[at] - at:,} tokens"})
            at = stops[at]
            continue
        end = at + 1
        while "\ufffd" in (text := decode_ids(samples.input_ids[i][at:end].tolist())) and end < at + UTF8_BYTES:
            end += 1  # the bytes of one character are several tokens
        kind = "response" if samples.kinds[i][at] == RESPONSE else "prompt"
        tokens.append({"kind": kind, "text": text.replace("\n", "↵")})
        at = end
    return tokens, at
