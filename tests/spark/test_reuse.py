"""A split that is packed again keeps its packs where they are, and uploads little; what is taken down stays away."""

import hashlib
from collections import Counter

import pytest

from jobs import pack, takedown
from jobs.output.interface import OutputError
from jobs.published.dataset import open_packed
from packing_udfs import config
from tests.spark.conftest import DEMO
from tests.spark.made_sources import VQA, parquet, picture, upload
from tests.spark.test_kills import killed, start_job, wait_for

PROCESSOR = ("--processor", str(DEMO / "processor"))

NUM = 96


def rows(numbers, edited=()) -> list[dict]:
    """77 kB an image; an edited row has another answer, of as many tokens."""
    return [
        {
            "image": {"bytes": picture(i, 160, "PNG"), "path": f"{i}.png"},
            "question": "what?",
            "answer": f"{'no' if i in edited else 'yes'} {i}",
        }
        for i in numbers
    ]


def write_source(api, files: dict[str, list[dict]]) -> None:
    """The source's files become these."""
    there = [
        path for path in api.list_repo_files("user/reused-source", repo_type="dataset") if path.startswith("data/")
    ]
    for path in set(there) - set(files):
        api.delete_file(path, "user/reused-source", repo_type="dataset")
    for path, made in files.items():
        api.upload_file(
            path_or_fileobj=parquet(made, VQA), path_in_repo=path, repo_id="user/reused-source", repo_type="dataset"
        )


def tree(repo: str, **sections) -> dict:
    made = {
        "sources": [{"repo": "user/reused-source", "name": "made"}],
        "processor": {"path": str(DEMO / "processor")},
        "pack": {"seq_len": 8192},
        "shards": {"num_shards": 2, "num_packs_per_row_group": 4},
        "output": {"repo": repo},
    }
    return {name: value | sections.get(name, {}) if name != "sources" else value for name, value in made.items()}


@pytest.fixture(scope="module")
def run(spark, api):
    upload("user/reused-source", {"data/train/0.parquet": parquet(rows(range(NUM)), VQA)})

    def run(repo: str, files: dict[str, list[dict]] | None = None, **sections) -> dict:
        write_source(api, {"data/train/0.parquet": rows(range(NUM))} if files is None else files)
        return pack.run(config.parse(tree(repo, **sections)), spark)

    return run


def packs(repo: str) -> list[dict]:
    packed = open_packed(repo)
    places = packed.manifest("train").row_groups.to_pylist()
    return [pack for row in places for pack in packed.row_group(row["file"], row["row_group"]).to_pylist()]


def samples(repo: str) -> Counter:
    """(id, tokens, image) of every sample."""
    found = Counter()
    for row in packs(repo):
        at = 0
        for sample_id, length, image in zip(row["sample_ids"], row["sample_lengths"], row["images"], strict=True):
            digest = hashlib.sha256(image["bytes"]).hexdigest()
            found[sample_id, tuple(row["input_ids"][at : at + length]), digest] += 1
            at += length
    return found


def test_edits_removals_and_additions_upload_themselves_and_little_more(run, api):
    first = run("user/reused")
    num_packs = first["splits"]["train"]["totals"]["num_packs"]
    before = {tuple(row["sample_ids"]) for row in packs("user/reused")}
    changed = [*rows(range(4, 50), edited=(7, 20)), *rows(range(200, 203))]
    files = {"data/train/b.parquet": changed, "data/train/a.parquet": rows(range(50, NUM))}  # in another order, too
    again = run("user/reused", files)
    reuse = again["reuse"]
    assert reuse["why_afresh"] == {}
    assert reuse["num_packs_kept"] + reuse["num_packs_moved"] >= num_packs - 4 - 2 - 2
    after = {tuple(row["sample_ids"]) for row in packs("user/reused")}
    assert len(before & after) == reuse["num_packs_kept"] + reuse["num_packs_moved"]
    assert again["transfer"]["share_deduplicated"] >= 0.5
    run("user/reused-scratch", files)
    assert samples("user/reused") == samples("user/reused-scratch")
    stepwise = run("user/reused-scratch")  # back to the first sources, by another way
    assert stepwise["reuse"]["why_afresh"] == {}
    run("user/reused-first")
    assert samples("user/reused-scratch") == samples("user/reused-first")


def test_other_settings_and_off_pack_afresh_and_say_why(run):
    run("user/reused-afresh")
    other = run("user/reused-afresh", pack={"seq_len": 4096})
    assert other["reuse"] == {"why_afresh": {"train": "pack.seq_len was 8192, not 4096"}}
    off = run("user/reused-afresh", pack={"seq_len": 4096}, output={"repo": "user/reused-afresh", "reuse": "off"})
    assert off["reuse"] == {"why_afresh": {"train": "output.reuse is off"}}


def test_an_append_of_another_validation_split_is_refused(run):
    shards = {"num_shards": 2, "num_packs_per_row_group": 4, "validation_fraction": 0.2}
    run("user/reused-split", shards=shards)
    append = {"repo": "user/reused-split", "mode": "append"}
    with pytest.raises(OutputError, match=r"shards.validation_fraction: 0.0 cannot be appended to train"):
        run("user/reused-split", output=append)
    with pytest.raises(OutputError, match=r"shards.seed: 5 cannot be appended to train, which was packed with 0"):
        run("user/reused-split", shards=shards | {"seed": 5}, output=append)


def test_what_is_taken_down_is_gone_and_stays_gone(run, api, capsys):
    run("user/reused-taken")
    before = samples("user/reused-taken")
    some = sorted(before)[:3]
    ids = ",".join(str(sample[0]) for sample in some)
    assert takedown.main(["--repo", "user/reused-taken", *PROCESSOR, f"--ids={ids}"]) == 0
    out = capsys.readouterr().out
    assert "3 samples with 3 images" in out
    assert f"none of {NUM - 3} images" in out
    assert "super_squash_history('user/reused-taken', repo_type='dataset')" in out
    assert samples("user/reused-taken") == before - Counter(some)
    packed = open_packed("user/reused-taken")
    info = packed.manifest("train").info
    assert info["taken_down"] == sorted(sample[0] for sample in some)
    assert info["totals"]["num_samples"] == info["sums"]["num_samples"] == NUM - 3
    told = packed.report()
    assert told["sources"][0]["num_packed"] == NUM - 3
    assert told["sources"][0]["num_taken_down"] == 3
    again = run("user/reused-taken")  # the sources have them still
    assert again["quarantine"] == {"taken_down": 3}
    assert samples("user/reused-taken") == before - Counter(some)
    assert open_packed("user/reused-taken").manifest("train").info["taken_down"] == info["taken_down"]


def test_a_takedown_of_nothing_and_of_a_shared_image_is_refused(run, capsys):
    both = [*rows(range(20)), rows([3], edited=[3])[0]]
    run("user/reused-shared", {"data/train/0.parquet": both})
    assert takedown.main(["--repo", "user/reused-shared", *PROCESSOR, "--ids=12345"]) == 1
    assert "none of its samples is one of those" in capsys.readouterr().err
    shared = [sample for sample in samples("user/reused-shared") if sample[2] == digest_of(3)]
    assert len(shared) == 2
    assert takedown.main(["--repo", "user/reused-shared", *PROCESSOR, f"--ids={shared[0][0]}"]) == 1
    assert f"nothing was published: name them too, with --ids {shared[1][0]} beside" in capsys.readouterr().err
    assert takedown.main(["--repo", "user/reused-shared", *PROCESSOR, f"--ids={shared[0][0]},{shared[1][0]}"]) == 0
    assert len(samples("user/reused-shared")) == 19


def digest_of(number: int) -> str:
    return hashlib.sha256(picture(number, 160, "PNG")).hexdigest()


@pytest.mark.slow
def test_a_rewrite_that_is_killed_leaves_the_old_version(run, session_hub, api, tmp_path):
    before = run("user/reused-killed")["commit"]
    write_source(api, {"data/train/0.parquet": rows(range(4, NUM), edited=(9,))})
    session_hub.requests.clear()
    session_hub.inject(route="commit", delay=5.0, times=None)
    process = start_job(tmp_path, tree("user/reused-killed"))
    with killed(process, session_hub):
        wait_for(session_hub, "put_shard", process)
    assert api.dataset_info("user/reused-killed").sha == before
    assert sum(samples("user/reused-killed").values()) == NUM
