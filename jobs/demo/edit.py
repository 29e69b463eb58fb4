"""A new version of the demo's source on the Hub, as people edit a dataset after it was packed.

    python -m jobs.demo.edit [--every 50]

The Hub is that of the environment, as `make hub` prints it.
"""

import io
import os
import sys
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.command import fail, new_parser
from jobs.demo.start import SOURCE
from packing_udfs.storage.hub_errors import one_line

__all__ = ["edit_source", "main"]


def edit_source(every: int) -> int:
    """Edit the last answer of each `every`-th row of each file, in one commit; returns the number of edited rows."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api, operations, num_edited = HfApi(), [], 0
    for path in sorted(api.list_repo_files(SOURCE, repo_type="dataset")):
        if not path.endswith(".parquet"):
            continue
        table = pq.read_table(api.hf_hub_download(SOURCE, path, repo_type="dataset"))
        texts = table["texts"].to_pylist()
        for turns in texts[::every]:
            if turns and turns[-1]["assistant"]:
                turns[-1]["assistant"] += " That is all there is to see."
                num_edited += 1
        index, out = table.schema.get_field_index("texts"), io.BytesIO()
        column = pa.array(texts, table.schema.field(index).type)
        pq.write_table(table.set_column(index, table.schema.field(index), column), out)
        operations.append(CommitOperationAdd(path, out.getvalue()))
    api.create_commit(SOURCE, operations, commit_message="Other answers", repo_type="dataset")
    return num_edited


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    description = f"Edit some answers of {SOURCE}, on the Hub that the environment names (`make hub` prints it)."
    parser = new_parser("demo.edit", description)
    parser.add_argument("--every", type=int, default=50, metavar="N", help="edit each N-th row (%(default)s)")
    every = parser.parse_args(argv).every
    if every < 1:
        parser.error(f"--every: {every} is refused: must be at least 1")
    from huggingface_hub.errors import HfHubHTTPError

    if not os.environ.get("HF_ENDPOINT"):
        parser.error("HF_ENDPOINT is not set: run `make hub` and paste the lines that it prints")
    try:
        print(f"edited       {edit_source(every):,} rows of {SOURCE}")
    except HfHubHTTPError as error:
        return fail(f"{SOURCE} at {os.environ['HF_ENDPOINT']}: {one_line(error)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
