"""The whole way on one machine: an embedded Hub, the demo source, the main job, one batch in PyTorch.

    python -m jobs.demo [FOLDER]       FOLDER keeps the Hub; .local_hub when absent

It is the main job and the reader as anybody calls them; only the Hub is local. Exits non-zero on any failure.
"""

import json
import os
import sys
from pathlib import Path

from jobs.local_hub import LocalHub

DEMO = Path(__file__).resolve().parent
ROOT = DEMO.parent.parent
SOURCE, PACKED = "user/demo-source", "user/demo-packed"

NEXT = f"""
next, with the Hub of this run served by `make hub` in another terminal, and there stopped again before `make run`:
  export HF_ENDPOINT=http://127.0.0.1:8765 HF_TOKEN=hf_local
  .venv/bin/python -c "from datasets import load_dataset; row = next(iter(load_dataset('{PACKED}', split='train', \\
streaming=True))); print({{name: len(v) if isinstance(v, list) else v for name, v in row.items()}})"
or, with no Hub to start: make compare"""


def main(folder: str) -> int:
    """Run the demo against a Hub kept in `folder`; returns the exit code."""
    with LocalHub(folder) as hub:
        os.environ |= hub.environment()  # before huggingface_hub is imported and before the JVM starts
        from jobs import pack
        from jobs.session import get_session

        print(f"hub          {hub.url}, kept in {folder}")
        spark = get_session()
        upload_source(spark)
        code = pack.main(["--config", str(ROOT / "conf" / "jobs" / "demo.yaml"), f"processor.path={DEMO}/processor"])
        if code:
            return code
        show_batch()
        print(NEXT)
        spark.stop()
    return 0


def upload_source(spark) -> None:
    """The shipped rows as a dataset on the Hub, by the `huggingface` writer, with a card for its configurations."""
    import pyarrow.parquet as pq
    from huggingface_hub import HfApi

    from jobs.huggingface_source import HuggingFace

    api = HfApi()
    api.create_repo(SOURCE, repo_type="dataset", exist_ok=True)
    configs = sorted(path.name for path in (DEMO / "source").iterdir())
    for config in configs:
        rows = spark.read.parquet(str(DEMO / "source" / config))
        rows.write.format(HuggingFace.name()).mode("overwrite").options(data_dir=config, split="train").save(SOURCE)
    schema = pq.read_schema(next((DEMO / "source" / configs[0]).glob("*.parquet"))).remove_metadata()
    licenses = {name for file in (DEMO / "source").rglob("*.parquet")
                for name in pq.read_table(file, columns=["license"])["license"].to_pylist()}  # fmt: skip
    card = source_card(configs, schema, sorted(licenses))
    api.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=SOURCE, repo_type="dataset")


def source_card(configs: list[str], schema, licenses: list[str]) -> str:
    """A dataset card that gives each folder its configuration and the `images` column its Image feature."""
    from jobs.card import yaml_features
    from jobs.licenses import front_matter

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
    try:
        sys.exit(main(*(sys.argv[1:] or [str(ROOT / ".local_hub")])))
    except ValueError as error:  # the folder's Hub is being served by another process
        sys.exit(f"error: {error}")
