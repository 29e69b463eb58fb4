"""The dataset card: YAML that `load_dataset` and the viewer read, and a summary that people read.

An existing README is merged, not replaced: its other YAML keys and configurations stay, and so does its text
outside the two marks between which the summary stands.
"""

import re

import yaml

from packing_udfs import contract

BEGIN, END = "<!-- packing: begin -->", "<!-- packing: end -->"
_FRONT = re.compile(r"\A---\n(.*?)\n---\n?", re.DOTALL)
_SIZES = [(1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"),
          (10_000_000, "1M<n<10M"), (100_000_000, "10M<n<100M"), (1_000_000_000, "100M<n<1B")]  # fmt: skip


def size_category(num_rows: int) -> str:
    """The Hub's name for a number of rows: `size_category(999)` is "n<1K"."""
    return next((name for limit, name in _SIZES if num_rows < limit), "n>1B")


def yaml_features(schema) -> list[dict]:
    """A schema as the `dataset_info.features` of a card: `list: int32`, `list: image`, `dtype: int32`."""

    def describe(feature: dict) -> dict:
        if feature.get("_type") == "Image":
            return {"dtype": "image"}
        if feature.get("_type") == "List":
            inner = describe(feature["feature"])
            return {"list": inner["dtype"] if set(inner) == {"dtype"} else inner["struct"]}
        if feature.get("_type") == "Value":
            return {"dtype": feature["dtype"]}
        return {"struct": [{"name": name, **describe(value)} for name, value in feature.items()]}

    return [{"name": name, **describe(value)} for name, value in contract.features(schema).items()]


def render(
    existing: str, manifests: dict[str, dict], licenses: list[str], summary: str, has_quarantine: list[str]
) -> str:
    """The card's text.

    `manifests`: split → info of each packed split; `has_quarantine`: splits that have quarantined rows.
    """
    match = _FRONT.match(existing)
    front = (yaml.safe_load(match[1]) if match else None) or {}
    body = existing[match.end() :] if match else existing
    packed = {
        "config_name": "packed",
        "default": True,
        "data_files": [{"split": split, "path": f"data/{split}/**/*.parquet"} for split in manifests],
    }
    quarantine = {
        "config_name": "quarantine",
        "data_files": [{"split": split, "path": f"quarantine/{split}/*.parquet"} for split in has_quarantine],
    }
    ours = {"packed", "quarantine"}
    others = [c for c in front.get("configs", []) if c.get("config_name") not in ours]
    for config in others:
        config.pop("default", None)
    front["configs"] = [packed, *([quarantine] if has_quarantine else []), *others]
    totals = {split: info["totals"] for split, info in manifests.items()}
    info = {
        "config_name": "packed",
        "features": yaml_features(contract.PACK_SCHEMA),
        "splits": [
            {"name": split, "num_bytes": total["num_bytes"], "num_examples": total["num_packs"]}
            for split, total in totals.items()
        ],
        "download_size": sum(total["num_bytes"] for total in totals.values()),
        "dataset_size": sum(total["num_bytes"] for total in totals.values()),
    }
    infos = front.get("dataset_info", [])
    infos = [i for i in (infos if isinstance(infos, list) else [infos]) if i.get("config_name") not in ours]
    front["dataset_info"] = [info, *infos]
    front["size_categories"] = [size_category(sum(total["num_packs"] for total in totals.values()))]
    if licenses:
        front["license"] = licenses[0] if len(licenses) == 1 else licenses
    front["tags"] = sorted({*front.get("tags", []), "packed", "image-text"})
    header = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{header}---\n{_replace_summary(body, summary)}"


def _replace_summary(body: str, summary: str) -> str:
    block = f"{BEGIN}\n{summary.strip()}\n{END}"
    start, end = body.find(BEGIN), body.find(END)
    if start >= 0 and end > start:
        return body[:start] + block + body[end + len(END) :]
    return f"{body.rstrip()}\n\n{block}\n" if body.strip() else f"{block}\n"
