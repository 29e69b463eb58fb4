"""Odd sizes, texts, cards and repositories: each comes out whole, or is refused with what to do before Spark starts."""

from collections import Counter

import pytest
from datasets import load_dataset

from jobs import pack
from jobs.output import interface
from jobs.shards.ledger import QualityError
from packing_udfs import config
from packing_udfs.reader import PackedDataset
from tests.spark.conftest import demo_tree, files_of
from tests.spark.made_sources import VQA, parquet, picture, upload, vqa_row_file, vqa_rows
from tests.spark.test_job import read_manifest


@pytest.fixture(scope="module")
def run(spark):
    """Pack named sources into a repository: run("user/x", ["user/a"], shards={"num_shards": 2}, mode="append")."""

    def call(repo: str, sources: list[str], *, shards=None, pack_=None, **output) -> dict:
        tree = demo_tree(
            repo,
            sources=[{"repo": source, "name": source.rpartition("/")[2]} for source in sources],
            shards={"num_shards": 1} | (shards or {}),
            pack=pack_ or {},
            quality={"max_quarantine_fraction": 1.0},
            output={"repo": repo, **output},
        )
        return pack.run(config.parse(tree), spark)

    return call


@pytest.fixture(scope="module")
def rows(session_hub) -> dict[str, str]:
    """Sources by their content; `few` and `more` have no row in common."""
    made = {"few": vqa_row_file(0, 6), "more": vqa_row_file(20, 50), "one": vqa_row_file(60, 61)}
    made["none"] = parquet([], VQA)
    return {name: upload(f"user/odd-{name}", {"data/train-0.parquet": data}) for name, data in made.items()}


def check(api, report: dict, splits: tuple[str, ...] = ("train",)) -> Counter:
    """Ledger, manifest, files, card and reader agree; the sample ids of these splits."""
    repo, files = report["config"]["output"]["repo"], files_of(api, report["config"]["output"]["repo"])
    for source in report["sources"]:
        outcomes = ("num_packed", "num_quarantined", "num_duplicates", "num_not_sampled")
        assert source["num_rows"] + source["num_copies"] == sum(source[name] for name in outcomes)
    assert report["commit"] == api.dataset_info(repo).sha
    found = {path.split("/")[1] for path in files if path.count("/") > 1 and path.startswith("data/")}
    assert found == set(splits)
    ids: Counter = Counter()
    for split in splits:
        manifest = read_manifest(api, repo, split)
        assert set(manifest.row_groups["file"].to_pylist()) == {p for p in files if p.startswith(f"data/{split}/")}
        loaded = [i for row in load_dataset(repo, "packed", split=split, streaming=True) for i in row["sample_ids"]]
        assert len(loaded) == manifest.info["totals"]["num_samples"]
        batches = list(PackedDataset(repo, split=split, global_batch_size=1, decode=None))
        assert len(batches) == manifest.info["totals"]["num_packs"]
        trained = sum(int(batch["num_label_tokens"].sum()) for batch in batches)
        assert trained == manifest.info["totals"]["num_label_tokens"]
        ids.update(loaded)
    quarantined = {path.split("/")[1] for path in files if path.startswith("quarantine/")}
    configs = {c["config_name"]: c for c in api.dataset_info(repo).card_data["configs"]}
    named = {entry["split"] for entry in configs.get("quarantine", {}).get("data_files", [])}
    assert named == quarantined
    return ids


def test_more_shards_than_rows(run, rows, api):
    assert check(api, run("user/odd-64", [rows["one"], rows["none"]], shards={"num_shards": 64})).total() == 1


def test_row_groups_of_one_pack(run, rows, api):
    report = run("user/odd-rg", [rows["few"]], shards={"num_packs_per_row_group": 1})
    assert check(api, report).total() == 6
    totals = report["splits"]["train"]["totals"]
    assert totals["num_row_groups"] == totals["num_packs"] > 1


def test_a_sample_exactly_as_long_as_a_pack(run, rows, api):
    report = run("user/odd-exact", [rows["one"]])
    (length,) = read_manifest(api, "user/odd-exact").row_groups["num_tokens"].to_pylist()
    assert report["splits"]["train"]["totals"]["num_tokens"] == length
    assert check(api, run("user/odd-exact", [rows["one"]], pack_={"seq_len": length})).total() == 1
    with pytest.raises(QualityError, match=r"1 of 1 rows \(100\.0%\) are quarantined, and none is left"):
        run("user/odd-exact", [rows["one"]], pack_={"seq_len": length - 1})


def test_no_rows_at_all_are_refused_before_anything_is_made(run, rows, api):
    with pytest.raises(config.ConfigError, match=r"sources: no rows in odd-none"):
        run("user/odd-nothing", [rows["none"]])
    assert not api.repo_exists("user/odd-nothing", repo_type="dataset")


def test_a_validation_split_that_gets_nothing_says_what_to_change(run, rows):
    with pytest.raises(QualityError, match=r"split validation: .*; use another shards.validation_fraction"):
        run("user/odd-validation", [rows["few"]], shards={"validation_fraction": 1e-6})


def test_hostile_texts_and_paths(run, api):
    """Two questions differ in nothing but their image's path, which is no part of a sample."""
    texts = ["<image>", "<|im_start|>x<end_of_utterance>", "nul \0 in", "\u202eשלום", "👩‍👩‍👧🏳️‍🌈", " ", "x" * 1_000_000]
    paths = ["a/../b.jpg", "\0'\"\n.jpg", "ü.jpg", "", None, "c:\\x", "/etc/x"]
    asked = [
        {"image": {"bytes": picture(i), "path": path}, "question": text, "answer": "yes"}
        for i, (text, path) in enumerate(zip(texts, paths, strict=True))
    ]
    said = [{**row, "question": "what?", "answer": row["question"]} for row in asked]
    broken = [
        {"image": None, "question": "q", "answer": "a"},
        {"image": {"bytes": None, "path": "x"}, "question": "p", "answer": "a"},
        {"image": {"bytes": b"", "path": ""}, "question": "q", "answer": None},
        {**asked[0], "image": {"bytes": asked[0]["image"]["bytes"], "path": "other"}},
    ]
    source = upload("user/odd-hostile", {"data/train-0.parquet": parquet(asked + said + broken, VQA)})
    report = run("user/odd-hostile-packed", [source])
    assert report["quarantine"]["too_long"] == 2
    assert report["sources"][0]["num_duplicates"] == 1
    assert check(api, report).total() == report["sources"][0]["num_packed"] >= 10


def test_duplicates_across_sources_count_for_the_later_one(run, rows, api):
    other = upload("user/odd-same", {"data/train-0.parquet": vqa_row_file(4, 9)})
    report = run("user/odd-across", [rows["few"], other], shards={"num_shards": 2})
    assert [(s["num_packed"], s["num_duplicates"]) for s in report["sources"]] == [(6, 0), (3, 2)]
    assert check(api, report).total() == 9


def test_a_life_of_appends_and_rewrites(run, rows, api):
    """Each step is whole; an append adds to what is there, and nothing when it is the last one again."""
    repo = "user/odd-life"
    first = check(api, run(repo, [rows["few"]], shards={"num_shards": 2}))
    more = check(api, run(repo, [rows["more"]], mode="append"))
    assert more & first == first
    assert more.total() == 36
    assert check(api, run(repo, [rows["more"]], mode="append")) == more
    assert check(api, run(repo, [rows["more"]], mode="append", shards={"seed": 1})).total() == 66
    assert read_manifest(api, repo).info["num_shards"] == 8  # 2 + 1 is 4 at least, and 4 + 1 is 8
    validated = run(repo, [rows["more"]], shards={"validation_fraction": 0.4})
    assert check(api, validated, ("train", "validation")).total() == 30
    more = run(repo, [rows["few"]], mode="append", shards={"validation_fraction": 0.4})
    assert check(api, more, ("train", "validation")).total() == 36
    assert check(api, run(repo, [rows["few"]])) == first  # its validation samples may be among these: they go too


def test_a_quarantine_goes_with_its_rows(run, rows, api):
    broken = [*vqa_rows(0, 3), {"image": {"bytes": b"x", "path": ""}, "question": "q", "answer": "a"}]
    source = upload("user/odd-broken", {"data/train-0.parquet": parquet(broken, VQA)})
    check(api, run("user/odd-quarantine", [source], shards={"num_shards": 2}))
    (file,) = [path for path in files_of(api, "user/odd-quarantine") if path.startswith("quarantine/")]
    check(api, run("user/odd-quarantine", [rows["few"]]))
    assert file not in files_of(api, "user/odd-quarantine")


def test_files_of_others_beside_ours_are_kept(run, rows, api):
    """With a configuration called "default", which `datasets` takes for the default whatever else is marked as it."""
    readme = (
        b"---\r\nlicense: mit\r\nconfigs:\r\n- config_name: default\r\n  data_files: data/train-*\r\n---\r\nMine.\r\n"
    )
    others = {"README.md": readme, "data/train-00000.parquet": vqa_row_file(7, 9), "manifest/mine.json": b"[1]"}
    repo = upload("user/odd-others", others)
    before = files_of(api, repo)
    assert check(api, run(repo, [rows["few"]])).total() == 6
    after = files_of(api, repo)
    assert {path: after[path] for path in before if path != "README.md"} == {
        path: before[path] for path in before if path != "README.md"
    }
    assert load_dataset(repo, split="train", streaming=True).features.keys() == {"image", "question", "answer"}


@pytest.mark.parametrize("mode", ["overwrite", "append"])
@pytest.mark.parametrize("path", ["data/train/mine.parquet", "manifest/train.json"])
def test_files_of_others_in_our_place_are_refused(run, rows, api, mode, path):
    repo = upload(f"user/odd-{mode}-{path.split('/')[0]}", {path: b"not ours"})
    before = api.dataset_info(repo).sha
    with pytest.raises(interface.OutputError, match=rf"output.repo: {repo} has {path}, which no packing job made"):
        run(repo, [rows["few"]], mode=mode)
    assert api.dataset_info(repo).sha == before


def test_an_append_to_a_split_that_lost_a_file_is_refused(run, rows, api):
    repo = "user/odd-lost"
    run(repo, [rows["few"]], shards={"num_shards": 2})
    api.delete_file("data/train/00000.parquet", repo, repo_type="dataset")
    with pytest.raises(
        interface.OutputError, match=r"cannot append to train: data/train/00000.parquet is in its manifest"
    ):
        run(repo, [rows["more"]], mode="append")
    assert check(api, run(repo, [rows["more"]])).total() == 30
