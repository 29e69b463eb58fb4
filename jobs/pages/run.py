"""The page of a run, and the two pictures of its dataset card: report.json and manifests in figures."""

from collections.abc import Mapping

import numpy as np
import yaml
from matplotlib.figure import Figure

from jobs import pages
from jobs.pages import drawing, strips
from jobs.pages.drawing import KIND_COLOURS, Counted, Part, TokenRow
from packing_udfs import contract, metrics
from packing_udfs.manifest import Manifest
from packing_udfs.published.pictures import PAD, RESPONSE
from packing_udfs.published.shape import Report, Sums
from packing_udfs.published.straggler import straggler

__all__ = ["PICTURES", "TOKENS_PER_SECOND", "page", "pictures"]

TOKENS_PER_SECOND = 10_000
"""Of one GPU in training: a round figure; give your own with `--tokens-per-second`."""
WORLD_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PICTURES = {"packs": "report/packs.png", "histograms": "report/histograms.png"}  # in the repository, for its card


def page(
    report: Report,
    manifests: Mapping[str, Manifest],
    drawn: Mapping[str, list[dict]],
    tokens_per_second: int = TOKENS_PER_SECOND,
) -> str:
    """The HTML of a run. `drawn`: packs of each split that has any, as `published.pictures.draw` gives them."""
    splits = {split: _split(report, split, manifests[split], drawn.get(split, [])) for split in _in_order(report)}
    return pages.render(
        "run.html.jinja",
        report=report,
        splits=splits,
        first=next(iter(splits.values())),
        saved=_saved(report, tokens_per_second),
        tokens_per_second=tokens_per_second,
        naive_batch=metrics.NAIVE_BATCH,
        legend=strips.legend(_source_names(report, drawn)),
        reasons=contract.REASONS,
        config_yaml=yaml.safe_dump(report.config, sort_keys=True, allow_unicode=True),
    )


def pictures(report: Report, manifests: Mapping[str, Manifest], drawn: Mapping[str, list[dict]]) -> dict[str, bytes]:
    """Path in the repository → PNG, of the first split: what the card shows."""
    split = _in_order(report)[0]
    info = manifests[split].info
    found = {PICTURES["histograms"]: drawing.png(_histograms(report, split, info)["samples"])}
    if drawn.get(split):
        rows = [_token_row(pack) for pack in drawn[split]]
        budget, unit = report.config["pack"]["max_vision_cost"], info["vision_unit"]
        figure = drawing.token_rows(rows, width=info["seq_len"], vision_unit=unit, max_vision_cost=budget, name="pack")
        found[PICTURES["packs"]] = drawing.png(figure)
    return found


def _in_order(report: Report) -> list[str]:
    """The splits, the output's first."""
    return sorted(report.splits, key=lambda split: (split != report.config["output"]["split"], split))


def _token_row(pack: dict) -> TokenRow:
    kinds = np.concatenate([np.full(num_tokens, kind, np.uint8) for kind, num_tokens in pack["runs"]])
    return TokenRow(kinds, [s["num_tokens"] for s in pack["samples"]], pack["vision_cost"], f"{pack['row'] + 1:,}")


def _source_names(report: Report, drawn: Mapping[str, list[dict]]) -> list[str]:
    """Sources in the order of the configuration, then others that an append found."""
    packed = sorted({s["source"] for found in drawn.values() for pack in found for s in pack["samples"]})
    return list(dict.fromkeys([*(source.name for source in report.sources), *packed]))


def _split(report: Report, split: str, manifest: Manifest, drawn: list[dict]) -> dict:
    part, seq_len = report.splits[split], manifest.info["seq_len"]
    sums, sources = part.sums, _source_names(report, {split: drawn})
    return {
        "totals": part.totals,
        "sums": sums,
        "quality": part.quality,
        "name": split,
        "seq_len": seq_len,
        "vision_unit": manifest.info["vision_unit"],
        "processor": manifest.info["processor"],
        "fingerprint": manifest.fingerprint,
        "best_fill": part.totals["num_tokens"] / (sums.bound * seq_len),
        "positions": drawing.png_uri(_positions(sums, part.totals["num_label_tokens"], seq_len)),
        "stragglers": _stragglers(manifest),
        "histograms": {k: drawing.png_uri(f) for k, f in _histograms(report, split, manifest.info).items()},
        "strips": [strips.strip(pack, seq_len, sources) for pack in drawn],
    }


def _saved(report: Report, tokens_per_second: int) -> dict:
    """Positions that packs save against naive padding, over all splits, and GPU-hours for them."""
    sums = [part.sums for part in report.splits.values()]
    naive = sum(part.naive_tokens for part in sums)
    num_tokens = naive - sum(part.num_packs for part in sums) * report.config["pack"]["seq_len"]
    return {
        "num_tokens": num_tokens,
        "share": num_tokens / naive if naive else None,
        "gpu_hours": num_tokens / tokens_per_second / 3600,
    }


def _positions(sums: Sums, num_label_tokens: int, seq_len: int) -> Figure:
    """Positions of an epoch: padded in batches, packed, and in as many packs as the bound."""
    tokens = sums.num_tokens
    bars = {
        "Naive padding": sums.naive_tokens,
        "These packs": sums.num_packs * seq_len,
        "Lower bound": sums.bound * seq_len,
    }
    parts = [
        Part("tokens, not trained (text and images)", KIND_COLOURS[0], [tokens - num_label_tokens] * len(bars)),
        Part("tokens, trained", KIND_COLOURS[RESPONSE], [num_label_tokens] * len(bars)),
        Part("padding", KIND_COLOURS[PAD], [positions - tokens for positions in bars.values()]),
    ]
    notes = [f"{(n - tokens) / n:.1%} padding" if n else "" for n in bars.values()]
    return drawing.stacked(list(bars), parts, notes, "positions in one epoch, tokens and padding")


def _stragglers(manifest: Manifest) -> str | None:
    """The straggler for every world size that has a step, one pack a rank, drawn."""
    sizes = [size for size in WORLD_SIZES if size <= manifest.num_packs]
    if not sizes:
        return None
    costs = {"vision cost": "vision_cost", "attention cost (squared sample lengths)": "attention_cost"}
    series = {}
    for name, cost in costs.items():
        series[name] = [straggler(manifest.row_groups, size, cost=cost) for size in sizes]
    figure = drawing.lines(sizes, series, "ranks, one pack each", "largest of a step / mean")
    return drawing.png_uri(figure)


def _histograms(report: Report, split: str, info: dict) -> dict[str, Figure]:
    counts = report.splits[split].sums.histograms
    pack, unit = report.config["pack"], info["vision_unit"]

    def panel(name: str, title: str, xlabel: str, limit: int | None = None, is_linear: bool = False) -> Counted:
        by_value = {int(value): counts[name][value] for value in sorted(counts[name], key=int)}
        ylabel = "samples" if name.startswith("sample_") else "packs"
        return Counted(title=title, xlabel=xlabel, ylabel=ylabel, counts=by_value, limit=limit, is_linear=is_linear)

    of_samples = [
        panel("sample_tokens", "Length", "tokens", info["seq_len"]),
        panel("sample_images", "Images", "images", pack["max_images_per_sample"]),
        panel("sample_vision", "Vision cost", unit, pack["max_vision_cost"]),
    ]
    of_packs = [
        panel("pack_fill", "Fill", "tokens, % of seq_len", is_linear=True),
        panel("pack_images", "Images", "images", pack["max_images_per_pack"]),
        panel("pack_vision", "Vision cost", unit, pack["max_vision_cost"]),
    ]
    return {"samples": drawing.counted(of_samples), "packs": drawing.counted(of_packs)}
