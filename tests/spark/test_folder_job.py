"""The job from a folder to a folder: the Hub's bytes without the Hub."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import pack, report
from jobs.demo.start import DEMO
from jobs.output import sidecars
from jobs.output.folder import Folder
from jobs.sources.pinned import SourceError
from packing_udfs import config
from packing_udfs.reader import PackedDataset
from tests.spark.conftest import demo_tree, files_of


def folder_tree(output, source=DEMO / "source", **sections) -> dict:
    """The demo's configuration with its sources' folders in place of the Hub."""
    tree = demo_tree(str(output), **sections)
    for one in tree["sources"]:
        one["repo"], one["config"] = str(Path(source) / one["config"]), None
    return tree


def pack_folder(spark, output, **options) -> dict:
    return pack.run(config.parse(folder_tree(output, **options)), spark)


def sha256_of(folder) -> dict[str, str]:
    return {path: stored.sha256 for path, stored in Folder(str(folder)).tree().files.items()}


@pytest.fixture(scope="module")
def packed_folder(spark, tmp_path_factory) -> dict:
    """The demo's files by the paths that they have on the Hub, which packs name."""
    place = tmp_path_factory.mktemp("volume")
    for folder in (DEMO / "source").iterdir():
        if folder.is_dir():
            shutil.copytree(folder, place / folder.name / folder.name)
    return pack_folder(spark, place / "packed", source=place)


def test_the_data_is_the_hubs_byte_for_byte(packed, packed_folder, api):
    output = packed_folder["config"]["output"]["repo"]
    on_hub, here = files_of(api, "user/packed"), sha256_of(output)
    data = [path for path in on_hub if path.startswith("data/")]
    assert len(data) == 4
    assert {path: here[path] for path in here if path.startswith("data/")} == {path: on_hub[path] for path in data}
    assert set(here) == set(on_hub) - {".gitattributes"}
    assert packed_folder["quarantine"] == packed["quarantine"]
    assert packed_folder["splits"] == packed["splits"]
    assert [source["num_rows"] for source in packed_folder["sources"]] == [
        source["num_rows"] for source in packed["sources"]
    ]


def test_the_reader_reads_it(packed, packed_folder):
    output = packed_folder["config"]["output"]["repo"]
    ours = [batch["input_ids"] for batch in PackedDataset(output, global_batch_size=8, decode=None)]
    hubs = [batch["input_ids"] for batch in PackedDataset("user/packed", global_batch_size=8, decode=None)]
    assert len(ours) == len(hubs) > 0
    assert all((one == other).all() for one, other in zip(ours, hubs, strict=True))
    url = [batch["input_ids"] for batch in PackedDataset(f"file://{output}", global_batch_size=8, decode=None)]
    assert all((one == other).all() for one, other in zip(ours, url, strict=True))


def test_what_people_open_is_there_by_its_name(packed_folder, tmp_path):
    output = Path(packed_folder["config"]["output"]["repo"])
    published = json.loads((output / "report.json").read_text("utf-8"))
    assert published["run"] == packed_folder["run"]
    assert f'`PackedDataset("{output}")`' in (output / "README.md").read_text("utf-8")
    assert report.main([str(output), "--out", str(tmp_path / "page.html")]) == 0
    assert "<html" in (tmp_path / "page.html").read_text("utf-8")


def test_the_same_run_again_starts_no_spark(packed_folder, monkeypatch, tmp_path, capsys):
    output = packed_folder["config"]["output"]["repo"]
    before = {path: path.stat().st_mtime_ns for path in Path(output).rglob("*") if path.is_file()}
    monkeypatch.setattr(pack, "_pack", None)
    job = tmp_path / "job.json"
    job.write_text(json.dumps(folder_tree(output, source=Path(output).parent)))
    assert pack.main(["--config", str(job)]) == 0
    assert f"published    {output} at {packed_folder['commit'][:12]}\n" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in Path(output).rglob("*") if path.is_file()} == before


def test_a_second_revision_and_a_validation_split(spark, tmp_path):
    output = tmp_path / "packed"
    pack_folder(spark, output, shards={"num_shards": 2})
    old = PackedDataset(str(output), global_batch_size=4, decode=None)
    first = pack_folder(spark, output, shards={"num_shards": 2, "validation_fraction": 0.2, "seed": 3})
    assert {path.split("/")[1] for path in sha256_of(output) if path.startswith("data/")} == {"train", "validation"}
    assert (
        len(PackedDataset(str(output), "validation", global_batch_size=1))
        == (first["splits"]["validation"]["totals"]["num_packs"])
    )
    assert len(list(old)) == len(old)  # it goes on with what it found
    pack_folder(spark, output, shards={"num_shards": 2})
    assert not [path for path in sha256_of(output) if "validation" in path]


def test_append(spark, tmp_path):
    output = tmp_path / "packed"
    tree = folder_tree(output, quality={"max_quarantine_fraction": 0.2})
    one, two = tree["sources"]
    pack.run(config.parse(tree | {"sources": [one]}), spark)
    before = sha256_of(output)
    appended = config.parse(tree | {"sources": [two], "output": tree["output"] | {"mode": "append"}})
    pack.run(appended, spark)
    after = sha256_of(output)
    data = [path for path in before if path.startswith("data/")]
    assert {path: after[path] for path in data} == {path: before[path] for path in data}
    assert len([path for path in after if path.startswith("data/")]) == 2 * len(data)
    again = pack.run(appended, spark)
    assert sha256_of(output) == after
    assert again["commit"] == Folder(str(output)).tree().commit


def test_a_source_that_changes_meanwhile(spark, tmp_path, monkeypatch):
    import shutil

    copied = shutil.copytree(DEMO / "source", tmp_path / "source")
    monkeypatch.setattr(pack, "collect", _touching(pack.collect, next(copied.rglob("*.parquet"))))
    with pytest.raises(SourceError, match=r"changed while they were read.*; nothing was published"):
        pack_folder(spark, tmp_path / "packed", source=copied)
    assert Folder(str(tmp_path / "packed")).tree() is None
    assert not sidecars.names_in(Folder(str(tmp_path / "packed")).store.list())


def _touching(collect, file):
    def collect_and_touch(*args, **kwargs):
        found = collect(*args, **kwargs)
        os.utime(file, (0, 0))
        return found

    return collect_and_touch


@pytest.mark.slow
def test_without_a_hub_or_a_token(tmp_path):
    """A process that could not reach one: all of it is local."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps(folder_tree(tmp_path / "packed")))
    env = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hf")}
    del env["HF_TOKEN"]
    command = [sys.executable, "-m", "jobs.pack", "--config", str(job)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert f"published    {tmp_path / 'packed'} at " in done.stdout
