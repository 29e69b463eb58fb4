"""The Hub's token is in nothing that a run shows or leaves behind."""

from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import snapshot_download

from tests.spark.cluster.conftest import CONTROL, command_lines, until


def text_of(folder) -> str:
    """All files of a folder, Parquet decoded, without images; what a killed worker left half-written is as it is."""
    parts = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.suffix == ".parquet":
            with suppress(pa.ArrowInvalid):
                table = pq.read_table(path)
                parts.append(repr(table.drop_columns(["images"] if "images" in table.column_names else []).to_pylist()))
        parts.append(path.read_bytes().decode("latin-1"))
    return "\n".join(parts)


def test_no_token_is_shown_or_left(application, cluster, faults, session_hub, api, tmp_path):
    token = session_hub.token
    slow = faults(route="preupload", delay=6.0, times=2)
    application.start("user/hygiene")
    until(lambda: slow.hits, "no shard was uploaded")
    seen = {"arguments": "\n".join(command_lines().values())}
    seen["ui"] = application.page("environment")
    assert application.answer().keys() == {"commit"}
    application.start("user/hygiene", ask="told")
    seen["properties and explain"] = application.answer()["told"]
    seen["events"] = text_of(application.events)
    seen["driver"] = application.log.read_text(errors="replace")
    seen["daemons, executors, local folders"] = text_of(cluster.folder)
    published = tmp_path / "published"
    snapshot_download("user/hygiene", repo_type="dataset", local_dir=published)
    seen["published"] = text_of(published)

    there = {  # what shows that the right places were looked at
        "arguments": "CoarseGrainedExecutorBackend",
        "ui": "spark.redaction.regex",
        "properties and explain": "== Physical Plan ==",
        "events": "SparkListenerEnvironmentUpdate",
        "driver": "shard/s",
        "daemons, executors, local folders": "Spark Executor Command",
        "published": "charts_and_pages",
    }
    assert {place for place, word in there.items() if word not in seen[place]} == set()
    assert {place for place, text in seen.items() if token in text} == set()
    assert "SOME_KEY" in seen["events"]
    assert CONTROL in seen["properties and explain"]  # the application's own view of itself has it …
    assert CONTROL not in seen["ui"] + seen["events"]  # … and nobody else's: hidden by what it looks like
