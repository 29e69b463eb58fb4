"""The report page of a published dataset, made again from what is published."""

from typing import Any

import numpy as np
import pyarrow as pa

from jobs.published.dataset import Packed
from packing_udfs import metrics
from packing_udfs.manifest import Manifest
from packing_udfs.published.pictures import draw
from packing_udfs.published.shape import Drawn, Report, require_manifest, require_report

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
        ends = np.cumsum([len(of_pack) for of_pack in table["sample_lengths"].to_pylist()])
        starts = [0, *ends[:-1].tolist()]
        costs = np.zeros(len(lengths), np.int64)
        costs[starts] = table["vision_cost"].to_numpy()  # a pack's cost, on its first sample
        packs = np.split(np.arange(len(lengths)), ends[:-1])
        found.append(metrics.histograms(lengths, costs, num_images, packs, seq_len) | {"sample_vision": {}})
    return metrics.add(found)
