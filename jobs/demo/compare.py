"""The comparison page of the demo's source, on the embedded Hub: python -m jobs.demo.compare [OPTION …]

Options are those of `jobs.compare`, but for --config. The Hub is the one of `make run`; the source is uploaded to it
when it is not there yet. Needs no Java.
"""

import os
import sys

from jobs.demo.__main__ import DEMO, ROOT, SOURCE, source_card
from jobs.local_hub import LocalHub


def main(options: list[str]) -> int:
    """Compare on the demo; returns the exit code."""
    with LocalHub(ROOT / ".local_hub") as hub:
        os.environ |= hub.environment()  # before huggingface_hub is imported
        from jobs import compare

        upload_source()
        config = ["--config", str(ROOT / "conf" / "jobs" / "demo.yaml"), f"processor.path={DEMO}/processor"]
        return compare.main([*config, *options])


def upload_source() -> None:
    """The shipped rows and their card as a dataset on the Hub, unless there is one."""
    import pyarrow.parquet as pq
    from huggingface_hub import HfApi

    api = HfApi()
    if api.file_exists(SOURCE, "README.md", repo_type="dataset"):  # it goes there last
        return
    folder = DEMO / "source"
    configs = sorted(path.name for path in folder.iterdir())
    files = [pq.read_table(file, columns=["license"]) for file in sorted(folder.rglob("*.parquet"))]
    licenses = sorted({name for file in files for name in file["license"].to_pylist()})
    schema = pq.read_schema(next((folder / configs[0]).glob("*.parquet"))).remove_metadata()
    api.create_repo(SOURCE, repo_type="dataset", exist_ok=True)
    api.upload_folder(folder_path=folder, repo_id=SOURCE, repo_type="dataset")
    card = source_card(configs, schema, licenses).encode()
    api.upload_file(path_or_fileobj=card, path_in_repo="README.md", repo_id=SOURCE, repo_type="dataset")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
