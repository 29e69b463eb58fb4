"""What all parts of the demo share: where its files are, its configuration, and its source on the Hub.

`start_hub`, `start_spark` and `demo_config` are for notebooks.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from jobs.local_hub import LocalHub
from packing_udfs.config import Config
from packing_udfs.config_file import load

__all__ = ["DEMO", "JOB", "PACKED", "PROCESSOR", "ROOT", "SOURCE", "demo_config", "start_hub", "start_spark",
           "upload_source"]  # fmt: skip

DEMO = Path(__file__).resolve().parent
ROOT = DEMO.parent.parent
SOURCE, PACKED = "user/demo-source", "user/demo-packed"
PROCESSOR = str(DEMO / "processor")
_CONFIG, _OVERRIDE = str(ROOT / "conf" / "jobs" / "demo.yaml"), f"processor.path={PROCESSOR}"
JOB = ("--config", _CONFIG, _OVERRIDE)
"""The arguments of `jobs.pack` and `jobs.compare` for the demo, from any folder."""


def start_hub() -> LocalHub:
    """A Hub in a temporary folder, in this process's environment; it ends with the process.

    Raises RuntimeError when huggingface_hub is already imported, because it reads the environment at import.
    """
    if "huggingface_hub" in sys.modules:
        raise RuntimeError("huggingface_hub is imported already and keeps its Hub; restart the kernel")
    hub = LocalHub(tempfile.mkdtemp(prefix="packing-notebook-")).start()
    os.environ |= hub.environment()
    return hub


def start_spark():
    """A Spark session, with the demo's source put on the Hub."""
    from jobs.shards.session import get_session

    spark = get_session()
    upload_source()
    return spark


def demo_config(*overrides: str) -> Config:
    """The demo's configuration, with overrides as on the command line."""
    return load(_CONFIG, [_OVERRIDE, *overrides])


def upload_source() -> None:
    """The shipped rows as a dataset on the Hub, and then a card for its configurations."""
    import pyarrow.parquet as pq
    from huggingface_hub import HfApi

    api, files = HfApi(), sorted((DEMO / "source").rglob("*.parquet"))
    api.create_repo(SOURCE, repo_type="dataset", exist_ok=True)
    api.upload_folder(folder_path=DEMO / "source", repo_id=SOURCE, repo_type="dataset", delete_patterns="*.parquet")
    licenses: set[str] = set()
    for file in files:
        licenses.update(pq.read_table(file, columns=["license"])["license"].to_pylist())
    schema = pq.read_schema(files[0]).remove_metadata()
    card = _source_card(sorted({file.parent.name for file in files}), schema, sorted(licenses))
    api.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=SOURCE, repo_type="dataset")


def _source_card(configs: list[str], schema, licenses: list[str]) -> str:
    """A dataset card that gives each folder its configuration and the `images` column its Image feature."""
    from jobs.revision.card import yaml_features
    from jobs.sources.licenses import front_matter

    front = {
        **front_matter(licenses),
        "configs": [{"config_name": c, "data_files": [{"split": "train", "path": f"{c}/train-*"}]} for c in configs],
        "dataset_info": [{"config_name": c, "features": yaml_features(schema)} for c in configs],
    }
    text = "The demo source of packing-udfs; `license` of each row says what it is under."
    return f"---\n{json.dumps(front)}\n---\n{text}\n"
