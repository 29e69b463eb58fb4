"""Two runs that write to one folder: the later state stands and is whole, or the run says that it is not."""

import hashlib

import pytest

from jobs.output.interface import MovedError, PublishError
from packing_udfs.storage.folder_state import Tree, stored_name
from tests.unit.folder_runs import publish, run_of, shard_rows, shown, small_files


def test_two_runs_at_once(folder, tmp_path):
    publish(folder, tmp_path, "first", {0: b"zero"})
    late = folder.draft(folder.create(False), run_of("late"))
    late.add(shard_rows(folder, tmp_path, 0, b"late"))
    publish(folder, tmp_path, "second", {0: b"second"})
    with pytest.raises(MovedError, match="somebody else committed"):
        late.publish(small_files("late"), [])
    assert shown(folder)["data/train/00000.parquet"] == b"second"


def _drafts(folder, tmp_path):
    """Two runs that started from the same state and are about to publish."""
    publish(folder, tmp_path, "first", {0: b"zero"})
    drafts = [folder.draft(folder.create(False), run_of(name)) for name in ("one", "two")]
    for draft, data in zip(drafts, (b"one", b"two"), strict=True):
        draft.add(shard_rows(folder, tmp_path, 0, data))
    return drafts


def test_two_runs_that_look_at_once(folder, tmp_path, monkeypatch):
    """One publishes and tidies while the other lists the files that it is about to name."""
    one, two = _drafts(folder, tmp_path)
    of_draft = two._check_there

    def slow(tree):
        of_draft(tree)
        one.publish(small_files("one"), [])

    monkeypatch.setattr(two, "_check_there", slow)
    with pytest.raises(MovedError, match="somebody else committed"):
        two.publish(small_files("two"), [])
    assert shown(folder)["data/train/00000.parquet"] == b"one"


def _meanwhile(draft, monkeypatch, act, *, after: bool) -> None:
    """Something that happens between a draft's last look and its published.json, or right after that."""
    write = draft._write

    def slow(name, data):
        if name == "published.json" and not after:
            act()
        write(name, data)
        if name == "published.json" and after:
            act()

    monkeypatch.setattr(draft, "_write", slow)


def test_two_runs_that_write_at_once(folder, tmp_path, monkeypatch):
    """Closer than any look can tell: the later state stands, and what the earlier run tidied is not missing in it."""
    one, two = _drafts(folder, tmp_path)
    _meanwhile(two, monkeypatch, lambda: one.publish(small_files("one"), []), after=False)
    two.publish(small_files("two"), [])
    assert shown(folder) == {"data/train/00000.parquet": b"two", **small_files("two")}


def test_a_run_whose_state_was_replaced_at_once_fails(folder, tmp_path, monkeypatch):
    one, _ = _drafts(folder, tmp_path)
    _meanwhile(one, monkeypatch, lambda: folder.store.put("published.json", other.dump()), after=True)
    other = Tree({}, "run", "shards")
    with pytest.raises(PublishError, match="another run published at the same moment, and its state stands"):
        one.publish(small_files("one"), [])


def test_a_run_whose_files_were_removed_at_once_fails_and_is_mended(folder, tmp_path, monkeypatch):
    one, _ = _drafts(folder, tmp_path)
    name = stored_name("data/train/00000.parquet", hashlib.sha256(b"one").hexdigest())
    _meanwhile(one, monkeypatch, lambda: folder.store.remove([name]), after=False)
    with pytest.raises(PublishError, match=r"another run has removed files meanwhile: .* None bytes"):
        one.publish(small_files("one"), [])
    publish(folder, tmp_path, "one", {0: b"one"})
    assert shown(folder)["data/train/00000.parquet"] == b"one"
