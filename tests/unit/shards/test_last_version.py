"""A last version that is damaged costs its packs their places, and never the run or a sample."""

import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfApi

from jobs.output.finished_shard import from_ipc
from jobs.output.folder import Folder
from jobs.output.interface import OutputError
from jobs.revision.append_rules import read_appended
from jobs.shards import settings as settings_module
from jobs.shards.last_version import find_last_version
from jobs.shards.ledger import check_packed
from jobs.shards.plan import plan_shards
from jobs.shards.udf import ShardWork, run_shard
from packing_udfs import config_file
from packing_udfs.encode.processor import fetch
from packing_udfs.storage.byte_source import AbsentError, FetchError, Source, Stop
from packing_udfs.storage.folder_state import PUBLISHED, Stored, Tree, stored_name
from packing_udfs.storage.hub import HubSource
from tests.unit.demo_samples import DEMO, as_spark_gives, demo_rows
from tests.unit.published_demo import CONF, publish_demo, shown

ROWS = demo_rows()[:60]
SMALL = ("shards.num_shards=1", "shards.num_packs_per_row_group=2")
FILE, INFO, ROW_GROUPS = "data/train/00000.parquet", "manifest/train.json", "manifest/train.parquet"


@pytest.fixture(scope="module")
def volume(tmp_path_factory) -> Path:
    """A folder that shows 60 of the demo's rows in one shard."""
    folder = tmp_path_factory.mktemp("reuse")
    publish_demo(folder / "plain", *SMALL, rows=ROWS)
    return Path(shown(folder / "plain", folder / "volume").folder)


@pytest.fixture
def folder(volume, tmp_path) -> Folder:
    shutil.copytree(volume, tmp_path / "volume")
    return Folder(str(tmp_path / "volume"))


def file_of(folder: Folder, path: str) -> Path:
    return Path(folder.folder, folder.tree().files[path].file)


def put(folder: Folder, path: str, data: bytes | None) -> None:
    """Make the folder show other bytes for a path, or none."""
    files = dict(folder.tree().files)
    del files[path]
    if data is not None:
        sha256 = hashlib.sha256(data).hexdigest()
        files[path] = Stored(stored_name(path, sha256), len(data), sha256)
        folder.store.put(files[path].file, data)
    folder.store.put(PUBLISHED, Tree(files).dump())


def edit(folder: Folder, **fields) -> None:
    """Change the manifest's info; None for a field that goes."""
    info = json.loads(file_of(folder, INFO).read_bytes()) | fields
    put(folder, INFO, json.dumps({name: value for name, value in info.items() if value != "gone"}).encode())


def edit_run(folder: Folder, change) -> None:
    run = json.loads(file_of(folder, INFO).read_bytes())["runs"][0]
    change(run)
    edit(folder, runs=[run])


def put_row_groups(folder: Folder, data: bytes) -> None:
    put(folder, ROW_GROUPS, data)
    edit(folder, row_groups_sha256=hashlib.sha256(data).hexdigest())


def edit_row_groups(folder: Folder, change) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(change(pq.read_table(file_of(folder, ROW_GROUPS))), sink)
    put_row_groups(folder, sink.getvalue().to_pybytes())


def with_values(name: str, values):
    """A change of a table: each value of a column, or a column of another type."""

    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        made = (
            values if isinstance(values, pa.DataType) else pa.array([values] * len(table), table.schema.field(at).type)
        )
        made = table[name].cast(made) if isinstance(values, pa.DataType) else made
        return table.set_column(at, name, made)

    return change


def rewrite(folder: Folder) -> tuple[list[str], dict]:
    """Pack the rows again on what the folder shows: why packs could not stay, and what became of them.

    The packs that are written hold what the ledger counts, whatever the last version is.
    """
    settings = config_file.load(CONF, [f"processor.path={DEMO / 'processor'}", *SMALL])
    head, processor = folder.read_head(), fetch(settings.processor.path)
    plan = plan_shards(settings, [], head)
    last, why = find_last_version(settings, plan, head, folder, processor)
    work = ShardWork(settings_module.settings(settings), processor, plan, lambda path, file: pq.read_table(file), last)
    (row,) = run_shard(0, as_spark_gives(ROWS), work)
    check_packed([row])
    found = Counter(i for of_pack in row.operation["sample_ids"].to_pylist() for i in of_pack)
    set_aside = Counter(from_ipc(row.quarantine)["sample_id"].to_pylist())
    assert found + set_aside == Counter(made["sample_id"] for made in ROWS)
    reused = json.loads(row.reuse)
    return [*why.values(), *([reused["why"]] if "why" in reused else [])], reused


def test_a_shard_lets_go_of_its_images_before_it_is_uploaded(folder):
    """What is left are the images of rows that are in no pack."""
    settings = config_file.load(CONF, [f"processor.path={DEMO / 'processor'}", *SMALL])
    plan, processor = plan_shards(settings, [], folder.read_head()), fetch(settings.processor.path)
    frame, left = as_spark_gives(ROWS), []

    def num_images() -> int:
        images = [image for of_row in frame["images"] if of_row is not None for image in of_row]
        return sum(image["bytes"] is not None for image in images)

    before = num_images()
    work = ShardWork(settings_module.settings(settings), processor, plan, lambda path, file: left.append(num_images()))
    (row,) = run_shard(0, frame, work)
    num_packed = sum(row.read_row_groups()["num_images"].to_pylist())
    assert num_packed > 30
    assert left == [before - num_packed]


def test_a_sound_one_is_reused(folder):
    why, reused = rewrite(folder)
    assert why == []
    assert reused["num_packs_kept"] > 3
    assert reused["num_packs_kept"] == sum(reused.values())


def shorten(folder: Folder, path: str, num: int) -> None:
    data = file_of(folder, path).read_bytes()
    file_of(folder, path).write_bytes(data[: len(data) - num] if num else b"")


DAMAGES = {
    "data deleted": (lambda f: file_of(f, FILE).unlink(), "FileNotFoundError"),
    "data truncated": (lambda f: shorten(f, FILE, 50), "bytes before the manifest says"),
    "data empty": (lambda f: shorten(f, FILE, 0), "bytes before the manifest says"),
    "data replaced": (lambda f: put(f, FILE, b"PAR1" + b"x" * 10**6 + b"PAR1"), "its footer cannot be read"),
    "no such row group": (lambda f: edit_row_groups(f, with_values("row_group", 99)), "has no row group 99"),
    "footer elsewhere": (lambda f: edit_row_groups(f, with_values("footer_offset", 10**9)), "its footer is not where"),
    "one cost a row group": (lambda f: edit_row_groups(f, with_values("vision_cost", [1])), "other numbers of packs"),
    "no cost": (lambda f: edit_row_groups(f, with_values("vision_cost", [])), "other numbers of packs"),
    "null cost": (lambda f: edit_row_groups(f, with_values("vision_cost", [None])), "has nulls in vision_cost"),
    "null costs": (lambda f: edit_row_groups(f, with_values("vision_cost", None)), "has nulls in vision_cost"),
    "null file": (lambda f: edit_row_groups(f, with_values("file", None)), "has nulls in file"),
    "no column": (lambda f: edit_row_groups(f, lambda t: t.drop_columns(["vision_cost"])), "has no column vision_cost"),
    "other type": (
        lambda f: edit_row_groups(
            f,
            lambda t: with_values("file", pa.string())(t).rename_columns(
                {"file": "vision_cost", "vision_cost": "file"}
            ),
        ),
        "has columns of other types",
    ),
    "row groups unnamed": (lambda f: put(f, ROW_GROUPS, None), "manifest/train.parquet is not there"),
    "row groups deleted": (lambda f: file_of(f, ROW_GROUPS).unlink(), "No such file or directory"),
    "row groups of other bytes": (lambda f: put(f, ROW_GROUPS, b"xx"), "the two are of different commits"),
    "row groups garbage": (lambda f: put_row_groups(f, b"xx"), "its Parquet file cannot be read"),
    "report unnamed": (lambda f: put(f, "report.json", None), "report.json is not there"),
    "report deleted": (lambda f: file_of(f, "report.json").unlink(), "No such file or directory"),
    "config gone": (
        lambda f: edit_run(f, lambda run: run.pop("config")),
        "manifest/train.json: runs.0.config: missing",
    ),
    "pack gone": (lambda f: edit_run(f, lambda run: run["config"].pop("pack")), "runs.0.config.pack: missing"),
    "pack null": (
        lambda f: edit_run(f, lambda run: run["config"].update(pack=None)),
        "runs.0.config.pack: Input should",
    ),
    "processor null": (lambda f: edit(f, processor=None), "processor: Input should be"),
    "processor gone": (lambda f: edit(f, processor="gone"), "processor: missing"),
    "num_shards gone": (lambda f: edit(f, num_shards="gone"), "num_shards: missing"),
    "num_shards text": (lambda f: edit(f, num_shards="1"), "num_shards: Input should be a valid integer, it is '1'"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_packed_afresh_and_says_why(folder, damage):
    make, message = DAMAGES[damage]
    make(folder)
    why, reused = rewrite(folder)
    assert len(why) == 1
    assert message in why[0]
    assert "num_packs_kept" not in reused


def test_one_that_is_out_of_reach_is_an_error(folder, monkeypatch):
    """Another try may reach it, and then uploads little."""

    def refuse(self, path, offset, view):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Source, "_receive", refuse)
    with pytest.raises(FetchError, match="Permission denied"):
        rewrite(folder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: put(f, ROW_GROUPS, None), "manifest/train.parquet is not there; repair it or overwrite"),
        (lambda f: file_of(f, ROW_GROUPS).unlink(), "No such file or directory"),
        (lambda f: put_row_groups(f, b"xx"), "its Parquet file cannot be read"),
        (DAMAGES["no column"][0], "it has no vision_cost; .*repair it or overwrite"),
        (lambda f: edit(f, sums="gone"), "manifest/train.json: sums: missing; .*repair it or overwrite"),
        (lambda f: edit(f, seq_len="gone"), "its seq_len is None"),
        (lambda f: edit(f, processor=None), "manifest/train.json: processor: Input should be"),
        (
            lambda f: edit_run(f, lambda run: run.pop("config")),
            "cannot append to train: manifest/train.json: runs.0.config: missing",
        ),
    ],
)
def test_an_append_to_a_damaged_one_is_refused(folder, make, message):
    settings = config_file.load(CONF, [f"processor.path={DEMO / 'processor'}", *SMALL, "output.mode=append"])
    processor = fetch(settings.processor.path)
    assert read_appended(settings, folder.read_head(), folder, processor, "tiles").keys() == {"train"}
    make(folder)
    with pytest.raises(OutputError, match=message):
        read_appended(settings, folder.read_head(), folder, processor, "tiles")


def test_on_the_hub_too_what_is_not_there_is_told_from_what_is_out_of_reach(session_hub):
    api = HfApi()
    api.create_repo("user/reuse-absent", repo_type="dataset")
    made = api.upload_file(
        path_or_fileobj=b"0123456789", path_in_repo=FILE, repo_id="user/reuse-absent", repo_type="dataset"
    )
    source = HubSource("user/reuse-absent", made.oid, 1.0)
    assert bytes(source.read(FILE, 2, 3, Stop())) == b"234"
    for path, offset in ((FILE, 10**6), ("data/train/00001.parquet", 0)):
        with pytest.raises(AbsentError):
            HubSource("user/reuse-absent", made.oid, 1.0).read(path, offset, 10, Stop())
    session_hub.inject(route="resolve", status=403)
    with pytest.raises(FetchError, match="403") as caught:
        HubSource("user/reuse-absent", made.oid, 1.0).read(FILE, 2, 3, Stop())
    assert not isinstance(caught.value, AbsentError)
