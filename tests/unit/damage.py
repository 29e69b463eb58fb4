"""Ways to change a published dataset so that nothing is wrong but what is meant to be."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.published import check_dataset
from jobs.published.dataset import open_packed
from jobs.revision import figures
from packing_udfs import contract, manifest
from packing_udfs.parquet.write import write_shard

FIRST = "data/train/00000.parquet"


TRAIN, VALIDATION = "manifest/train.json", "manifest/validation.json"


def findings(folder: Path, **options) -> list[str]:
    return [str(finding) for finding in check_dataset.validate(open_packed(str(folder)), **options)]


def rewrite(folder: Path, file: str, change: Callable[[list[dict]], None], row_group: int = 0) -> None:
    """Change the packs of a row group and make the manifest fit: what is wrong then is wrong in the packs."""
    path, split = folder / file, file.split("/")[1]
    parquet = pq.ParquetFile(path)
    tables = [parquet.read_row_group(i) for i in range(parquet.num_row_groups)]
    packs = tables[row_group].to_pylist()
    change(packs)
    tables[row_group] = pa.Table.from_pylist(packs, schema=contract.PACK_SCHEMA)
    rows = write_shard(str(path), file, [table.replace_schema_metadata(None) for table in tables])
    edit_rows(folder, split, lambda old: [*(row for row in old if row["file"] != file), *rows.to_pylist()])
    totals = figures.totals(pq.read_table(folder / contract.MANIFEST_PARQUET.format(split=split)))
    edit_json(folder, contract.MANIFEST_JSON.format(split=split), lambda info: info.update(totals=totals))
    edit_json(folder, "report.json", lambda found: found["splits"][split].update(totals=totals))


def edit_rows(folder: Path, split: str, change: Callable[[list[dict]], list[dict]]) -> None:
    """Change the manifest's row groups, sorted by file, with the hash that the JSON file has of them."""
    json_path = folder / contract.MANIFEST_JSON.format(split=split)
    parquet_path = folder / contract.MANIFEST_PARQUET.format(split=split)
    rows = sorted(change(pq.read_table(parquet_path).to_pylist()), key=lambda row: (row["file"], row["row_group"]))
    info = json.loads(json_path.read_text("utf-8"))
    info_json, parquet = manifest.dump(info, pa.Table.from_pylist(rows, schema=contract.MANIFEST_SCHEMA))
    json_path.write_bytes(info_json)
    parquet_path.write_bytes(parquet)


def edit_json(folder: Path, file: str, change: Callable[[dict], object]) -> None:
    found = json.loads((folder / file).read_text("utf-8"))
    change(found)
    (folder / file).write_text(json.dumps(found), "utf-8")


def in_rows(change: Callable[[dict], object]) -> Callable[[list[dict]], list[dict]]:
    """Change the manifest's first row."""

    def changed(rows: list[dict]) -> list[dict]:
        change(rows[0])
        return rows

    return changed


def card(folder: Path, configs: str) -> None:
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}\n---\n")
