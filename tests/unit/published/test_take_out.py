"""Samples that are taken down are gone from every file of the new revision, and what stays is as it was."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from huggingface_hub import HfApi

from jobs import takedown
from jobs.output.folder import Folder
from jobs.published import take_out, takedown_proof, wanted
from jobs.published.check_dataset import validate
from jobs.published.dataset import Packed, open_packed
from jobs.published.remainder import Gone, NewRevision, Remainder, RewrittenFile, _runs
from jobs.published.takedown_proof import prove
from packing_udfs.manifest import Manifest
from tests.unit.demo_samples import DEMO, demo_rows
from tests.unit.published_demo import publish_demo, shown

REPO = "user/demo-taken"
PROCESSOR = str(DEMO / "processor")  # a folder, whose place the manifest does not say


@pytest.fixture(scope="module")
def published(tmp_path_factory, session_hub) -> Counter:
    """The demo in four shards at REPO; its samples."""
    folder = tmp_path_factory.mktemp("taken")
    publish_demo(folder, "shards.num_shards=4", "shards.num_packs_per_row_group=2")
    HfApi().create_repo(REPO, repo_type="dataset")
    HfApi().upload_folder(folder_path=str(folder), repo_id=REPO, repo_type="dataset")
    return samples(open_packed(REPO))


def samples(packed: Packed) -> Counter:
    """(id, source, tokens, digests of images) of every sample."""
    found = Counter()
    for row in packed.manifest("train").row_groups.to_pylist():
        for pack in packed.row_group(row["file"], row["row_group"]).to_pylist():
            assert pack["num_tokens"] == sum(pack["sample_lengths"])
            at, images = 0, iter(pack["images"])
            names = ("sample_ids", "sample_sources", "sample_lengths", "sample_num_images")
            for sample_id, source, length, count in zip(*(pack[name] for name in names), strict=True):
                digests = tuple(hashlib.sha256(next(images)["bytes"]).hexdigest() for _ in range(count))
                found[sample_id, source, tuple(pack["input_ids"][at : at + length]), digests] += 1
                at += length
    return found


def alone(found: Counter) -> list:
    """Samples whose images no other sample shows."""
    shown = Counter(digest for sample in found for digest in sample[3])
    return [sample for sample in sorted(found) if sample[3] and all(shown[d] == 1 for d in sample[3])]


def test_two_samples_go_and_nothing_else_changes(published, capsys):
    gone = alone(published)[:2]
    before = open_packed(REPO)
    assert (
        takedown.main(
            ["--repo", REPO, "--processor", PROCESSOR, "--ids=" + ",".join(str(sample[0]) for sample in gone)]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert out.startswith("taken down   2 samples with ")
    assert f"super_squash_history('{REPO}', repo_type='dataset')" in out
    after = open_packed(REPO)
    assert samples(after) == published - Counter(gone)
    info, was = after.manifest("train").info, before.manifest("train").info
    assert info["taken_down"] == sorted(sample[0] for sample in gone)
    assert info["totals"]["num_samples"] == info["sums"]["num_samples"] == was["totals"]["num_samples"] - 2
    assert info["sums"]["num_packs"] == info["totals"]["num_packs"] == after.manifest("train").num_packs
    assert info["sums"]["num_tokens"] == info["totals"]["num_tokens"]
    assert sum(info["sums"]["histograms"]["sample_tokens"].values()) == info["totals"]["num_samples"]
    assert sum(source.get("num_taken_down", 0) for source in after.report()["sources"]) == 2
    assert list(validate(before)) == list(validate(after)) == []
    untouched = [path for path in before.paths if path.startswith("data/") and before.read(path) == after.read(path)]
    assert len(untouched) >= 2
    images = {digest for sample in gone for digest in sample[3]}
    for path in after.paths:
        data = after.read(path)
        for image in (image for image in _images(before, gone)):
            assert image not in data, path
    assert images


def _images(packed: Packed, gone: list) -> list[bytes]:
    wanted = {digest for sample in gone for digest in sample[3]}
    rows = packed.manifest("train").row_groups.to_pylist()
    tables = (packed.row_group(row["file"], row["row_group"], ["images"]) for row in rows)
    images = [image["bytes"] for table in tables for pack in table["images"].to_pylist() for image in pack]
    found = [image for image in images if hashlib.sha256(image).hexdigest() in wanted]
    assert len(found) == len(wanted)
    return found


def test_rows_go_by_where_they_come_from(published, capsys):
    """A row of a file, all rows of a file, and rows of the quarantine."""
    before = open_packed(REPO)
    shown = Counter(image["bytes"] for row in demo_rows() for image in row["images"] or [])
    ids = {sample[0] for sample in samples(before)}
    one = next(row for row in demo_rows() if row["sample_id"] in ids and row["images"] and all(
        shown[image["bytes"]] == 1 for image in row["images"]))  # fmt: skip
    aside = next(row for row in before.table("quarantine/train/00000.parquet").to_pylist())
    words = [["--where", f"source={row['source']}", f"file={row['file']}", f"row={row['row']}"] for row in (one, aside)]
    assert takedown.main(["--repo", REPO, "--processor", PROCESSOR, *words[0], *words[1]]) == 0
    assert capsys.readouterr().out.startswith("taken down   1 samples with ")
    after = open_packed(REPO)
    assert samples(before) - samples(after) == Counter(s for s in samples(before) if s[0] == one["sample_id"])
    assert {one["sample_id"], aside["sample_id"]} <= set(after.manifest("train").info["taken_down"])
    assert aside not in after.table("quarantine/train/00000.parquet").to_pylist()
    assert list(validate(after)) == []


def test_a_source_goes_whole(published):
    sources = sorted({sample[1] for sample in published})
    done = take_out.take_down(REPO, wanted.Wanted(where=(wanted.Where(source=sources[0]),)), processor=PROCESSOR)
    packed = open_packed(REPO)
    assert done.num_samples >= 50
    assert {sample[1] for sample in samples(packed)} == set(sources[1:])
    for path in packed.paths:
        if path.startswith("quarantine/"):
            assert sources[0] not in packed.table(path)["source"].to_pylist()
    assert list(validate(packed)) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ids=12345"], "none of its samples is one of those to be taken down"),
        (["--ids", "-12,abc"], "--ids: 'abc' is refused: ids are whole numbers, as `sample_ids` has them"),
        (["--ids", "-12,13"], "none of its samples is one of those to be taken down; nothing was done\n"),
        (["--ids="], "--ids: there are none"),
        (["--where", "id=3"], "--where: 'id=3' is refused: must be source=NAME, file=PATH or row=NUMBER, once"),
        (["--where", "file=a", "file=b"], "--where: 'file=b' is refused: must be source=NAME, file=PATH or row=N"),
        (["--where", "file=a", "row=-1"], "--where: 'row=-1' is refused: must be source=NAME, file=PATH or row=N"),
        (["--where", "row=3"], "--where: row=3 needs file=PATH beside it, in which it is counted from 0"),
        (["--where", "file=a", "row=3"], "; a row that repeats another was packed as that one, whose sample_id its"),
        (["--where", "source=charts"], "nothing was done; its sources are charts_and_pages, photos_and_drawings\n"),
        (["--ids-file", "/nowhere"], "--ids-file: /nowhere cannot be read: No such file or directory"),
        (["--ids-file", "/"], "--ids-file: / cannot be read: Is a directory"),
    ],
)
def test_what_cannot_be_done_is_refused(published, capsys, arguments, message):
    head = HfApi().dataset_info(REPO).sha
    assert takedown.main(["--repo", REPO, *arguments]) == 1
    assert message in capsys.readouterr().err
    assert HfApi().dataset_info(REPO).sha == head


def test_one_of_the_ways_to_name_samples_is_needed(capsys):
    with pytest.raises(SystemExit):
        takedown.main(["--repo", REPO])
    assert "one of --ids, --ids-file and --where is needed" in capsys.readouterr().err


class Held:
    """A dataset of one file whose samples show these images."""

    def __init__(self, **images: str):
        self.packs = pa.table({
            "images": [[{"bytes": one.encode()} for of_sample in images.values() for one in of_sample]],
            "sample_ids": [[int(name[1:]) for name in images]],
            "sample_sources": [["of"] * len(images)],
            "sample_files": [["a.parquet"] * len(images)],
            "sample_rows": [list(range(len(images)))],
            "sample_num_images": [list(map(len, images.values()))],
        })  # fmt: skip

    def row_group(self, file, index, columns):
        return self.packs.select(columns)

    def prove(self, gone: str) -> int:
        rows = pa.table({"file": ["data/0.parquet"], "row_group": [0]})
        split = Remainder(manifest=Manifest({}, rows, ""))
        hashes = {hashlib.sha256(one.encode()).digest() for one in gone}
        new = NewRevision(self, {"train": split}, Path("/nowhere"))
        return prove(new, wanted.Wanted(frozenset([99])), hashes)


def test_all_that_share_an_image_are_named_at_once():
    """Sample 5 shows what goes, 1 shares an image with it and stands before it, 4 with that one; 2 and 3 with none."""
    held = Held(s1="bc", s2="", s3="xy", s4="cd", s5="ab")
    assert held.prove("z") == 8
    with pytest.raises(takedown_proof.SharedImagesError) as error:
        held.prove("a")
    assert error.value.ids == [1, 4, 5]
    assert str(error.value).startswith("3 other samples would show an image that is to be taken down, or share one ")
    assert "1 of of in data/0.parquet; 4 of of in data/0.parquet; 5 of of in data/0.parquet; " in str(error.value)
    assert str(error.value).endswith("nothing was published: name them too, with --ids 1,4,5 beside those given")


def test_of_many_that_share_an_image_the_first_are_shown():
    with pytest.raises(takedown_proof.SharedImagesError) as error:
        Held(**{f"s{i}": "a" for i in range(50)}).prove("a")
    assert error.value.ids == list(range(50))
    assert "19 of of in data/0.parquet and 30 more; nothing" in str(error.value)
    assert "with --ids-file" in str(error.value)


def test_a_repository_without_packs_is_refused(session_hub, capsys):
    assert takedown.main(["--repo", "user/nothing-there", "--ids=1"]) == 1
    assert "holds nothing that jobs.pack has published" in capsys.readouterr().err


def in_folder(tmp_path) -> Folder:
    """The demo in two shards, as a folder has it."""
    plain = tmp_path / "plain"
    publish_demo(plain, "shards.num_shards=2", "shards.num_packs_per_row_group=2")
    return shown(plain, tmp_path / "volume")


def test_what_is_refused_leaves_nothing_in_a_folder(tmp_path, monkeypatch):
    folder = in_folder(tmp_path)
    there = folder.store.list()
    (gone,) = alone(samples(open_packed(folder.folder)))[:1]
    looked = []

    def look(*arguments):
        looked.append(arguments)
        raise wanted.TakedownError("shows an image that is to be taken down")

    monkeypatch.setattr(take_out, "prove", look)
    assert takedown.main(["--repo", folder.folder, f"--ids={gone[0]}", "--processor", str(DEMO / "processor")]) == 1
    assert looked
    assert folder.store.list() == there


def test_in_a_folder_nothing_of_them_is_left(tmp_path, capsys):
    folder = in_folder(tmp_path)
    before = open_packed(folder.folder)
    was = samples(before)
    gone = alone(was)[:1]
    images = _images(before, gone)
    assert takedown.main(["--repo", folder.folder, "--processor", PROCESSOR, f"--ids={gone[0][0]}"]) == 0
    assert "old          files that held them are removed" in capsys.readouterr().out
    assert samples(open_packed(folder.folder)) == was - Counter(gone)
    files = [path for path in (tmp_path / "volume").rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if any(image in path.read_bytes() for image in images)]


def of_source(number: int) -> list[dict]:
    """The demo's rows of one of its sources."""
    rows = demo_rows()
    name = sorted({row["source"] for row in rows})[number]
    return [row for row in rows if row["source"] == name]


@pytest.mark.parametrize("split", ["train", "two"])
def test_samples_of_a_run_before_the_last_go(tmp_path, split):
    """The second run appends to the split, or writes another one: the report is of that run alone."""
    plain, small = tmp_path / "plain", ("shards.num_shards=1", "shards.num_packs_per_row_group=2")
    publish_demo(plain, *small, rows=of_source(0))
    budget = "pack.max_images_per_pack=1"  # samples that the first run packed are over it
    publish_demo(plain, *small, f"output.split={split}", "output.mode=append", budget, rows=of_source(1))
    folder = shown(plain, tmp_path / "volume")
    before = open_packed(folder.folder)
    assert list(validate(before)) == []
    was, told_before = samples(before), before.report()
    assert max(len(sample[3]) for sample in was) > 1
    of_first = {row["sample_id"] for row in of_source(0)}
    gone = [sample for sample in alone(was) if sample[0] in of_first][:1]
    assert takedown.main(["--repo", folder.folder, "--processor", PROCESSOR, f"--ids={gone[0][0]}"]) == 0
    after = open_packed(folder.folder)
    assert list(validate(after)) == []
    assert samples(after) == was - Counter(gone)
    first, *others = after.manifest("train").info["runs"]
    others += [run for run in after.manifest(split).info["runs"] if split != "train"]
    counts = {source["name"]: source.get("num_taken_down", 0) for source in first["sources"]}
    assert counts == {source["name"]: int(source["name"] == gone[0][1]) for source in first["sources"]}
    assert len(others) == 1
    assert not any("num_taken_down" in source for source in others[0]["sources"])
    told = after.report()
    assert (told["ledger"], told["sources"]) == (told_before["ledger"], told_before["sources"])


def test_each_run_loses_what_is_left_of_it_from_the_last_on(published):
    """Of source s run A packed 4 and B 2; B wrote two splits. 3 go from one of them, 1 from the other."""

    def source(name: str, num_packed: int, num_quarantined: int, **counts: int) -> dict:
        counts |= {"num_rows": 9, "num_copies": 0, "num_packed": num_packed, "num_quarantined": num_quarantined}
        return {"name": name, "commit": "c"} | counts

    def split(info: dict, names: str, num_taken: int) -> Remainder:
        sources = {"A": [source("s", 4, 1)], "B": [source("r", 5, 0), source("s", 2, 1, num_taken_down=1)]}
        runs = [{**info["runs"][0], "run": name, "sources": sources[name]} for name in names]
        taken = [Gone(i, "s", 1, 0) for i in range(num_taken)]
        return Remainder(
            manifest=Manifest(info | {"runs": runs}, None, ""),
            files=[RewrittenFile(path="", gone=taken, before={})],
            set_aside=[Gone(i, "s", 1, 0, "too_long") for i in range(num_taken // 2)],
        )

    info = open_packed(REPO).manifest("train").info
    runs = _runs({"train": split(info, "AB", 3), "validation": split(info, "B", 1)})
    found = {name: [(run.run, [s.dump() for s in run.sources]) for run in of_split] for name, of_split in runs.items()}
    last = [source("r", 5, 0), source("s", 0, 0, num_taken_down=4)]
    assert found["validation"] == [("B", last)]
    assert found["train"] == [("A", [source("s", 3, 1, num_taken_down=1)]), ("B", last)]


def test_what_is_quarantined_is_remembered_and_goes_once(tmp_path, capsys):
    plain = tmp_path / "plain"
    publish_demo(plain, "shards.num_shards=1")
    folder = shown(plain, tmp_path / "volume")
    before = open_packed(folder.folder)
    was, aside = samples(before), before.table("quarantine/train/00000.parquet").to_pylist()[0]
    assert takedown.main(["--repo", folder.folder, "--processor", PROCESSOR, f"--ids={aside['sample_id']}"]) == 0
    after = open_packed(folder.folder)
    assert after.manifest("train").info["taken_down"] == [aside["sample_id"]]
    assert samples(after) == was
    left = after.table("quarantine/train/00000.parquet").to_pylist()
    assert [row["sample_id"] for row in left].count(aside["sample_id"]) == 0
    assert list(validate(after)) == []
    told = {row["reason"]: row["num_rows"] for row in after.report()["ledger"] if row["outcome"] == "taken_down"}
    assert told == {"": 1}
    commit = folder.read_head().commit
    capsys.readouterr()
    assert takedown.main(["--repo", folder.folder, "--processor", PROCESSOR, f"--ids={aside['sample_id']}"]) == 1
    assert "to be taken down, and 1 of the ids were taken down already; nothing was done" in capsys.readouterr().err
    assert folder.read_head().commit == commit


def test_what_the_next_run_left_out_is_not_taken_down_again(tmp_path, capsys):
    plain = tmp_path / "plain"
    publish_demo(plain, "shards.num_shards=1")
    path = plain / "manifest/train.json"
    gone = demo_rows()[0]["sample_id"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"taken_down": [gone]}))
    publish_demo(plain, "shards.num_shards=1")
    folder = shown(plain, tmp_path / "volume")
    packed, head = open_packed(folder.folder), folder.read_head()
    aside = {row["sample_id"]: row["reason"] for row in packed.table("quarantine/train/00000.parquet").to_pylist()}
    assert aside[gone] == "taken_down"
    assert takedown.main(["--repo", folder.folder, "--processor", PROCESSOR, f"--ids={gone}"]) == 1
    assert "1 of the ids were taken down already; nothing was done" in capsys.readouterr().err
    assert folder.read_head() == head


def test_a_file_that_lost_a_sample_is_never_published(tmp_path, capsys, monkeypatch):
    plain = tmp_path / "plain"
    publish_demo(plain, "shards.num_shards=1", "shards.num_packs_per_row_group=2")
    folder = shown(plain, tmp_path / "volume")
    head = folder.read_head()
    gone = alone(samples(open_packed(folder.folder)))[0][0]
    write = take_out.write.write_shard
    monkeypatch.setattr(take_out.write, "write_shard", lambda local, path, groups: write(local, path, list(groups)[1:]))
    assert takedown.main(["--repo", folder.folder, "--processor", PROCESSOR, f"--ids={gone}"]) == 1
    assert "1 were taken out and" in capsys.readouterr().err
    assert folder.read_head() == head


def test_a_split_of_which_nothing_would_be_left_is_refused(tmp_path, capsys):
    plain = tmp_path / "plain"
    publish_demo(plain, "shards.num_shards=1", rows=of_source(0))
    folder = shown(plain, tmp_path / "volume")
    head = folder.read_head()
    assert (
        takedown.main(
            ["--repo", folder.folder, "--processor", PROCESSOR, "--where", f"source={of_source(0)[0]['source']}"]
        )
        == 1
    )
    assert "append other samples first (output.mode=append)" in capsys.readouterr().err
    assert folder.read_head() == head
