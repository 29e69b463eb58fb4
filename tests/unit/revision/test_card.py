"""The dataset card: what `datasets` reads from it, and that nothing of an existing one is lost."""

import json
from dataclasses import replace
from importlib.resources import files

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from datasets import Features, Image, List, load_dataset
from huggingface_hub import DatasetCard

from jobs.output.interface import OutputError
from jobs.revision import card
from jobs.revision.card import BEGIN, END
from packing_udfs import contract
from packing_udfs.parquet.write import write_shard
from tests.unit.made_packs import packs_table

TRAIN = card.Split(name="train", num_bytes=1000, num_packs=900)
VALIDATION = card.Split(name="validation", num_bytes=50, num_packs=100)
SUMMARY = "## Packed\n\nA \\1 summary with \\ and $."

EXISTING = """---
# What people wrote about it
language:
- en
- no
license: mit
version: 1.10
tags: [charts]   # more to come
configs:
- config_name: raw
  default: true
  data_files: raw/*.parquet
- config_name: packed
  data_files: old/*.parquet
- config_name: quarantine
  data_files: old-quarantine/*.parquet
dataset_info:
  config_name: raw
  features:
  - name: text
    dtype: string
pretty_name: "Charts: all of them"
---
# Charts

Some words.

---

More words below a line.
"""


def render(existing: str = "", licenses=(), quarantine=(), splits=(TRAIN, VALIDATION), summary=SUMMARY) -> str:
    splits = [replace(split, has_quarantine=split.name in quarantine) for split in splits]
    return card.render(existing, splits, list(licenses), summary)


def front(text: str) -> dict:
    """The front matter as huggingface_hub reads it."""
    return DatasetCard(text, ignore_metadata_errors=False).data.to_dict()


def test_size_categories_are_the_hubs():
    names = json.loads(files("datasets.utils.resources").joinpath("size_categories.json").read_text())
    edges = [0, *(10**power for power in range(3, 13))]
    assert [card.size_category(edge) for edge in edges] == [name for name in names if name != "unknown"]
    assert [card.size_category(edge - 1) for edge in edges[1:]] == [card.size_category(edge) for edge in edges[:-1]]


@pytest.mark.parametrize(
    "schema", [contract.PACK_SCHEMA, contract.QUARANTINE_SCHEMA, contract.SAMPLE_SCHEMA, contract.MANIFEST_SCHEMA]
)
def test_features_are_read_back(schema):
    """Through YAML, by the function that `datasets` reads cards with."""
    text = yaml.safe_dump(card.yaml_features(schema))
    read = Features._from_yaml_list(yaml.safe_load(text))
    assert read == Features.from_dict(contract.features(schema))
    assert card.yaml_features(schema) == read._to_yaml_list()


def test_a_new_card():
    text = render(licenses=["apache-2.0"], quarantine=["train"])
    data = front(text)
    assert data["configs"] == [
        {
            "config_name": "packed",
            "default": True,
            "data_files": [
                {"split": "train", "path": "data/train/**/*.parquet"},
                {"split": "validation", "path": "data/validation/**/*.parquet"},
            ],
        },
        {"config_name": "quarantine", "data_files": [{"split": "train", "path": "quarantine/train/*.parquet"}]},
    ]
    (info,) = data["dataset_info"]
    assert info["splits"] == [
        {"name": "train", "num_bytes": 1000, "num_examples": 900},
        {"name": "validation", "num_bytes": 50, "num_examples": 100},
    ]
    assert (info["download_size"], info["dataset_size"]) == (1050, 1050)
    assert data["size_categories"] == ["1K<n<10K"]
    assert (data["license"], data["tags"]) == ("apache-2.0", ["packed", "image-text"])
    assert text.endswith(f"---\n{BEGIN}\n{SUMMARY}\n{END}\n")


def test_several_licenses():
    assert front(render(licenses=["mit", "cc-by-4.0"]))["license"] == ["cc-by-4.0", "mit"]


def test_licenses_that_the_hub_has_no_name_for(session_hub):
    """Expressions are taken apart; what the Hub would refuse gets `other` and a name, and is read back by that name."""
    text = render(licenses=["CC-BY-2.0 AND CC0-1.0", "MIT", "Public domain (NASA)", "my-license", "cc0-1.0"])
    assert front(text)["license"] == ["cc-by-2.0", "cc0-1.0", "mit", "other"]
    assert front(text)["license_name"] == "my-license-and-public-domain-nasa"
    DatasetCard(text).validate(repo_type="dataset")
    assert "license_name" not in front(render(licenses=["other"]))
    again = front(render(licenses=card.licenses_of(render(licenses=["my-license"]))))
    assert (again["license"], again["license_name"]) == ("other", "my-license")


def test_the_hub_refuses_other_names(session_hub):
    text = render(licenses=["mit"]).replace("license: mit", "license: cc-by-2.0 and cc0-1.0")
    with pytest.raises(ValueError, match="must be one of"):
        DatasetCard(text).validate(repo_type="dataset")


def test_an_existing_card_keeps_what_is_not_ours():
    text = render(EXISTING)
    before, after = front(EXISTING), front(text)
    changed = {"configs", "dataset_info", "size_categories", "tags"}
    assert {k: v for k, v in after.items() if k not in changed} == {k: v for k, v in before.items() if k not in changed}
    assert after["tags"] == ["charts", "packed", "image-text"]
    assert [config["config_name"] for config in after["configs"]] == ["packed", "raw"]
    assert after["configs"][1] == {"config_name": "raw", "data_files": "raw/*.parquet"}  # one default is enough
    assert [info["config_name"] for info in after["dataset_info"]] == ["packed", "raw"]
    assert after["dataset_info"][1] == before["dataset_info"]
    for line in ("# What people wrote about it", "- no\n", "version: 1.10\n", 'pretty_name: "Charts: all of them"\n'):
        assert line in text
    assert "# Charts\n\nSome words.\n\n---\n\nMore words below a line.\n" in text


def test_a_config_called_default_stays_the_only_default():
    """`datasets` takes it for the default by its name and refuses a second one."""
    first, second = front(render("---\nconfigs:\n- config_name: default\n  data_files: x/*\n---\n"))["configs"]
    assert (first["config_name"], "default" in first) == ("packed", False)
    assert second == {"config_name": "default", "data_files": "x/*"}


def test_licenses_of_a_card():
    assert [card.licenses_of(text) for text in ("", "---\nlicense: mit\n---\n", "---\nlicense: [a, b]\n---\n")] == [
        [],
        ["mit"],
        ["a", "b"],
    ]


def test_a_license_of_the_sources_replaces_the_old_one():
    assert front(render(EXISTING, licenses=["cc0-1.0"]))["license"] == "cc0-1.0"


EXISTING_CARDS = {
    "nothing": "",
    "a full card": EXISTING,
    "no front matter": "# Charts\n\nSome words.\n",
    "front matter alone": "---\nlicense: mit\n---\n",
    "without a last newline": "---\nlicense: mit\n---",
    "empty front matter": "---\n---\n# Charts\n",
    "comments alone": "---\n# nothing yet\n---\n# Charts\n",
    "a byte order mark": "\ufeff---\nlicense: mit\n---\n# Charts\n",
    "blank lines before": "\n\n---\nlicense: mit\n---\n# Charts\n",
    "Windows' line ends": EXISTING.replace("\n", "\r\n"),
    "flow style": "---\n{license: mit, tags: [a]}\n---\n# Charts\n",
    "empty keys": "---\nconfigs:\ndataset_info:\ntags:\n---\n# Charts\n",
    "tags as text": "---\ntags: charts\n---\n",
    "lists at the margin": "---\ntags:\n- a\n- b\nlanguage:\n- en\n---\n",
    "a summary": f"---\nlicense: mit\n---\nAbove.\n\n{BEGIN}\nold\n{END}\n\nBelow.\n",
    "a summary without its end": f"Above.\n\n{BEGIN}\nold\n\nBelow.\n",
    "an end without a summary": f"Above.\n{END}\nBelow.\n",
    "dashes that end nothing": "---\nnote: |\n  ----\n  --- a\nlicense: mit\n---\n# Charts\n",
}


@pytest.mark.parametrize("name", EXISTING_CARDS)
def test_merged_once_and_for_all(name):
    """A second run changes nothing, and `datasets` finds our configuration whatever was there."""
    existing = EXISTING_CARDS[name]
    once = render(existing, quarantine=["train"])
    assert render(once, quarantine=["train"]) == once
    data = front(once)
    assert data["configs"][0]["config_name"] == "packed"
    assert once.count("---\n", 0, 4) == 1
    assert once.count(SUMMARY) == 1
    assert data.get("license") == ("mit" if "license: mit" in existing else None)
    for words in ("# Charts", "Some words.", "Above.", "Below.", "license: mit"):
        assert (words in once) == (words in existing)


def test_a_summary_is_replaced_in_its_place():
    text = render(EXISTING_CARDS["a summary"])
    assert text.endswith(f"---\nAbove.\n\n{BEGIN}\n{SUMMARY}\n{END}\n\nBelow.\n")


def test_a_summary_without_its_end_takes_no_words_along():
    once = render(EXISTING_CARDS["a summary without its end"])
    twice = render(once, summary="New.")
    assert "old\n\nBelow.\n" in twice
    assert SUMMARY not in twice
    assert "New." in twice


def test_windows_line_ends_become_one_kind():
    assert "\r" not in render(EXISTING.replace("\n", "\r\n"))
    assert render(EXISTING.replace("\n", "\r\n")) == render(EXISTING)


def test_a_split_that_is_gone_is_gone():
    both = render(quarantine=["train", "validation"])
    one = front(render(both, splits=[TRAIN]))
    assert [config["config_name"] for config in one["configs"]] == ["packed"]
    assert [split["name"] for split in one["dataset_info"][0]["splits"]] == ["train"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("---\nlicense: [mit\n---\n", "the front matter of its README.md is not YAML, repair it: while parsing"),
        ("---\na: b: c\n---\n", "the front matter of its README.md is not YAML, repair it: mapping values"),
        ("---\n- a\n---\n", "the front matter of its README.md has no `key: value` lines, repair it"),
        ("---\nA line of words\n---\n", "the front matter of its README.md has no `key: value` lines, repair it"),
        (
            "---\nconfigs: words\n---\n",
            "configs in the front matter of its README.md is no list of mappings, repair it",
        ),
        ("---\ndataset_info: [1]\n---\n", "dataset_info in the front matter of its README.md is no list of mappings"),
    ],
)
def test_a_broken_front_matter(text, message):
    with pytest.raises(OutputError) as refused:
        render(text)
    assert str(refused.value).startswith(f"output.repo: {message}")


def test_datasets_loads_what_the_card_names(tmp_path):
    """Files in a folder of their own too, as there are above 5,000."""
    for path, packs in {"data/train/00000.parquet": (0, 3), "data/train/001/05000.parquet": (3, 2)}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        write_shard(str(tmp_path / path), path, [packs_table(*packs)])
    (tmp_path / "other").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other" / "a.parquet")
    num_bytes = sum(path.stat().st_size for path in tmp_path.rglob("data/**/*.parquet"))
    train = card.Split(name="train", num_bytes=num_bytes, num_packs=5)
    existing = "---\nconfigs:\n- config_name: other\n  data_files: other/*.parquet\n---\n"
    (tmp_path / "README.md").write_text(render(existing, splits=[train]))
    loaded = load_dataset(str(tmp_path), cache_dir=str(tmp_path / "cache"))  # the default is `packed`
    assert loaded["train"].features["images"] == List(Image())
    assert loaded["train"].num_rows == 5
    assert load_dataset(str(tmp_path), "other", cache_dir=str(tmp_path / "cache"))["train"].num_rows == 1
