"""The report page of a published dataset, made again from what is published."""

import numpy as np
import pyarrow as pa

from jobs.published.dataset import Packed
from jobs.revision import shape
from packing_udfs import metrics
from packing_udfs.manifest import Manifest
from packing_udfs.published.pictures import draw


def rebuild(packed: Packed) -> tuple[dict, dict[str, Manifest], dict[str, list[dict]]]:
    """What the page of a published run is made of: report, manifests, and drawn packs of each split.

    Reads images of one row group a split, for its drawn packs. Figures of a dataset that was packed before reports had
    them come from its light columns. Raises PackedError or ContractError.
    """
    report = packed.report()
    shape.require_report(packed.name, report)
    manifests = {split: packed.manifest(split) for split in report["splits"]}
    for split, found in manifests.items():
        shape.require_shape(packed.name, found, split)
    drawn = {}
    for split, part in report["splits"].items():
        rows = manifests[split].row_groups
        if part["sums"].get("histograms") is None:
            part["sums"]["histograms"] = _histograms(packed, rows, manifests[split].info["seq_len"])
        place = part.get("drawn", {"file": rows["file"][0].as_py(), "row_group": 0})
        if place:
            drawn[split] = draw(packed.row_group(place["file"], place["row_group"]))
    return {"quarantine_examples": {}, **report}, manifests, drawn


def _histograms(packed: Packed, row_groups: pa.Table, seq_len: int) -> dict[str, dict[str, int]]:
    """Histograms from packs, which have no vision cost of single samples."""
    columns = ["sample_lengths", "sample_num_images", "vision_cost"]
    found = []
    for file, index in zip(row_groups["file"].to_pylist(), row_groups["row_group"].to_pylist(), strict=True):
        table = packed.row_group(file, index, columns)
        lengths, num_images = (table[name].combine_chunks().flatten().to_numpy() for name in columns[:2])
        ends = np.cumsum([len(of_pack) for of_pack in table["sample_lengths"].to_pylist()])
        starts = [0, *ends[:-1].tolist()]
        costs = np.zeros(len(lengths), np.int64)
        costs[starts] = table["vision_cost"].to_numpy()  # of a pack, on its first sample
        packs = np.split(np.arange(len(lengths)), ends[:-1])
        found.append(metrics.histograms(lengths, costs, num_images, packs, seq_len) | {"sample_vision": {}})
    return metrics.add(found)
