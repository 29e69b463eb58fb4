"""The report page of a published dataset, made again from what is published."""

from typing import Any

import numpy as np
import pyarrow as pa

from jobs.published.dataset import Packed
from packing_udfs import metrics
from packing_udfs.knapsack import Amounts
from packing_udfs.manifest import Manifest
from packing_udfs.published.pictures import draw
from packing_udfs.published.shape import Drawn, Report, require_manifest, require_report
from packing_udfs.walk import slices

__all__ = ["rebuild"]


def rebuild(packed: Packed) -> tuple[Report, dict[str, Manifest], dict[str, list[dict[str, Any]]]]:
    """What a page is made of: report, manifests, and drawn packs of each split.

    Reads one row group a split with its images, to draw its packs. Datasets of releases without histograms get them
    from their light columns. Raises PackedError or ContractError.
    """
    report = require_report(packed.report(), packed.name)
    manifests, drawn = {}, {}
    for split, part in report.splits.items():
        manifests[split] = packed.manifest(split)
        info, rows = require_manifest(manifests[split], split, packed.name), manifests[split].row_groups
        if not part.sums.histograms:
            part.sums.histograms = _histograms(packed, rows, info.seq_len)
        first = Drawn(file=rows["file"][0].as_py(), row_group=0)
        if place := part.drawn if "drawn" in part.model_fields_set else first:
            drawn[split] = draw(packed.row_group(place.file, place.row_group))
    return report, manifests, drawn


def _histograms(packed: Packed, row_groups: pa.Table, seq_len: int) -> dict[str, dict[str, int]]:
    """Histograms from packs, which do not have the vision cost of each sample."""
    columns = ["sample_lengths", "sample_num_images", "vision_cost"]
    found = []
    for file, index in zip(row_groups["file"].to_pylist(), row_groups["row_group"].to_pylist(), strict=True):
        table = packed.row_group(file, index, columns)
        lengths, num_images = (table[name].combine_chunks().flatten().to_numpy() for name in columns[:2])
        parts = slices([len(of_pack) for of_pack in table["sample_lengths"].to_pylist()])
        costs = np.zeros(len(lengths), np.int64)
        costs[[part.start for part in parts]] = table["vision_cost"].to_numpy()  # a pack's cost, on its first sample
        packs = [np.arange(part.start, part.stop) for part in parts]
        amounts = Amounts(num_tokens=lengths, vision_cost=costs, num_images=num_images)
        found.append(metrics.histograms(amounts, packs, seq_len) | {"sample_vision": {}})
    return metrics.add(found)
