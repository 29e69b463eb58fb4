"""The whole way on one machine: an embedded Hub, the demo source, the main job, one batch in PyTorch.

    python -m jobs.demo [FOLDER]       FOLDER keeps the Hub; .local_hub when absent

It is the main job and the reader as anybody calls them; only the Hub is local. Exits non-zero on any failure.
"""

import argparse
import errno
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs.local_hub import PORT, LocalHub

DEMO = Path(__file__).resolve().parent
ROOT = DEMO.parent.parent
SOURCE, PACKED = "user/demo-source", "user/demo-packed"

NEXT = f"""
next, on the Hub of this run, which has stopped: `make hub` in another terminal serves it (and is stopped there before
the next `make run`); paste here the lines that it prints. In a browser, report.html is the page of what was packed:
  http://127.0.0.1:{PORT}/datasets/{PACKED}
  .venv/bin/python -m jobs.report {PACKED}                    # the same page, as ./report.html
  .venv/bin/python -m jobs.inspect {PACKED} --pack 17 --processor jobs/demo/processor --out pack.html
  .venv/bin/python -m jobs.validate {PACKED}
  .venv/bin/python -c "from datasets import load_dataset; row = next(iter(load_dataset('{PACKED}', split='train', \\
streaming=True))); print({{name: len(v) if isinstance(v, list) else v for name, v in row.items()}})"
or, with no Hub to start: make compare"""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m jobs.demo", description="Pack the demo on an embedded Hub and stream one batch of it."
    )
    parser.add_argument(
        "folder", nargs="?", default=ROOT / ".local_hub", help="where the Hub is kept (default: .local_hub)"
    )
    folder = parser.parse_args(argv).folder
    try:
        hub = _start_hub(folder)
    except ValueError as error:  # the folder's Hub is being served by another process
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        return run(hub)
    finally:
        hub.stop()


def _start_hub(folder: str | Path) -> LocalHub:
    """At the port of `make hub`, so that addresses printed now hold then; at any when that one is taken."""
    try:
        return LocalHub(folder, port=PORT).start()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return LocalHub(folder).start()


def run(hub: LocalHub) -> int:
    """The demo against a Hub that is served; returns the exit code."""
    os.environ |= hub.environment()  # before huggingface_hub is imported and before the JVM starts
    from jobs import pack
    from jobs.shards.session import get_session

    print(f"hub          {hub.url}, kept in {hub.root}")
    spark = get_session()
    upload_source()
    code = pack.main(["--config", str(ROOT / "conf" / "jobs" / "demo.yaml"), f"processor.path={DEMO}/processor"])
    if code:
        return code
    show_batch()
    print(NEXT)
    spark.stop()
    return 0


def upload_source() -> None:
    """The shipped rows as a dataset on the Hub, with a card for its configurations, which goes there last."""
    import pyarrow.parquet as pq
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(SOURCE, repo_type="dataset", exist_ok=True)
    api.upload_folder(folder_path=DEMO / "source", repo_id=SOURCE, repo_type="dataset", delete_patterns="*.parquet")
    configs = sorted(path.name for path in (DEMO / "source").iterdir())
    schema = pq.read_schema(next((DEMO / "source" / configs[0]).glob("*.parquet"))).remove_metadata()
    licenses = {name for file in (DEMO / "source").rglob("*.parquet")
                for name in pq.read_table(file, columns=["license"])["license"].to_pylist()}  # fmt: skip
    card = source_card(configs, schema, sorted(licenses))
    api.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=SOURCE, repo_type="dataset")


def source_card(configs: list[str], schema, licenses: list[str]) -> str:
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


def show_batch() -> None:
    """One batch from the reader, by the shapes of its tensors."""
    import torch
    from torch.utils.data import DataLoader

    from packing_udfs.reader import PackedDataset

    dataset = PackedDataset(PACKED, global_batch_size=4, processor=str(DEMO / "processor"))
    batch = next(iter(DataLoader(dataset, batch_size=None)))
    print(f"batch        1 of {len(dataset)}, {len(dataset.dropped)} packs left over")
    for name, value in batch.items():
        if isinstance(value, torch.Tensor):
            print(f"  {name:<21}{str(value.dtype).removeprefix('torch.'):<9}{tuple(value.shape)}")


if __name__ == "__main__":
    sys.exit(main())
