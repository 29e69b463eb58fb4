"""A folder as an output: one file makes a run visible, and wherever a run is killed the folder shows what it did."""

import hashlib
import json
import pickle
import shutil
from pathlib import Path, PurePosixPath

import pytest

from jobs.output.finished_shard import ShardFile
from jobs.output.folder import Folder
from jobs.output.interface import Head, MovedError, OutputError, PublishError, Run
from packing_udfs.storage import byte_source, folder_state, hub
from packing_udfs.storage.folder_state import FolderError, Stored, Tree, is_stored, stored_name
from tests.unit.folder_runs import RUN, publish, run_of, shard_rows, shown, small_files


def test_names():
    sha256 = hashlib.sha256(b"x").hexdigest()
    assert stored_name("data/train/00000.parquet", sha256) == f"data/train/00000-{sha256[:16]}.parquet"
    assert is_stored(f"data/train/00000-{sha256[:16]}.parquet")
    assert not any(map(is_stored, ("data/train/00000.parquet", "README.md", "a-0123456789abcde.txt", "published.json")))


def test_a_tree_is_read_as_it_was_written():
    tree = Tree({"a/b.json": Stored("a/b-0.json", 3, "0" * 64)}, "run", "shards", ("x", "y"))
    assert folder_state.load(tree.dump()) == tree
    assert json.loads(tree.dump())["commit"] == tree.commit
    other = Tree({"a/b.json": Stored("a/b-0.json", 3, "1" * 64)}, "run", "shards")
    assert other.commit != tree.commit
    for broken in (
        b"",
        b"[]",
        b"{}",
        tree.dump().replace(b"0" * 64, b"1" * 64),
        tree.dump().replace(b"num_bytes", b"n"),
    ):
        with pytest.raises(FolderError, match=r"published\.json"):
            folder_state.load(broken)


def test_nothing_is_shown_before_the_end(folder, tmp_path):
    assert folder.read_head().paths == ()
    head = folder.create(False)
    assert (head.commit, head.paths) == (None, ())
    draft = folder.draft(head, RUN)
    draft.add(shard_rows(folder, tmp_path, 0, b"zero"))
    draft.add(shard_rows(folder, tmp_path, 1, b"one"))
    assert folder.read_head().commit is None
    commit = draft.publish(small_files("first"), [])
    assert shown(folder) == {
        "data/train/00000.parquet": b"zero", "data/train/00001.parquet": b"one", **small_files("first")
    }  # fmt: skip
    head = folder.read_head()
    assert (head.commit, head.readme, head.paths) == (commit, "first", tuple(sorted(shown(folder))))
    assert dict(head.manifests)["train"]["note"] == "first"
    assert folder.read_manifest(commit, "train").info["note"] == "first"
    assert folder.read_report(commit) == {"n": 1}
    names = folder.store.list()
    assert {name for name in names if not is_stored(name)} == {"published.json", "README.md", "report.json"}
    assert len(names) == 6 + 3  # and no sidecar, no probe


def test_a_run_goes_on_from_the_shards_that_are_there(folder, tmp_path):
    head = folder.create(False)
    first = folder.draft(head, RUN)
    first.add(shard_rows(folder, tmp_path, 0, b"zero"))
    first.add(shard_rows(folder, tmp_path, 1, b"one"))
    broken = next(name for name in folder.store.list() if name.startswith("data/train/00001"))
    folder.store.put(broken, b"on")
    again = folder.draft(folder.create(False), RUN)
    assert [row.shard for row in again.kept] == [0]  # the other's file is not whole
    assert again.kept[0].operation is None
    assert folder.draft(head, run_of("another")).kept == []
    assert folder.draft(Head("another"), RUN).kept == []
    again.add(shard_rows(folder, tmp_path, 1, b"one"))
    again.publish(small_files("first"), [])
    assert shown(folder)["data/train/00000.parquet"] == b"zero"
    assert shown(folder)["data/train/00001.parquet"] == b"one"


def test_shards_of_a_sidecar_that_cannot_be_read_are_packed_again(folder, tmp_path, caplog):
    draft = folder.draft(folder.create(False), RUN)
    for shard in (0, 1):
        draft.add(shard_rows(folder, tmp_path, shard, b"PAR1 of %d" % shard))
    (name,) = [name for name in folder.store.list() if name.startswith(".packing/") and "/000000." in name]
    folder.store.put(name, b"garbage")
    again = folder.draft(folder.create(False), RUN)
    assert [row.shard for row in again.kept] == [1]
    assert f"{name} cannot be read, its shards are packed again" in caplog.text


def test_the_same_run_again_has_nothing_to_do(folder, tmp_path):
    draft = folder.draft(folder.create(False), RUN)
    draft.add(shard_rows(folder, tmp_path, 0, b"zero"))
    commit = draft.publish(small_files("first"), [])
    assert folder.draft(folder.create(False), RUN).published == commit
    other_versions = Run(run=RUN.run, shards="c" * 64, num_shards=2)
    assert folder.draft(folder.create(False), other_versions).published is None
    lost = next(name for name in folder.store.list() if name.startswith("data/"))
    folder.store.remove([lost])
    assert folder.draft(folder.create(False), RUN).published is None  # it is packed again


def test_a_reader_keeps_what_it_found_while_the_folder_is_packed_again(folder, tmp_path):
    publish(folder, tmp_path, "first", {0: b"zero", 1: b"one"})
    before = folder.store.list()
    reader = hub.open_source(folder.folder, retry_seconds=0)
    assert reader.read_file("data/train/00000.parquet") == b"zero"
    publish(folder, tmp_path, "second", {0: b"ZERO", 1: b"one"}, delete=list(shown(folder)))
    assert reader.read_file("data/train/00000.parquet") == b"zero"
    assert pickle.loads(pickle.dumps(reader)).read_file("README.md") == b"first"
    assert bytes(reader.read("data/train/00000.parquet", 1, 3, byte_source.Stop())) == b"ero"
    assert shown(folder)["data/train/00000.parquet"] == b"ZERO"
    assert set(before) - {"README.md", "report.json", "published.json"} <= set(folder.store.list())
    publish(folder, tmp_path, "third", {0: b"ZERO"}, delete=list(shown(folder)))
    assert set(shown(folder)) == {"data/train/00000.parquet", *small_files("")}
    names = {name for name in folder.store.list() if name.startswith("data/")}
    kept = {"data/train/00000.parquet": b"ZERO", "data/train/00001.parquet": b"one"}
    of_two = {stored_name(path, hashlib.sha256(data).hexdigest()) for path, data in kept.items()}
    assert names == of_two  # the third's and the second's; the first's are gone
    with pytest.raises(byte_source.FetchError, match=r"data/train/00000\.parquet"):
        reader.read("data/train/00000.parquet", 0, 4, byte_source.Stop())


def test_what_workers_read_is_of_one_commit(folder, tmp_path):
    first = publish(folder, tmp_path, "first", {0: b"zero"})
    source = folder.source(first)
    publish(folder, tmp_path, "second", {0: b"ZERO"}, delete=list(shown(folder)))
    assert pickle.loads(pickle.dumps(source)).read_file("data/train/00000.parquet") == b"zero"
    with pytest.raises(MovedError):
        folder.source(first)
    assert folder.remind("data/train/00000.parquet", b"ze") is None


def test_what_is_not_deleted_stays(folder, tmp_path):
    publish(folder, tmp_path, "first", {0: b"zero"})
    draft = folder.draft(folder.create(False), run_of("second"))
    draft.add(shard_rows(folder, tmp_path, 1, b"one"))
    draft.publish(small_files("second"), [])
    assert shown(folder)["data/train/00000.parquet"] == b"zero"


def test_killed_anywhere_the_folder_shows_the_old_or_the_new(folder, tmp_path, monkeypatch):
    """After every single write of a run, killed there and started again."""
    old, new = {0: b"zero", 1: b"one"}, {0: b"ZERO", 1: b"ONE"}
    seen = []
    for num_writes in range(40):
        here = Folder(f"{folder.folder}-{num_writes}")
        publish(here, tmp_path, "old", old)
        before = shown(here)
        with monkeypatch.context() as patch:
            left = _die_after(here.store, num_writes, patch)
            try:
                pack_again(here, tmp_path, new, before)
            except KeyboardInterrupt:
                seen.append("old" if shown(here) == before else "new")
                patch.undo()
                pack_again(here, tmp_path, new, before)
        assert shown(here) == {f"data/train/{i:05d}.parquet": data for i, data in new.items()} | small_files("new")
        if left:
            break
    assert num_writes > 10
    assert seen == ["old"] * seen.count("old") + ["new"] * 2  # it is the third write from the end that counts


def _die_after(store, num_writes: int, patch) -> list:
    """Let the store fail at a write after so many; the list holds one item for each write that was left."""
    left = [None] * num_writes

    def dies(write):
        def counted(*args):
            if not left:
                raise KeyboardInterrupt
            left.pop()
            return write(*args)

        return counted

    for name in ("put", "copy"):
        patch.setattr(store, name, dies(getattr(store, name)))
    return left


def pack_again(folder: Folder, tmp_path, shards: dict[int, bytes], before: dict[str, bytes]) -> None:
    draft = folder.draft(folder.create(False), run_of("new"))
    if draft.published:
        return
    kept = {row.shard for row in draft.kept}
    for shard, data in shards.items():
        if shard not in kept:
            file = tmp_path / "shard.parquet"
            file.write_bytes(data)
            path = f"data/train/{shard:05d}.parquet"
            operation = folder.upload(path, file)
            draft.add([ShardFile(shard=shard, path=path, num_bytes=len(data), operation=operation)])
    draft.publish(small_files("new"), list(before))


def test_a_readme_that_somebody_wrote_is_merged_and_not_lost(folder, tmp_path):
    folder.store.put("README.md", b"theirs")
    assert folder.read_head().readme == "theirs"
    publish(folder, tmp_path, "first", {0: b"zero"})
    assert folder.read_head().readme == "first"
    folder.store.put("README.md", b"first, and a word of mine")
    assert folder.read_head().readme == "first, and a word of mine"
    folder.store.put("README.md", b"\xff")
    with pytest.raises(OutputError, match=r"README\.md in \S+ is not UTF-8, repair it"):
        folder.read_head()


def test_given_up(folder, tmp_path):
    draft = folder.draft(folder.create(False), RUN)
    draft.add(shard_rows(folder, tmp_path, 0, b"zero"))
    draft.close("a source changed")
    assert folder.draft(folder.create(False), RUN).kept == []


def test_folders_that_cannot_be_written_to(tmp_path):
    with pytest.raises(OutputError, match=r"output\.repo: nosuch://b/x.*nosuch"):
        Folder("nosuch://b/x").check_token()
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(
        OutputError, match=r"output\.repo: \S+/file/packed cannot be written to: .*Not a directory|File exists"
    ):
        Folder(str(tmp_path / "file" / "packed")).create(False)
    with pytest.raises(OutputError, match=r"output\.repo: \S+/file is a file; name a folder"):
        Folder(str(tmp_path / "file")).check_token()
    (tmp_path / "published.json").write_text("{}")
    with pytest.raises(OutputError, match=r"output\.repo: \S+ cannot be read: published\.json is not as a packing job"):
        Folder(str(tmp_path)).read_head()


def test_a_half_copied_file_is_no_file(tmp_path):
    """What is killed while it copies leaves a hidden half, which the next run removes."""
    folder = Folder(str(tmp_path / "packed"))
    name = stored_name("data/train/00000.parquet", hashlib.sha256(b"half").hexdigest())
    half = tmp_path / "packed" / PurePosixPath(name).with_name(f".{PurePosixPath(name).name}.{'0' * 32}")
    theirs = half.with_name(f".theirs.{'0' * 32}")
    half.parent.mkdir(parents=True)
    for file in (half, theirs):
        file.write_bytes(b"ha")
    publish(folder, tmp_path, "first", {0: b"half"})
    assert not half.exists()
    assert theirs.exists()
    assert shown(folder)["data/train/00000.parquet"] == b"half"


def test_a_copy_that_is_cut_leaves_nothing_by_its_name(tmp_path, monkeypatch):
    folder = Folder(str(tmp_path / "packed"))
    file = tmp_path / "shard.parquet"
    file.write_bytes(b"zero")
    folder.store.put("data/train/x.parquet", b"old")

    def cut(source, target):
        Path(target).write_bytes(b"ze")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", cut)
    with pytest.raises(OSError, match="No space left"):
        folder.store.copy(file, "data/train/x.parquet")
    assert folder.store.read("data/train/x.parquet") == b"old"
    assert list(folder.store.list()) == ["data/train/x.parquet"]
    with pytest.raises(
        PublishError, match=r"data/train/00000\.parquet cannot be written to \S+: \[Errno 28\] No space"
    ):
        folder.upload("data/train/00000.parquet", file)
