"""A new version of the demo's source on the Hub: what people do to a dataset after it has been packed."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.demo.__main__ import SOURCE


def edit_source(every: int) -> int:
    """Let the last answer of each `every`-th row of each file end in other words, in one commit; the number of rows."""
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
