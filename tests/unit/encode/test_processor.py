"""A processor's files: fetched from a folder or a Hub, named by their content, loaded without foreign code."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from transformers import Idefics3Processor

from packing_udfs.encode import processor
from packing_udfs.encode.processor import ProcessorError, ProcessorFiles, fetch, fetch_named
from tests.unit.demo_samples import DEMO

NAMES = ["chat_template.jinja", "processor_config.json", "tokenizer.json", "tokenizer_config.json"]
CONFIG, TOKENIZER_CONFIG = "processor_config.json", "tokenizer_config.json"
# huggingface_hub hands bodies to its HTTP client in a form that the client deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<:DeprecationWarning")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A copy of the demo's processor."""
    return Path(shutil.copytree(DEMO / "processor", tmp_path / "processor"))


def edit(file: Path, **changes) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_folder(folder):
    found = fetch(str(folder))
    assert (found.name, found.revision) == (str(folder), None)
    assert [name for name, _ in found.files] == NAMES
    assert all(data == (folder / name).read_bytes() for name, data in found.files)
    assert isinstance(found.load(), Idefics3Processor)


def test_what_is_left_behind(folder):
    """Weights and code stay, hidden folders too; templates in folders come along."""
    for name in ("model.safetensors", "processing_x.py", "README.md", ".cache/a.json", "additional/tool.jinja"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    assert [name for name, _ in fetch(str(folder)).files] == ["additional/tool.jinja", *NAMES]


def test_loaded_after_its_folder_is_gone(folder):
    found = fetch(str(folder))
    shutil.rmtree(folder)
    assert found.load().image_processor.size == {"longest_edge": 2048}


@pytest.mark.parametrize("name", NAMES)
def test_any_byte_changes_the_fingerprint(folder, name):
    before = fetch(str(folder)).fingerprint
    assert fetch(str(folder)).fingerprint == before
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    assert fetch(str(folder)).fingerprint != before


def test_the_fingerprint_is_of_names_and_contents_and_not_of_the_place(folder, tmp_path):
    before = fetch(str(folder)).fingerprint
    assert fetch(str(DEMO / "processor")).fingerprint == before
    (folder / "added.json").write_text("")
    added = fetch(str(folder)).fingerprint
    (folder / "added.json").rename(folder / "other.json")
    assert len({before, added, fetch(str(folder)).fingerprint}) == 3


def test_where_one_file_ends_is_part_of_the_fingerprint():
    one = ProcessorFiles("x", None, (("a", b"1"), ("b", b"2")))
    other = ProcessorFiles("x", None, (("a", b"1b\x002"),))
    assert one.fingerprint != other.fingerprint


# What is refused


def test_a_folder_without_a_processor(tmp_path, monkeypatch):
    """It is refused by two names, without a look at what else it holds."""
    monkeypatch.setattr(Path, "rglob", lambda *_: pytest.fail("the folder was searched"))
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / CONFIG).write_text("{}")
    with pytest.raises(ProcessorError, match=rf"^processor\.path: {tmp_path} has no processor_config\.json or preproc"):
        fetch(str(tmp_path))


def test_too_many_bytes(folder, monkeypatch):
    monkeypatch.setattr(processor, "_MAX_BYTES", 1000)
    with pytest.raises(ProcessorError, match=r"has \d+ bytes of configuration, more than 1000"):
        fetch(str(folder))


OWN_CODE = "it has code of its own (auto_map), which is never run; use one whose class transformers has"


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        (CONFIG, {"processor_class": "OwnProcessor", "auto_map": {"AutoProcessor": "own.OwnProcessor"}}),
        (TOKENIZER_CONFIG, {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}),
    ],
)
def test_code_of_its_own_is_never_run(folder, file, changes):
    edit(folder / file, **changes)
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    with pytest.raises(ProcessorError) as refused:
        fetch(str(folder)).load()
    assert str(refused.value) == f"processor.path: {folder} cannot be loaded: {OWN_CODE}"
    assert not (folder / "ran").exists()


def test_no_images(folder):
    edit(folder / CONFIG, processor_class="PreTrainedTokenizerFast")
    with pytest.raises(ProcessorError, match=rf"^processor\.path: {folder} is a \w+, which takes no images$"):
        fetch(str(folder)).load()


@pytest.mark.parametrize(
    ("file", "text"), [(CONFIG, "{"), (CONFIG, "[]"), ("tokenizer.json", "{}"), ("tokenizer.json", "")]
)
def test_a_broken_file(folder, file, text):
    (folder / file).write_text(text)
    with pytest.raises(ProcessorError, match=rf"^processor\.path: {folder} cannot be loaded: "):
        fetch(str(folder)).load()


@pytest.mark.parametrize("path", ["a b", "a/b/c", "./nowhere", "/nowhere/at/all"])
def test_neither_a_folder_nor_a_repository(path):
    with pytest.raises(ProcessorError, match=rf"^processor\.path: '{path}' is neither a directory nor a repository"):
        fetch(path)


# On a Hub


@pytest.fixture(scope="module")
def repo(session_hub) -> str:
    """The demo's processor as a model on the Hub, with weights beside it."""
    api = HfApi()
    api.create_repo("user/unit-processor")
    api.upload_folder(repo_id="user/unit-processor", folder_path=DEMO / "processor")
    api.upload_file(path_or_fileobj=b"x" * 99, path_in_repo="model.safetensors", repo_id="user/unit-processor")
    return "user/unit-processor"


def test_a_repository(repo):
    """Pinned to a commit; the same content has the same fingerprint as a folder, though more files are known."""
    found = fetch(repo)
    assert (found.name, found.revision) == (repo, HfApi().model_info(repo).sha)
    assert [name for name, _ in found.files] == NAMES
    assert found.fingerprint == fetch(str(DEMO / "processor")).fingerprint
    assert fetch(repo, found.revision) == found


def test_a_revision_that_is_not_there(repo):
    with pytest.raises(ProcessorError) as refused:
        fetch(repo, "v9")
    assert str(refused.value) == "processor.revision: user/unit-processor has no branch, tag or commit 'v9'"


def test_a_repository_that_is_not_there(session_hub):
    with pytest.raises(ProcessorError) as refused:
        fetch("user/unit-nothing")
    assert str(refused.value) == (
        f"processor.path: 'user/unit-nothing' is no directory, and no model repository at {session_hub.url} that "
        "HF_TOKEN may read"
    )


def test_a_repository_without_a_processor(session_hub):
    HfApi().create_repo("user/unit-empty")
    with pytest.raises(ProcessorError, match=r"^processor\.path: user/unit-empty has no processor_config\.json or"):
        fetch("user/unit-empty")


def test_no_hub(monkeypatch):
    """Nothing listens on port 9."""
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        ProcessorError, match=r"^processor\.path: 'a/b' is no directory, and http://127\.0\.0\.1:9 does"
    ):
        fetch("a/b")


def test_published_files_do_not_say_where_a_folder_was(folder):
    found = fetch(str(folder))
    assert found.name == str(folder)
    assert found.published_name == folder.name
    assert fetch(f"{folder}/").published_name == folder.name
    assert ProcessorFiles("owner/model", "c" * 40, ()).published_name == "owner/model"


def test_a_named_folder_is_found_by_its_files(folder, tmp_path, monkeypatch):
    found = fetch(str(folder))
    named = {"name": found.published_name, "revision": None, "fingerprint": found.fingerprint}
    monkeypatch.chdir("/")
    with pytest.raises(ProcessorError, match=f"packed with a folder '{folder.name}', whose place is not published"):
        fetch_named(named)
    assert fetch_named(named, str(folder)).fingerprint == found.fingerprint
    monkeypatch.chdir(folder.parent)
    assert fetch_named(named).fingerprint == found.fingerprint
    (folder / "more.json").write_text("{}")
    for path in (None, str(folder)):
        with pytest.raises(ProcessorError, match=f"--processor: .*has other files than {folder.name}, for which"):
            fetch_named(named, path)
