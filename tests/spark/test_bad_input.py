"""What a user did is said before Spark starts, with the field, the value and what exists."""

import json

import pytest
from huggingface_hub import HfApi

from jobs import pack
from tests.spark.conftest import demo_tree

SOURCE = {"repo": "user/demo-source", "config": "charts_and_pages", "name": "charts"}


@pytest.fixture
def run_main(source, monkeypatch, tmp_path, capsys):
    """Runs the command line with a session that must not be asked for; returns what it wrote to stderr."""

    def forbidden(*_):
        raise AssertionError("Spark was started")

    monkeypatch.setattr(pack, "get_session", forbidden)

    def run(*overrides: str, **sections) -> str:
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps(demo_tree("user/refused", **sections)))
        assert pack.main(["--config", str(path), *overrides]) == 1
        return capsys.readouterr().err

    return run


def test_unknown_key(run_main):
    assert run_main("pack.seqlen=1").startswith(
        "error: pack.seqlen: unknown key; did you mean seq_len? Allowed here are seq_len, "
    )


def test_missing_file(capsys):
    assert pack.main(["--config", "nowhere.yaml"]) == 1
    assert "error: configuration nowhere.yaml: cannot be read" in capsys.readouterr().err


def test_seq_len_below_one_image(run_main):
    assert "pack.seq_len: 60 is too small: one small image takes" in run_main("pack.seq_len=60")


def test_row_group_of_no_pack(run_main):
    assert "shards.num_packs_per_row_group: 0 is refused" in run_main("shards.num_packs_per_row_group=0")


def test_no_token(run_main, monkeypatch):
    monkeypatch.setattr("jobs.output.hub_repository.get_token", lambda: None)
    assert "needs a token; set HF_TOKEN" in run_main()


def test_wrong_token(run_main, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "refuses the token in HF_TOKEN" in run_main()


def test_unknown_repository(run_main):
    error = run_main(sources=[{**SOURCE, "repo": "user/nowhere"}])
    assert "sources.0.repo: no dataset user/nowhere at http://127.0.0.1" in error


def test_unknown_config_names_those_that_exist(run_main):
    error = run_main(sources=[{**SOURCE, "config": "graphs"}])
    assert "sources.0.config: user/demo-source has no configuration 'graphs'" in error
    assert "charts_and_pages, photos_and_drawings" in error


def test_no_config_where_there_are_several(run_main):
    error = run_main(sources=[{"repo": "user/demo-source"}])
    assert "has several configurations; name one of charts_and_pages, photos_and_drawings" in error


def test_unknown_split_names_those_that_exist(run_main):
    error = run_main(sources=[{**SOURCE, "split": "test"}])
    assert "sources.0.split: user/demo-source has no split 'test'; it has train" in error


def test_unknown_revision_names_those_that_exist(run_main):
    error = run_main(sources=[{**SOURCE, "revision": "v9"}])
    assert "sources.0.revision: user/demo-source has no revision 'v9'; it has main" in error


def test_output_equal_to_a_source(run_main):
    assert "output.repo: user/demo-source is also a source" in run_main("output.repo=user/demo-source")


def test_missing_columns_are_named(run_main, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    api, file = HfApi(), tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a"]}), file)
    api.create_repo("user/texts", repo_type="dataset", exist_ok=True)
    api.upload_file(
        path_or_fileobj=file, path_in_repo="data/train-0.parquet", repo_id="user/texts", repo_type="dataset"
    )
    error = run_main(sources=[{"repo": "user/texts"}])
    assert "sources.0.adapter: user/texts: no adapter knows the columns text string; name them in" in error
    assert "finevision: images, texts (a list of {user, assistant})" in error
    assert "captions: image or video, caption (or text, or txt)" in error
    error = run_main(sources=[{"repo": "user/texts", "adapter": "vqa"}])
    assert "user/texts: the adapter vqa needs image or video, question, answer (text) or answers (a list" in error
    assert "the columns are text string" in error
    error = run_main(sources=[{"repo": "user/texts", "columns": {"caption": "words"}}])
    assert "sources.0.columns: user/texts: there is no column 'words' with values; there are text string" in error


def test_a_token_that_may_not_write(run_main, session_hub):
    """The repository is there, and found, for one who may but read it."""
    HfApi().create_repo("user/read-only", repo_type="dataset", exist_ok=True)
    session_hub.inject(route="check_write", status=403, times=None)
    try:
        error = run_main("output.repo=user/read-only")
    finally:
        session_hub.faults.clear()
    assert "output.repo: user/read-only cannot be made or written to at http://127.0.0.1" in error


def test_unreachable_hub(run_main, monkeypatch):
    monkeypatch.setattr("jobs.output.hub_repository.HfApi", lambda: HfApi(endpoint="http://127.0.0.1:9"))
    assert "cannot be reached" in run_main("output.retry_seconds=0")


def test_remote_code(run_main):
    assert "processor.trust_remote_code: True is refused" in run_main("processor.trust_remote_code=true")


def test_missing_processor(run_main):
    error = run_main("processor.path=user/no-model")
    assert "processor.path: 'user/no-model' is no directory, and no model repository" in error


def test_help_explains_every_field(capsys):
    with pytest.raises(SystemExit) as stop:
        pack.main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for field in ("sources.N.min_ratings.relevance", "pack.seq_len", "output.mode", "quality.max_quarantine_fraction"):
        assert f"  {field} (" in out
