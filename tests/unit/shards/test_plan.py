"""Which shards a run writes, and where."""

from types import SimpleNamespace

import pytest

from jobs.output.interface import Head, OutputError
from jobs.shards import plan
from jobs.shards.plan import plan_shards, shard_path, splits_of
from packing_udfs import config
from packing_udfs.config import ConfigError

MIB, GIB = 1 << 20, 1 << 30
EMPTY = Head(None)


def job(**sections) -> config.Config:
    tree = {"sources": [{"repo": "user/one"}], "processor": {"path": "p"}, "output": {"repo": "user/packed"}}
    for name, fields in sections.items():
        tree[name] = tree.get(name, {}) | fields
    return config.parse(tree)


def sources(*num_bytes: int) -> list[SimpleNamespace]:
    """Pinned sources of which only the size is asked."""
    return [SimpleNamespace(num_sampled_bytes=size) for size in num_bytes]


def head(*paths: str, **num_shards: int) -> Head:
    """A repository with these paths, and a manifest that tells each split's number of shards."""
    return Head("1" * 40, paths, "", tuple((split, {"num_shards": num}) for split, num in num_shards.items()))


def written(paths: list[str] | tuple[str, ...], *splits: str) -> Head:
    """A repository with these paths, and manifests of these splits."""
    return Head("1" * 40, tuple(paths), "", tuple((split, {}) for split in splits))


def names(split: str, *indices: int) -> tuple[str, ...]:
    return tuple(f"data/{split}/{index:05d}.parquet" for index in indices)


def test_paths():
    assert shard_path("train", 0) == "data/train/00000.parquet"
    assert shard_path("train", 4_999) == "data/train/04999.parquet"
    assert shard_path("train", 5_000) == "data/train/001/05000.parquet"
    assert shard_path("a.b", 99_999) == "data/a.b/019/99999.parquet"


def test_paths_stay_apart_and_folders_small():
    folders = {}
    for index in range(12_000):
        folder, _, name = shard_path("train", index).rpartition("/")
        folders.setdefault(folder, set()).add(name)
    assert [len(found) for found in folders.values()] == [5_000, 5_000, 2_000]


@pytest.mark.parametrize(
    ("num_bytes", "shard_bytes", "num_shards"),
    [
        (0, 256 * MIB, 1),
        (256 * MIB, 256 * MIB, 1),
        (256 * MIB + 1, 256 * MIB, 2),
        (5 * 256 * MIB, 256 * MIB, 8),
        (8 * GIB, GIB, 8),
        (8 * GIB + 1, GIB, 16),
    ],
)
def test_a_power_of_two_from_bytes(num_bytes, shard_bytes, num_shards):
    made = plan_shards(job(shards={"shard_bytes": shard_bytes}), sources(num_bytes), EMPTY)
    assert made.paths == names("train", *range(num_shards))
    assert (made.num_validation, made.num_train) == (0, num_shards)


def test_bytes_of_all_sources_count():
    assert len(plan_shards(job(), sources(200 * MIB, 200 * MIB), EMPTY).paths) == 2


def test_a_number_that_is_given():
    assert len(plan_shards(job(shards={"num_shards": 4}), sources(99 * GIB), head(train=32)).paths) == 4


@pytest.mark.parametrize(
    ("before", "num_bytes", "after"),
    [
        (4, 10 * MIB, 4),  # it shrank
        (4, 4 * GIB, 4),  # it grew, up to the largest shard
        (4, 4 * GIB + 1, 32),  # and beyond
    ],
)
def test_a_rewrite_keeps_the_number(before, num_bytes, after):
    assert len(plan_shards(job(), sources(num_bytes), head(train=before)).paths) == after


def test_only_the_own_split_is_kept_and_only_in_a_rewrite():
    assert len(plan_shards(job(), sources(MIB), head(test=16)).paths) == 1
    assert len(plan_shards(job(output={"mode": "append"}), sources(MIB), head(train=16)).paths) == 1


@pytest.mark.parametrize(("num_train", "fraction", "num_validation"), [(1, 0.01, 1), (16, 0.25, 4), (16, 0.26, 8)])
def test_validation_shards_come_last(num_train, fraction, num_validation):
    made = plan_shards(
        job(shards={"num_shards": num_train, "validation_fraction": fraction, "seed": 3}), sources(1), EMPTY
    )
    assert made.paths == names("train", *range(num_train)) + names("validation", *range(num_validation))
    assert (made.num_train, made.num_validation) == (num_train, num_validation)
    assert (made.seed, made.validation_fraction) == (3, fraction)


def test_splits():
    assert splits_of(job()) == ["train"]
    assert splits_of(job(shards={"validation_fraction": 0.1}, output={"split": "test"})) == ["test", "validation"]


def test_append_goes_on_counting():
    """In each split on its own, past gaps, folders, files of other names and quarantine; not past another split's."""
    paths = [
        *names("train", 0, 6), "data/train/001/05000_002.parquet", "data/train/extra.parquet", "data/train/x/9.json",
        *names("train_more", 8), *names("validation", 2), "quarantine/validation/00005.parquet", "manifest/9.parquet",
    ]  # fmt: skip
    config = job(output={"mode": "append"}, shards={"num_shards": 2, "validation_fraction": 0.5})
    made = plan_shards(config, sources(1), written(paths, "train", "validation"))
    assert made.paths == (
        "data/train/001/05001.parquet",
        "data/train/001/05002.parquet",
        "data/validation/00006.parquet",
    )
    assert plan_shards(config, sources(1), EMPTY).paths == names("train", 0, 1) + names("validation", 0)


@pytest.mark.parametrize("mode", ["overwrite", "append"])
@pytest.mark.parametrize("path", ["data/train/x.parquet", "quarantine/train/x", "manifest/train.parquet"])
def test_files_that_are_not_ours_are_refused(mode, path):
    """Those of another split are not looked at."""
    config = job(output={"mode": mode})
    plan_shards(config, sources(1), written(["data/training/x.parquet", "data/train-0.parquet"]))
    with pytest.raises(OutputError, match=f"output.repo: user/packed has {path}, which no packing job made"):
        plan_shards(config, sources(1), written([path], "test"))
    assert plan_shards(config, sources(1), written([path], "train")).paths == names("train", 0)


@pytest.mark.parametrize("fraction", [4e-7, 1 - 4e-7])
def test_a_fraction_that_empties_a_split(fraction):
    with pytest.raises(ConfigError, match=r"shards.validation_fraction: .* is too near to 0 or 1"):
        plan_shards(job(shards={"validation_fraction": fraction}), sources(1), EMPTY)


def test_overwrite_starts_anew():
    assert plan_shards(job(), sources(1), written(names("train", 0, 1, 2), "train")).paths == names("train", 0)


def test_the_hubs_limit_on_files(monkeypatch):
    """Below 8 files: 4 that are there and 4 new ones are too many; 4 that replace 4 are not."""
    monkeypatch.setattr(plan, "MAX_FILES", 8)
    there = written(names("train", 0, 1, 2, 3), "train")
    four = {"num_shards": 4}
    assert len(plan_shards(job(shards=four), sources(1), there).paths) == 4
    with pytest.raises(OutputError) as refused:
        plan_shards(job(shards=four, output={"mode": "append"}), sources(1), there)
    assert str(refused.value) == (
        "shards.num_shards: 4 makes 4 files beside 4 in user/packed, and a repository holds fewer than 8; use fewer"
    )
    assert len(plan_shards(job(shards={"num_shards": 2}, output={"mode": "append"}), sources(1), there).paths) == 2


def test_names_of_too_many_files_are_not_made(monkeypatch):
    """2⁵⁰ bytes in shards of 2¹⁰ are 2⁴⁰ shards, whose names no memory holds; 2¹⁶ and half of it are the most."""
    monkeypatch.setattr(plan, "shard_path", lambda *args: pytest.fail("a name is made"))
    with pytest.raises(OutputError) as refused:
        plan_shards(job(shards={"shard_bytes": 1 << 10}), sources(1 << 50), EMPTY)
    assert str(refused.value) == (
        "shards.shard_bytes: 1024 makes 1099511627776 files beside 0 in user/packed, and a repository holds fewer than "
        "100000; use larger shards"
    )
    monkeypatch.undo()
    most = {"num_shards": 1 << 16, "validation_fraction": 0.5}
    assert len(plan_shards(job(shards=most), sources(1), EMPTY).paths) == 98_304
