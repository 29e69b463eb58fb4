"""The page of `jobs.compare`: pictures and samples for the numbers that it found."""

from collections.abc import Iterator

import numpy as np
import yaml
from matplotlib.figure import Figure

from jobs import pages
from jobs.forecast.comparison import Comparison
from jobs.forecast.stages import Samples, Stage, row_sums
from jobs.pages import drawing
from jobs.pages.drawing import Panel, Part, TokenRow
from packing_udfs.encode.images import read_size
from packing_udfs.published.pictures import IMAGE, PAD, PROMPT, RESPONSE, thumbnail

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
    stages = {stage["name"]: stage for stage in found.figures["stages"]}
    return pages.render(
        "compare.html.jinja",
        figures=found.figures,
        stages=stages,
        samples=list(sample_cards(found)),
        pictures={name: uris.get(name) for name in stages},
        positions=uris["positions"],
        histograms={name: uris[name] for name in ("samples", "packs")},
        config_yaml=yaml.safe_dump(found.figures["config"], sort_keys=False, allow_unicode=True),
    )


def figures(found: Comparison) -> dict[str, Figure]:
    """The pictures: one of each stage that has rows, by its name; `positions`, `samples` and `packs` of all stages."""
    kinds = token_kinds(found.samples)
    of_stage = {stage.name: _picture(found, stage, kinds) for stage in found.stages if stage.rows}
    return {**of_stage, "positions": _positions(found, kinds), **_histograms(found)}


def token_kinds(samples: Samples) -> list[np.ndarray]:
    """The kind (drawing.PROMPT, RESPONSE, IMAGE) of each token of each sample, uint8."""
    return [
        np.where(image, IMAGE, np.where(trained, RESPONSE, PROMPT)).astype(np.uint8)
        for image, trained in zip(samples.is_image, samples.is_trained, strict=True)
    ]


def _picture(found: Comparison, stage: Stage, kinds: list[np.ndarray]) -> Figure:
    """Rows of a stage."""
    chosen = _typical_batch(found, stage) if stage.name == "naive_padding" else _spread(len(stage.rows))
    costs = row_sums(stage, found.samples.vision_costs)
    rows = [
        TokenRow(
            np.concatenate([kinds[i] for i in stage.rows[at]]),
            [int(found.samples.lengths[i]) for i in stage.rows[at]],
            int(costs[at]),
            f"{at + 1:,}",
        )
        for at in chosen
    ]
    return drawing.token_rows(
        rows,
        width=int(stage.widths[chosen].max()),
        vision_unit=found.figures["processor"]["vision_unit"],
        max_vision_cost=None if stage.bound is None else found.figures["config"]["pack"]["max_vision_cost"],
        name="sample" if stage.bound is None else "pack",
    )


def _spread(num_rows: int) -> np.ndarray:
    """NUM_ROWS rows at equal distances, so that the first packs and the last are among them."""
    return np.unique(np.linspace(0, num_rows - 1, NUM_ROWS).astype(np.int64))


def _typical_batch(found: Comparison, stage: Stage) -> np.ndarray:
    """The rows of the full batch whose share of padding is nearest to that of the stage."""
    size = found.figures["naive_batch"]
    if len(stage.rows) <= size:
        return np.arange(len(stage.rows))
    full = len(stage.rows) // size * size
    tokens = found.samples.lengths[:full].reshape(-1, size).sum(axis=1)
    positions = stage.widths[:full].reshape(-1, size).sum(axis=1)
    waste = 1 - found.samples.lengths.sum() / stage.widths.sum()
    batch = int(np.abs(1 - tokens / positions - waste).argmin())
    return np.arange(batch * size, (batch + 1) * size)


def _positions(found: Comparison, kinds: list[np.ndarray]) -> Figure:
    """Positions of an epoch by kind, a bar for each stage."""
    per_sample = np.asarray([np.bincount(of_sample, minlength=PAD) for of_sample in kinds])
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
    samples, pack = found.samples, found.figures["config"]["pack"]
    unit = found.figures["processor"]["vision_unit"]
    values = {"lengths": samples.lengths, "images": samples.num_images, "vision": samples.vision_costs}
    of_sample = [
        Panel(title="Length", xlabel="tokens", ylabel="samples", series={"samples": values["lengths"]},
              limit=pack["seq_len"], limit_name="seq_len"),
        Panel(title="Images", xlabel="images", ylabel="samples", series={"samples": values["images"]},
              limit=pack["max_images_per_sample"], limit_name="max_images_per_sample"),
        Panel(title="Vision cost", xlabel=unit, ylabel="samples", series={"samples": values["vision"]},
              limit=pack["max_vision_cost"], limit_name="max_vision_cost"),
    ]  # fmt: skip
    packed = [stage for stage in found.stages if stage.bound is not None]
    by = {name: {stage.title: row_sums(stage, value) for stage in packed} for name, value in values.items()}
    of_pack = [
        Panel(title="Length", xlabel="tokens", ylabel="packs", series=by["lengths"]),
        Panel(title="Images", xlabel="images", ylabel="packs", series=by["images"],
              limit=pack["max_images_per_pack"], limit_name="max_images_per_pack"),
        Panel(title="Vision cost", xlabel=unit, ylabel="packs", series=by["vision"],
              limit=pack["max_vision_cost"], limit_name="max_vision_cost"),
    ]  # fmt: skip
    return {"samples": drawing.histograms(of_sample), "packs": drawing.histograms(of_pack)}


def sample_cards(found: Comparison) -> Iterator[dict]:
    """A few samples as people see them, shorter ones first: plain values, and images as the bytes of small JPEGs."""
    samples = found.samples
    ranked = np.argsort(samples.lengths, kind="stable")
    ranked = ranked[samples.lengths[ranked] <= found.figures["config"]["pack"]["seq_len"]]
    with_images, without = ranked[samples.num_images[ranked] > 0], ranked[samples.num_images[ranked] == 0]
    chosen = [with_images[int(q * len(with_images))] for q in QUANTILES if len(with_images)]
    chosen += [without[int(TEXT_QUANTILE * len(without))]] if len(without) else []
    messages = dict(zip(found.frame["sample_id"].tolist(), found.frame["messages"], strict=True))
    sources = dict(zip(found.frame["sample_id"].tolist(), found.frame["source"], strict=True))
    for i in dict.fromkeys(map(int, chosen)):
        sample_id = int(samples.ids[i])
        yield {
            "id": sample_id,
            "source": sources[sample_id],
            "turns": [_turn(message) for message in messages[sample_id][:MAX_MESSAGES]],
            "num_turns_hidden": max(0, len(messages[sample_id]) - MAX_MESSAGES),
            "images": [_thumbnail(image["bytes"]) for image in samples.images[i][:MAX_THUMBNAILS]],
            "num_images": int(samples.num_images[i]),
            "num_tokens": int(samples.lengths[i]),
            "num_image_tokens": int(samples.is_image[i].sum()),
            "num_label_tokens": int(samples.is_trained[i].sum()),
            "vision_cost": int(samples.vision_costs[i]),
            **_token_strip(found, i),
        }


def _turn(message: dict) -> dict:
    text = "\n".join(part["text"] for part in message["content"] if part["text"])
    text = "\n".join(line for line in text.splitlines() if line.strip())
    return {"role": message["role"], "text": text[:MAX_CHARS] + ("…" if len(text) > MAX_CHARS else "")}


def _thumbnail(data: bytes) -> dict:
    """An image as people see it: a small JPEG and its real size, None where it does not decode."""
    height, width = read_size(data)
    return {"jpeg": thumbnail(data, THUMBNAIL, QUALITY), "height": height, "width": width}


def _token_strip(found: Comparison, i: int) -> dict:
    """The first tokens of a sample as pieces of text, each image as one piece from its first placeholder to its last.

    {"tokens": [{"kind": "image", "text": "image 1: 320 tokens"}, …], "num_tokens_hidden": 12}
    """
    samples, decode_ids = found.samples, found.encoder.tokenizer.decode
    placeholders = np.flatnonzero(samples.is_image[i])
    ends = np.cumsum(samples.image_num_tokens[i])
    spans = {
        int(placeholders[end - count]): int(placeholders[end - 1]) + 1
        for end, count in zip(ends, samples.image_num_tokens[i], strict=True)
    }
    tokens, at = [], 0
    while at < samples.lengths[i] and len(tokens) < MAX_TOKENS:
        if at in spans:
            tokens.append({"kind": "image", "text": f"image, {spans[at] - at:,} tokens"})
            at = spans[at]
            continue
        end = at + 1
        while "\ufffd" in (text := decode_ids(samples.input_ids[i][at:end].tolist())) and end < at + UTF8_BYTES:
            end += 1  # the bytes of one character are several tokens
        kind = "response" if samples.is_trained[i][at] else "prompt"
        tokens.append({"kind": kind, "text": text.replace("\n", "↵")})
        at = end
    return {"tokens": tokens, "num_tokens_hidden": int(samples.lengths[i]) - at}
