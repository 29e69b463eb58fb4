"""The page of a run, and the two pictures of its dataset card: report.json and manifests in figures."""

from collections.abc import Mapping

import numpy as np
import yaml

from jobs import pages
from jobs.pages import drawing, strips
from jobs.pages.drawing import KIND_COLOURS, Counted, Part, TokenRow
from packing_udfs import contract, metrics
from packing_udfs.manifest import Manifest
from packing_udfs.published import straggler
from packing_udfs.published.pictures import PAD, RESPONSE
from packing_udfs.published.shape import Report, Sums

TOKENS_PER_SECOND = 10_000
"""Of one GPU in training: a round figure to put your own in place of (`--tokens-per-second`)."""
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
    """The splits, the output's first, whatever order the report has them in."""
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
    """Positions that packs spare against naive padding, over all splits, and GPU-hours for them."""
    parts = [(part.sums, report.config["pack"]["seq_len"]) for part in report.splits.values()]
    naive = sum(sums.naive_tokens for sums, _ in parts)
    packed = sum(sums.num_packs * seq_len for sums, seq_len in parts)
    return {
        "naive": naive,
        "packed": packed,
        "num_tokens": naive - packed,
        "share": (naive - packed) / naive if naive else None,
        "gpu_hours": (naive - packed) / tokens_per_second / 3600,
    }


def _positions(sums: Sums, num_label_tokens: int, seq_len: int) -> drawing.Figure:
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


def _stragglers(manifest: Manifest) -> dict | None:
    """The straggler for every world size that has a step, one pack a rank, as a table and its picture."""
    sizes = [size for size in WORLD_SIZES if size <= manifest.num_packs]
    if not sizes:
        return None
    series = {
        "vision cost": [straggler.straggler(manifest.row_groups, size) for size in sizes],
        "attention cost (squared sample lengths)": [
            straggler.straggler(manifest.row_groups, size, cost="attention_cost") for size in sizes
        ],
    }
    figure = drawing.lines(sizes, series, "ranks, one pack each", "largest of a step / mean")
    return {"sizes": sizes, "series": series, "picture": drawing.png_uri(figure)}


def _histograms(report: Report, split: str, info: dict) -> dict[str, drawing.Figure]:
    counts = {name: _by_value(found) for name, found in report.splits[split].sums.histograms.items()}
    pack, unit = report.config["pack"], info["vision_unit"]
    budget = pack["max_vision_cost"]
    of_samples = [
        Counted(title="Length", xlabel="tokens", ylabel="samples", counts=counts["sample_tokens"],
                limit=info["seq_len"]),
        Counted(title="Images", xlabel="images", ylabel="samples", counts=counts["sample_images"],
                limit=pack["max_images_per_sample"]),
        Counted(title="Vision cost", xlabel=unit, ylabel="samples", counts=counts["sample_vision"], limit=budget),
    ]  # fmt: skip
    of_packs = [
        Counted(title="Fill", xlabel="tokens, % of seq_len", ylabel="packs", counts=counts["pack_fill"],
                is_linear=True),
        Counted(title="Images", xlabel="images", ylabel="packs", counts=counts["pack_images"],
                limit=pack["max_images_per_pack"]),
        Counted(title="Vision cost", xlabel=unit, ylabel="packs", counts=counts["pack_vision"], limit=budget),
    ]  # fmt: skip
    return {"samples": drawing.counted(of_samples), "packs": drawing.counted(of_packs)}


def _by_value(counts: dict[str, int]) -> dict[int, int]:
    return {int(value): counts[value] for value in sorted(counts, key=int)}
