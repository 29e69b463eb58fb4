"""The job from end to end on the demo source: what goes in comes out once, and only what was meant changes."""

import hashlib
import io
import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from datasets import Image, List, load_dataset
from huggingface_hub import HfFileSystem
from transformers import AutoProcessor

from jobs import pack, report, validate
from jobs.demo.start import DEMO
from jobs.output import hub_repository, interface
from jobs.shards.ledger import QualityError
from packing_udfs import config, contract, manifest
from packing_udfs.reader import PackedDataset
from tests.spark.conftest import demo_tree, files_of

# Counted by hand in the demo's own README: 229 rows, of which two repeat another.
NUM_ROWS, NUM_DUPLICATES = 229, 2


def source_rows() -> list[dict]:
    files = sorted((DEMO / "source").rglob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def read_packs(repo: str, split: str = "train") -> list[dict]:
    fs = HfFileSystem()
    return [
        pack
        for path in sorted(fs.glob(f"datasets/{repo}/data/{split}/**/*.parquet"))
        for pack in pq.read_table(io.BytesIO(fs.read_bytes(path))).to_pylist()
    ]


def read_manifest(api, repo: str, split: str = "train") -> manifest.Manifest:
    return hub_repository.Repository(repo, 10).read_manifest(api.dataset_info(repo).sha, split)


def download(api, repo: str, path: str) -> Path:
    return Path(api.hf_hub_download(repo, path, repo_type="dataset"))


def image_digests(images) -> tuple[str, ...]:
    return tuple(hashlib.sha256(image["bytes"]).hexdigest() for image in images)


def samples_of(packs: list[dict]) -> list[tuple]:
    """(sample_id, image digests) of every sample, in packs' order."""
    found = []
    for row in packs:
        images = iter(row["images"])
        for sample_id, num_images in zip(row["sample_ids"], row["sample_num_images"], strict=True):
            found.append((sample_id, image_digests([next(images) for _ in range(num_images)])))
    return found


def test_every_row_is_packed_quarantined_or_a_duplicate(packed):
    rows = {source["name"]: source["num_rows"] for source in packed["sources"]}
    assert sum(rows.values()) == NUM_ROWS == len(source_rows())
    for source in packed["sources"]:
        parts = source["num_packed"] + source["num_quarantined"] + source["num_duplicates"]
        assert parts == rows[source["name"]]
    assert sum(source["num_duplicates"] for source in packed["sources"]) == NUM_DUPLICATES
    assert packed["quarantine"] == {
        "image_broken": 1,
        "image_missing": 1,
        "image_unidentified": 1,
        "ratings": 4,
        "texts_missing": 1,
        "too_long": 1,
    }


def test_every_sample_once_with_its_own_images(packed):
    samples = samples_of(read_packs("user/packed"))
    assert len(samples) == sum(source["num_packed"] for source in packed["sources"]) > 200
    assert max(Counter(sample_id for sample_id, _ in samples).values()) == 1
    in_source = Counter(image_digests(i for i in row["images"] or () if i["bytes"]) for row in source_rows())
    in_packs = Counter(digests for _, digests in samples)
    with_images = {digests: num for digests, num in in_packs.items() if digests}
    assert len(with_images) > 100
    assert all(num <= in_source[digests] for digests, num in with_images.items())


def test_published_together_in_one_commit(packed, api):
    commits = api.list_repo_commits("user/packed", repo_type="dataset")
    assert [commit.title.split(" (")[0] for commit in commits] == ["Pack 4 shards", "initial commit"]
    assert commits[0].commit_id == packed["commit"]
    assert set(files_of(api, "user/packed")) == {
        ".gitattributes", "README.md", "report.json", "report.html", "report/packs.png", "report/histograms.png",
        "manifest/train.json", "manifest/train.parquet", "quarantine/train/00000.parquet",
        *(f"data/train/{i:05d}.parquet" for i in range(4)),
    }  # fmt: skip


def test_files_follow_the_contract_and_datasets_reads_them(packed, api):
    streamed = load_dataset("user/packed", split="train", streaming=True)
    assert streamed.features["images"] == List(Image())
    first = next(iter(streamed))
    assert first["images"][0].size == (first["image_sizes"][0]["width"], first["image_sizes"][0]["height"])
    packs = read_packs("user/packed")
    assert len(packs) == packed["splits"]["train"]["totals"]["num_packs"]
    for row in packs:
        assert len(row["input_ids"]) == len(row["labels"]) == sum(row["sample_lengths"]) == row["num_tokens"]
        assert row["num_tokens"] <= 4096
        assert row["vision_cost"] <= 56
        assert sum(label != contract.IGNORE_INDEX for label in row["labels"]) == row["num_label_tokens"]
        assert len(row["images"]) == sum(row["sample_num_images"]) == row["num_images"] == len(row["image_sizes"])
    quarantine = load_dataset("user/packed", "quarantine", split="train")
    assert Counter(quarantine["reason"]) == packed["quarantine"]
    assert set(quarantine.features) == set(contract.QUARANTINE_SCHEMA.names)


def test_manifest_describes_what_was_written(packed, api):
    found = read_manifest(api, "user/packed")
    files = files_of(api, "user/packed")
    assert set(found.row_groups["file"].to_pylist()) == {path for path in files if path.startswith("data/")}
    costs = [cost for group in found.row_groups["vision_cost"].to_pylist() for cost in group]
    assert costs == [row["vision_cost"] for row in read_packs("user/packed")]
    assert found.info["run"] == packed["run"]
    assert found.info["totals"] == packed["splits"]["train"]["totals"]
    report = json.loads(download(api, "user/packed", "report.json").read_text("utf-8"))
    of_this_call = ("commit", "speed", "transfer", "reuse")
    assert report == {name: value for name, value in packed.items() if name not in of_this_call}


def test_quarantine_names_file_and_row(packed, api):
    table = pq.read_table(download(api, "user/packed", "quarantine/train/00000.parquet"))
    rows = {row["reason"]: row for row in table.to_pylist()}
    missing = rows["texts_missing"]
    fs = HfFileSystem()
    data = fs.read_bytes(f"datasets/user/demo-source/{missing['file']}")
    source = pq.read_table(io.BytesIO(data)).to_pylist()[missing["row"]]
    assert not source["texts"] or any(t["user"] is None or t["assistant"] is None for t in source["texts"])
    assert rows["too_long"]["num_tokens"] > 4096
    assert rows["image_missing"]["num_images"] == 1


def test_labels_of_a_read_batch_decode_to_the_assistants_texts(packed):
    answers = {turn["assistant"].strip() for row in source_rows() for turn in row["texts"] or () if turn["assistant"]}
    tokenizer = AutoProcessor.from_pretrained(DEMO / "processor").tokenizer
    dataset = PackedDataset("user/packed", global_batch_size=8, decode=None)
    labels = next(iter(dataset))["labels"]
    assert labels.shape == (8, 4096)
    texts = tokenizer.decode(labels[labels != contract.IGNORE_INDEX]).split("<end_of_utterance>")
    said = [text.strip() for text in texts if text.strip()]
    assert len(said) > 20
    assert set(said) <= answers


def test_card_is_readable_and_names_licences(packed, api):
    info = api.dataset_info("user/packed")
    assert info.card_data["size_categories"] == ["n<1K"]
    assert "apache-2.0" in info.card_data["license"]
    text = download(api, "user/packed", "README.md").read_text("utf-8")
    assert f"| train | {packed['splits']['train']['totals']['num_packs']} |" in text


def test_what_is_published_is_sound_and_its_page_is_made_of_it(packed, api, tmp_path, capsys):
    assert validate.main(["user/packed", "--processor", str(DEMO / "processor")]) == 0
    assert capsys.readouterr().out.startswith("no findings in ")
    assert report.main(["user/packed", "--revision", packed["commit"], "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_bytes() == download(api, "user/packed", "report.html").read_bytes()


def test_a_second_run_changes_nothing(packed, run_demo, api):
    before, commits = files_of(api, "user/packed"), len(api.list_repo_commits("user/packed", repo_type="dataset"))
    again = run_demo("user/packed")
    assert files_of(api, "user/packed") == before
    assert again["commit"] == packed["commit"]
    assert len(api.list_repo_commits("user/packed", repo_type="dataset")) == commits


def test_overwrite_replaces_the_split_and_only_it(run_demo, api):
    run_demo("user/two-splits", output={"repo": "user/two-splits", "split": "train_extra"}, shards={"num_shards": 1})
    extra = {path: oid for path, oid in files_of(api, "user/two-splits").items() if "train_extra" in path}
    run_demo("user/two-splits", shards={"num_shards": 4})
    run_demo("user/two-splits", shards={"num_shards": 2, "seed": 1})
    files = files_of(api, "user/two-splits")
    assert {path: oid for path, oid in files.items() if "train_extra" in path} == extra
    assert len(extra) == 4  # a shard, two manifest files, the quarantine
    assert [path for path in files if path.startswith("data/train/")] == [f"data/train/{i:05d}.parquet" for i in (0, 1)]
    card = api.dataset_info("user/two-splits").card_data
    splits = {entry["split"] for entry in card["configs"][0]["data_files"]}
    assert splits == {"train", "train_extra"}


def test_append_adds_files_and_keeps_the_old(run_demo, api):
    tree = demo_tree("user/grown")
    first, second = tree["sources"]
    one = pack_sources(run_demo, "user/grown", [first], "overwrite")
    before = files_of(api, "user/grown")
    two = pack_sources(run_demo, "user/grown", [second], "append")
    after = files_of(api, "user/grown")
    data = [path for path in before if path.startswith("data/")]
    assert data == [f"data/train/{i:05d}.parquet" for i in range(4)]
    assert all(after[path] == before[path] for path in data)
    assert [path for path in after if path.startswith("data/")] == [f"data/train/{i:05d}.parquet" for i in range(8)]
    found = read_manifest(api, "user/grown")
    assert found.info["totals"]["num_samples"] == sum(r["sources"][0]["num_packed"] for r in (one, two))
    assert [run["sources"][0]["name"] for run in found.info["runs"]] == [first["name"], second["name"]]
    quarantined = load_dataset("user/grown", "quarantine", split="train")
    assert len(quarantined) == sum(r["sources"][0]["num_quarantined"] for r in (one, two))


def pack_sources(run_demo, repo: str, sources: list[dict], mode: str) -> dict:
    return run_demo(
        repo, sources=sources, output={"repo": repo, "mode": mode}, quality={"max_quarantine_fraction": 0.2}
    )


def test_append_of_another_kind_is_refused(run_demo, packed, api):
    with pytest.raises(interface.OutputError, match=r"cannot append to train: its seq_len is 4096, not 2048"):
        run_demo("user/packed", pack={"seq_len": 2048}, output={"repo": "user/packed", "mode": "append"},
                 quality={"max_quarantine_fraction": 1.0})  # fmt: skip
    assert api.dataset_info("user/packed").sha == packed["commit"]


def test_validation_split_takes_its_share_and_goes_with_its_run(run_demo, packed, api):
    report = run_demo("user/validated", shards={"validation_fraction": 0.2})
    train, validation = (samples_of(read_packs("user/validated", split)) for split in ("train", "validation"))
    assert not set(train) & set(validation)
    assert sorted(train + validation) == sorted(samples_of(read_packs("user/packed")))
    assert 20 <= len(validation) <= 65  # 0.2 of 214, by hash
    assert report["splits"]["validation"]["totals"]["num_samples"] == len(validation)
    assert load_dataset("user/validated", split="validation", streaming=True).features["images"] == List(Image())
    run_demo("user/validated")
    assert not [path for path in files_of(api, "user/validated") if "validation" in path]


def test_above_the_limit_a_pull_request_is_merged_once(run_demo, packed, api):
    run_demo("user/many-files", output={"repo": "user/many-files", "max_operations_per_commit": 3})
    same = files_of(api, "user/packed")
    files = files_of(api, "user/many-files")
    assert {path: files[path] for path in files if path.startswith("data/")} == {
        path: same[path] for path in same if path.startswith("data/")
    }
    (request,) = api.get_repo_discussions("user/many-files", repo_type="dataset")
    assert request.status == "merged"


def test_too_much_quarantine_fails_with_the_reasons(run_demo, packed, api):
    with pytest.raises(QualityError, match=r"(?s)more than 1\.0%.*ratings"):
        run_demo("user/packed", quality={"max_quarantine_fraction": 0.01})
    assert api.dataset_info("user/packed").sha == packed["commit"]


def test_nothing_fits_is_an_error_and_not_an_empty_dataset(run_demo, api):
    pictures = demo_tree("user/nothing")["sources"][1]
    lenient = {"max_quarantine_fraction": 1.0}
    with pytest.raises(QualityError, match=r"rows .* are quarantined, and none is left; nothing was published"):
        run_demo("user/nothing", sources=[pictures], pack={"max_vision_cost": 1}, quality=lenient)
    assert set(files_of(api, "user/nothing")) == {".gitattributes"}


def test_main_prints_the_result(spark, source, packed, tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(demo_tree("user/packed")))
    assert pack.main(["--config", str(path)], spark) == 0
    out = capsys.readouterr().out
    assert "229 in = " in out
    assert f"published    user/packed at {packed['commit'][:12]}" in out


def test_config_of_the_report_runs_again(packed):
    assert config.parse(packed["config"]).output.repo == "user/packed"
