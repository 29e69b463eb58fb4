"""The dataset card: YAML that `load_dataset` and the viewer read, and a summary that people read.

An existing README is merged, not replaced: its other metadata and configurations stay, and so does its text outside the
two marks around the summary. `huggingface_hub.DatasetCardData` writes our keys. Rejected: `DatasetCard` for the whole
card. It loads and dumps the keys of others too: comments are lost, and the language code `no` becomes `false`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import yaml
from huggingface_hub import DatasetCardData

from jobs.output.interface import OutputError
from jobs.sources.licenses import front_matter, listed
from packing_udfs import contract

__all__ = [
    "BEGIN",
    "END",
    "Split",
    "licenses_of",
    "packed_splits",
    "read_front_matter",
    "render",
    "size_category",
    "yaml_features",
]

BEGIN, END = "<!-- packing: begin -->", "<!-- packing: end -->"
_FRONT = re.compile(r"\A\ufeff?\s*---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_SUMMARY = re.compile(f"{re.escape(BEGIN)}(?:(?!{re.escape(BEGIN)}).)*?{re.escape(END)}", re.DOTALL)
_STEPS = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
_CONFIGS = ("packed", "quarantine")  # the names of our configurations


@dataclass(frozen=True, kw_only=True)
class Split:
    """A packed split on the card."""

    name: str
    num_bytes: int
    num_packs: int
    has_quarantine: bool = False


def size_category(num_rows: int) -> str:
    """The Hub's name for a number of rows: `size_category(999)` is "n<1K"."""
    names = [f"n<{_STEPS[0]}", *(f"{least}<n<{most}" for least, most in pairwise(_STEPS)), f"n>{_STEPS[-1]}"]
    return names[sum(num_rows >= 1_000 * 10**i for i in range(len(_STEPS)))]


def yaml_features(schema: pa.Schema) -> list[dict[str, Any]]:
    """A schema as the `dataset_info.features` of a card: `list: int32`, `list: image`, `dtype: int32`."""
    return _fields(contract.features(schema))


def _fields(features: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, **_feature(value)} for name, value in features.items()]


def _feature(feature: dict[str, Any]) -> dict[str, Any]:
    kind = feature.get("_type")
    if kind == "List":
        inner = _feature(feature["feature"])
        return {"list": inner["dtype"] if set(inner) == {"dtype"} else inner["struct"]}
    if kind == "Image":
        return {"dtype": "image"}
    return {"dtype": feature["dtype"]} if kind == "Value" else {"struct": _fields(feature)}


def render(existing: str, splits: Sequence[Split], licenses: Iterable[str], summary: str) -> str:
    """The card's text. Raises OutputError when the metadata of the `existing` README is no YAML mapping."""
    front, text, body = read_front_matter(existing)
    license_fields = front_matter(licenses)
    ours = DatasetCardData(
        license=license_fields.get("license"),
        license_name=license_fields.get("license_name"),
        configs=_configs(front, splits),
        dataset_info=_infos(front, splits),
        size_categories=[size_category(sum(split.num_packs for split in splits))],
        tags=list(dict.fromkeys([*_listed(front.get("tags")), "packed", "image-text"])),
    )
    header = _without(text, ours.to_dict().keys()) + ours.to_yaml(line_break="\n")
    return f"---\n{header}\n---\n{_with_summary(body, summary)}"


def read_front_matter(readme: str) -> tuple[dict[str, Any], str, str]:
    """A README's metadata as values and as YAML text, and the text below it.

    Raises OutputError for metadata that is no YAML mapping.
    """
    readme = readme.replace("\r\n", "\n")
    match = _FRONT.match(readme)
    if not match:
        return {}, "", readme
    try:
        values = yaml.safe_load(match[1]) or {}
    except yaml.YAMLError as error:
        raise OutputError(f"output.repo: the front matter of its README.md is not YAML, repair it: {error}") from None
    if not isinstance(values, dict):
        raise OutputError("output.repo: the front matter of its README.md has no `key: value` lines, repair it")
    for key in ("configs", "dataset_info"):
        if not all(isinstance(value, dict) for value in _listed(values.get(key))):
            raise OutputError(
                f"output.repo: {key} in the front matter of its README.md is no list of mappings, repair it"
            )
    return values, match[1], readme[match.end() :]


def licenses_of(readme: str) -> list[str]:
    """The licences that a README's metadata names."""
    return listed(read_front_matter(readme)[0])


def packed_splits(readme: str) -> list[str]:
    """The splits of a README's configuration `packed`, sorted."""
    configs = _listed(read_front_matter(readme)[0].get("configs"))
    files = [_listed(config.get("data_files")) for config in configs if config.get("config_name") == "packed"]
    entries = [entry for of_config in files for entry in of_config if isinstance(entry, dict)]
    return sorted(str(entry["split"]) for entry in entries if "split" in entry)


def _listed(value: Any) -> list[Any]:
    """A list, where YAML may have one value or none in its place."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _without(text: str, keys: Iterable[str]) -> str:
    """The text of a YAML mapping without some of its keys; the rest stays as it is written, with its comments."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        rest = {key: value for key, value in (yaml.safe_load(text) or {}).items() if key not in keys}
        return yaml.safe_dump(rest, sort_keys=False, allow_unicode=True) if rest else ""
    starts = [key.start_mark.index for key, _ in node.value] + [len(text)]
    blocks = [text[a:b] for a, b in pairwise(starts)]
    kept = [block for (key, _), block in zip(node.value, blocks, strict=True) if key.value not in keys]
    return text[: starts[0]] + "".join(kept)


def _configs(front: dict[str, Any], splits: Sequence[Split]) -> list[dict[str, Any]]:
    """The configurations: packed, quarantine, and those of others.

    Ours is the default, unless another is called "default": `datasets` takes that one for it and refuses two.
    """
    others = [dict(config) for config in _listed(front.get("configs")) if config.get("config_name") not in _CONFIGS]
    is_default = {} if any(config.get("config_name") == "default" for config in others) else {"default": True}
    files = [{"split": split.name, "path": f"data/{split.name}/**/*.parquet"} for split in splits]
    ours = [{"config_name": "packed", **is_default, "data_files": files}]
    aside = [{"split": s.name, "path": f"quarantine/{s.name}/*.parquet"} for s in splits if s.has_quarantine]
    ours += [{"config_name": "quarantine", "data_files": aside}] if aside else []
    for config in others:
        config.pop("default", None)
    return ours + others


def _infos(front: dict[str, Any], splits: Sequence[Split]) -> list[dict[str, Any]]:
    """The dataset_info of each configuration."""
    num_bytes = sum(split.num_bytes for split in splits)
    ours = {
        "config_name": "packed",
        "features": yaml_features(contract.PACK_SCHEMA),
        "splits": [{"name": s.name, "num_bytes": s.num_bytes, "num_examples": s.num_packs} for s in splits],
        "download_size": num_bytes,
        "dataset_size": num_bytes,
    }
    return [ours, *(info for info in _listed(front.get("dataset_info")) if info.get("config_name") not in _CONFIGS)]


def _with_summary(body: str, summary: str) -> str:
    block = f"{BEGIN}\n{summary.strip()}\n{END}"
    if _SUMMARY.search(body):
        return _SUMMARY.sub(lambda _: block, body, count=1)
    return f"{body.rstrip()}\n\n{block}\n" if body.strip() else f"{block}\n"
