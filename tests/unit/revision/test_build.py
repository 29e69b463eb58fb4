"""What a run may replace of what is there, and manifests that cannot be gone on from."""

import pytest

from jobs.output.interface import Head, OutputError
from jobs.revision.append_rules import is_appended, replaced_splits
from packing_udfs import config


def job(split: str = "train", mode: str = "overwrite", fraction: float = 0.0) -> config.Config:
    return config.parse(
        {
            "sources": [{"repo": "user/source", "name": "made"}],
            "processor": {"path": "user/processor"},
            "pack": {"seq_len": 4096},
            "shards": {"validation_fraction": fraction},
            "output": {"repo": "user/out", "split": split, "mode": mode},
        }
    )


def head(**runs: str) -> Head:
    """Splits of these runs, a letter each: head(train="A", validation="AB")."""
    infos = {split: {"runs": [{"run": name} for name in names]} for split, names in runs.items()}
    paths = [f"{folder}/{split}/0.parquet" for folder in ("data", "quarantine") for split in runs]
    return Head("c" * 40, tuple(sorted(paths)), "", tuple(infos.items()))


@pytest.mark.parametrize(
    ("there", "settings", "replaced"),
    [
        (head(), {}, ["train"]),
        (head(train="A", two="B"), {}, ["train"]),
        (head(train="A", validation="A"), {"fraction": 0.2}, ["train", "validation"]),
        (head(train="A", validation="A"), {}, ["train", "validation"]),
        (head(train="A", validation="A"), {"split": "b"}, ["b"]),
        (head(train="A", validation="B"), {}, ["train"]),
        (head(train="A", validation="B"), {"fraction": 0.2}, ["train", "validation"]),
        (head(train="AB", validation="AB", two="C"), {"fraction": 0.2}, ["train", "validation"]),
        (head(train="A", validation="A"), {"split": "b", "mode": "append", "fraction": 0.2}, []),
    ],
)
def test_a_split_is_replaced_and_nothing_else(there, settings, replaced):
    assert replaced_splits(job(**settings), there) == replaced


@pytest.mark.parametrize(
    ("there", "settings", "message"),
    [
        (
            head(train="A", validation="A"),
            {"split": "b", "fraction": 0.2},
            "output.split: b with shards.validation_fraction=0.2 would replace the split validation, which one run "
            "packed together with train: samples of train would be gone; use shards.validation_fraction=0 or another",
        ),
        (
            head(train="A", validation="AB", b="B"),
            {"fraction": 0.2},
            "output.split: train with shards.validation_fraction=0.2 would replace the split validation, which one run "
            "packed together with b: samples of b would be gone; use another output.repo",
        ),
        (head(train="A", validation="AB", b="B"), {}, "would replace the split validation, .* with b: samples of b"),
        (head(train="A", validation="A"), {"split": "validation"}, "would replace the split validation, .* with train"),
    ],
)
def test_samples_of_another_split_are_never_replaced(there, settings, message):
    with pytest.raises(OutputError, match=message):
        replaced_splits(job(**settings), there)


def test_an_append_is_known_by_the_last_run_of_each_of_its_splits():
    append = {"mode": "append", "fraction": 0.2}
    assert is_appended(job(**append), head(train="BA", validation="A"), "A")
    assert not is_appended(job(**append), head(train="A"), "A")
    assert not is_appended(job(**append), head(train="AB", validation="B"), "A")
    with pytest.raises(OutputError, match=r"this very run \(A\) was appended to train before, and others behind it"):
        is_appended(job(**append), head(train="AB", validation="AB"), "A")
    assert not is_appended(job(fraction=0.2), head(train="A", validation="A"), "A")


@pytest.mark.parametrize("runs", [[], None, {}, "A", 3, [None], [{}], [{"run": None}], [{"run": "A"}, {"config": {}}]])
@pytest.mark.parametrize("settings", [{}, {"mode": "append"}])
def test_runs_that_are_none_are_an_error_that_names_them(runs, settings):
    there = Head("c" * 40, (), "", (("train", {"runs": runs}),))
    with pytest.raises(OutputError, match=r"output.repo: manifest/train.json has runs=.* must be a list of runs"):
        replaced_splits(job(**settings), there) or is_appended(job(**settings), there, "A")


@pytest.mark.parametrize("ids", [None, "x", {}, 3, [None], ["7"], [1.5], [True]])
def test_a_list_of_ids_taken_down_is_never_lost(ids):
    there = Head("c" * 40, (), "", (("train", {"taken_down": [7]}), ("two", {"taken_down": ids})))
    with pytest.raises(OutputError, match=r"output.repo: manifest/two.json has taken_down=.*restore the file"):
        assert there.taken_down


def test_ids_taken_down_are_those_of_all_splits():
    there = Head("c" * 40, (), "", (("train", {"taken_down": [7, -1]}), ("two", {"taken_down": [7, 3]}), ("b", {})))
    assert there.taken_down == [-1, 3, 7]
