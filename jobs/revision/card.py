"""The dataset card: YAML that `load_dataset` and the viewer read, and a summary that people read.

An existing README is merged, not replaced: its other YAML keys and configurations stay, and so does its text
outside the two marks between which the summary stands.
"""

import re
from itertools import pairwise
from typing import Any

import yaml

from jobs.output.interface import OutputError
from jobs.sources.licenses import front_matter, listed
from packing_udfs import contract

BEGIN, END = "<!-- packing: begin -->", "<!-- packing: end -->"
_FRONT = re.compile(r"\A\ufeff?\s*---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_SUMMARY = re.compile(f"{re.escape(BEGIN)}(?:(?!{re.escape(BEGIN)}).)*?{re.escape(END)}", re.DOTALL)
_STEPS = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
_CONFIGS = ("packed", "quarantine")  # the configurations that are ours


def size_category(num_rows: int) -> str:
    """The Hub's name for a number of rows: `size_category(999)` is "n<1K"."""
    step = next((i for i in range(len(_STEPS)) if num_rows < 1_000 * 10**i), len(_STEPS))
    if step == 0:
        return f"n<{_STEPS[0]}"
    return f"{_STEPS[step - 1]}<n<{_STEPS[step]}" if step < len(_STEPS) else f"n>{_STEPS[-1]}"


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

    `manifests`: split → info of each packed split; `has_quarantine`: splits that have quarantined rows. Raises
    OutputError when the front matter of the `existing` text is no YAML mapping.
    """
    front, text, body = read_front_matter(existing)
    ours: dict[str, Any] = {
        "configs": _configs(front, list(manifests), has_quarantine),
        "dataset_info": _infos(front, {split: info["totals"] for split, info in manifests.items()}),
        "size_categories": [size_category(sum(info["totals"]["num_packs"] for info in manifests.values()))],
        "tags": list(dict.fromkeys([*_listed(front.get("tags")), "packed", "image-text"])),
    }
    ours |= front_matter(licenses)
    header = _without(text, set(ours)) + yaml.safe_dump(ours, sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{header}---\n{_with_summary(body, summary)}"


def read_front_matter(readme: str) -> tuple[dict, str, str]:
    """A README's front matter as values and as text, and the text below it.

    Raises OutputError when there is a front matter that is no YAML mapping.
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
    """The licences that a README's front matter names."""
    return listed(read_front_matter(readme)[0])


def _listed(value: Any) -> list:
    """What YAML may have as one value or as a list of them."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _without(text: str, keys: set[str]) -> str:
    """The text of a YAML mapping less some of its keys.

    The rest stays as it is written, with its comments; dumped again, the language code `no` would become `false`.
    """
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None or node.flow_style:
        rest = {key: value for key, value in (yaml.safe_load(text) or {}).items() if key not in keys}
        return yaml.safe_dump(rest, sort_keys=False, allow_unicode=True, width=1000) if rest else ""
    starts = [key.start_mark.index for key, _ in node.value] + [len(text)]
    blocks = [text[a:b] for a, b in pairwise(starts)]
    kept = [block for (key, _), block in zip(node.value, blocks, strict=True) if key.value not in keys]
    return text[: starts[0]] + "".join(kept)


def _configs(front: dict, splits: list[str], has_quarantine: list[str]) -> list:
    """The configurations: packed, quarantine, and those of others.

    Ours is the default unless another is called "default", which `datasets` takes for one: it refuses two.
    """
    others = [config for config in _listed(front.get("configs")) if config.get("config_name") not in _CONFIGS]
    is_default = {} if any(config.get("config_name") == "default" for config in others) else {"default": True}
    files = [{"split": split, "path": f"data/{split}/**/*.parquet"} for split in splits]
    ours = [{"config_name": "packed", **is_default, "data_files": files}]
    if has_quarantine:
        files = [{"split": split, "path": f"quarantine/{split}/*.parquet"} for split in has_quarantine]
        ours.append({"config_name": "quarantine", "data_files": files})
    return ours + [{key: value for key, value in config.items() if key != "default"} for config in others]


def _infos(front: dict, totals: dict[str, dict]) -> list:
    """The dataset_info of each configuration."""
    num_bytes = sum(total["num_bytes"] for total in totals.values())
    ours = {
        "config_name": "packed",
        "features": yaml_features(contract.PACK_SCHEMA),
        "splits": [
            {"name": split, "num_bytes": total["num_bytes"], "num_examples": total["num_packs"]}
            for split, total in totals.items()
        ],
        "download_size": num_bytes,
        "dataset_size": num_bytes,
    }
    others = [info for info in _listed(front.get("dataset_info")) if info.get("config_name") not in _CONFIGS]
    return [ours, *others]


def _with_summary(body: str, summary: str) -> str:
    block = f"{BEGIN}\n{summary.strip()}\n{END}"
    if _SUMMARY.search(body):
        return _SUMMARY.sub(lambda _: block, body, count=1)
    return f"{body.rstrip()}\n\n{block}\n" if body.strip() else f"{block}\n"
