"""Files of a folder as an output: what is there is looked at, and only what runs wrote is removed."""

import hashlib
from dataclasses import replace

import fsspec
import pytest

from jobs.output.folder import Folder
from jobs.output.folder_files import Store
from jobs.output.interface import PublishError
from packing_udfs.storage.folder_state import is_stored, stored_name
from tests.unit.folder_runs import REPORT, RUN, publish, run_of, shard_rows, shown, small_files


def test_a_file_that_the_driver_does_not_see(folder, tmp_path):
    """As when each machine has a folder of that name."""
    draft = folder.draft(folder.create(False), RUN)
    draft.add(shard_rows(folder, tmp_path, 0, b"zero"))
    folder.store.remove([name for name in folder.store.list() if name.startswith("data/")])
    with pytest.raises(
        PublishError, match=r"data/train/00000-\w+\.parquet has None bytes where the driver looks, 4 were"
    ):
        draft.publish(small_files("first"), [])
    assert folder.read_head().commit is None


def test_somebody_elses_files_stay_and_are_seen(folder, tmp_path):
    folder.store.put("data/train/theirs.parquet", b"1")
    folder.store.put("notes.txt", b"2")
    assert folder.read_head().files_of("train") == ["data/train/theirs.parquet"]  # which the plan refuses
    publish(folder, tmp_path, "first", {0: b"zero"})
    publish(folder, tmp_path, "second", {0: b"one"}, delete=list(shown(folder)))
    assert {"data/train/theirs.parquet", "notes.txt"} <= set(folder.store.list())


@pytest.mark.parametrize("again", ["first", "another"])
def test_a_damaged_file_is_written_again(folder, tmp_path, again):
    """Of the same size, so that only its content tells; by the same run and by one that makes the same shards."""
    publish(folder, tmp_path, "first", {0: b"zero", 1: b"one"})
    whole = folder.store.list()
    for name in (name for name in whole if is_stored(name)):
        folder.store.put(name, bytes(whole[name]))
    is_disk = not folder.folder.startswith("memory:")
    if is_disk or again != "first":  # an object store is believed until something is written
        publish(folder, tmp_path, again, {0: b"zero", 1: b"one"})
        seen = {"data/train/00000.parquet": b"zero", "data/train/00001.parquet": b"one", **small_files(again)}
        assert shown(folder) == seen


def test_a_damaged_file_of_an_earlier_attempt_is_packed_again(tmp_path):
    folder = Folder(str(tmp_path / "packed"))
    draft = folder.draft(folder.create(False), RUN)
    for shard, data in enumerate((b"zero", b"one")):
        draft.add(shard_rows(folder, tmp_path, shard, data))
    broken = next(name for name in folder.store.list() if name.startswith("data/train/00001"))
    folder.store.put(broken, b"onE")
    assert [row.shard for row in folder.draft(folder.create(False), RUN).kept] == [0]


def test_what_is_there_is_not_written_again(tmp_path, monkeypatch):
    folder = Folder(str(tmp_path / "packed"))
    publish(folder, tmp_path, "first", {0: b"zero"})
    copied = []
    monkeypatch.setattr(folder.store, "copy", lambda file, name: copied.append(name))
    file = tmp_path / "shard.parquet"
    for data in (b"zero", b"one"):
        file.write_bytes(data)
        folder.upload("data/train/00000.parquet", file)
    assert copied == [stored_name("data/train/00000.parquet", hashlib.sha256(b"one").hexdigest())]


@pytest.mark.parametrize(
    ("info", "holds"),
    [
        ({"ETag": '"f97c5d29941bfb1b2fdab0874906ab82"'}, True),  # S3, a plain PUT; MD5 of b"one", as md5sum has it
        ({"ETag": '"f97c5d29941bfb1b2fdab0874906ab82-2"'}, False),  # in parts: no MD5 of the content
        ({"ETag": '"06c219e5bc8378f3a8a3f83b4b7e4649"'}, False),
        ({"md5Hash": "+XxdKZQb+xsv2rCHSQargg==", "etag": "CJjX"}, True),  # Google's
        ({"md5Hash": "BsIZ5byDePOoo/g7S35GSQ==", "etag": "CJjX"}, False),
        ({}, False),
    ],
)
def test_an_object_store_is_asked_for_its_checksum(info, holds, monkeypatch):
    fs = fsspec.filesystem("memory")
    store = Store(fs, "/a")
    monkeypatch.setattr(type(fs), "info", lambda self, path: {"size": 3, "type": "file", **info})
    monkeypatch.setattr(type(fs), "cat_file", None)  # nothing is read
    assert store.holds("x", 3, lambda name: hashlib.new(name, b"one").hexdigest()) is holds
    assert not store.holds("x", 4, lambda name: hashlib.new(name, b"one").hexdigest())


def test_a_lost_published_json_takes_nothing_with_it(folder, tmp_path):
    publish(folder, tmp_path, "first", {0: b"zero", 1: b"one"})
    folder.store.remove(["published.json"])
    lost = folder.store.list()
    draft = folder.draft(folder.create(False), run_of("second"))
    file = tmp_path / "shard.parquet"
    file.write_bytes(b"two")
    (row,) = shard_rows(folder, tmp_path, 0, b"two")
    path = "data/two/00000.parquet"
    draft.add([replace(row, path=path, operation=folder.upload(path, file))])
    draft.publish({"report.json": REPORT, "README.md": b"second"}, [])
    assert set(lost) <= set(folder.store.list())


def test_files_of_such_names_that_no_run_wrote_stay(folder, tmp_path):
    theirs = [f"data/train/x-{'0' * 16}.parquet", f"README-{'1' * 16}.md", f"report/p-{'2' * 16}.svg"]
    for name in theirs:
        folder.store.put(name, b"theirs")
    for name in ("first", "second", "third"):
        publish(folder, tmp_path, name, {0: name.encode()}, delete=list(shown(folder)))
    assert set(theirs) <= set(folder.store.list())


@pytest.mark.parametrize("keeps_before", [True, False])
def test_what_a_killed_run_left_goes(folder, tmp_path, keeps_before):
    """With the state after the next, since a run that is not killed may be about to name it; at once for a takedown."""
    publish(folder, tmp_path, "first", {0: b"zero"})
    killed = shard_rows(folder, tmp_path, 1, b"killed")[0].operation.file
    again = Folder(folder.folder, keeps_before)
    publish(again, tmp_path, "second", {0: b"second"}, delete=list(shown(folder)))
    assert (killed in again.store.list()) is keeps_before
    publish(again, tmp_path, "third", {0: b"third"}, delete=list(shown(folder)))
    names = set(again.store.list())
    assert killed not in names
    assert not [name for name in names if name.startswith(".packing/")]
    of = {"zero": False, "second": keeps_before, "third": True}
    stored = {stored_name("data/train/00000.parquet", hashlib.sha256(d.encode()).hexdigest()): v for d, v in of.items()}
    assert {name: name in names for name in stored} == stored


def test_what_goes_goes_later_when_the_run_is_killed_before(folder, tmp_path, monkeypatch):
    publish(folder, tmp_path, "first", {0: b"zero"})
    takedown = Folder(folder.folder, keeps_before=False)
    with monkeypatch.context() as patch:
        patch.setattr("jobs.output.folder.FolderDraft._tidy", lambda self, tree, top: None)
        publish(takedown, tmp_path, "second", {0: b"second"}, delete=list(shown(folder)))
    zero = stored_name("data/train/00000.parquet", hashlib.sha256(b"zero").hexdigest())
    assert zero in folder.store.list()
    publish(folder, tmp_path, "third", {0: b"third"}, delete=list(shown(folder)))
    assert zero not in folder.store.list()
    assert folder.tree().gone  # and what is not there any more is not named again
    publish(folder, tmp_path, "fourth", {0: b"fourth"}, delete=list(shown(folder)))
    assert zero not in folder.tree().gone
