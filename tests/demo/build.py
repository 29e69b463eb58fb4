"""Rebuild the demo's data and processor, `jobs/demo/`, byte for byte.

    python -m tests.demo.build                                      # redraw what is drawn, keep what is not
    python -m tests.demo.build --vqa-mix DIR --photos DIR --merges FILE

Rows come from three places: cut from openly licensed Parquet files (`cut`), photographs (`photos`), and drawn here
(`charts`, `pages`). Where a path is not given, those rows and the tokenizer's merges are taken over from the files
that are being replaced; so a rebuild needs nothing from outside the repository, and gives the same bytes.
"""

import argparse
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract
from tests.demo import cut, flaws, processor

DEMO = Path(__file__).resolve().parents[2] / "jobs" / "demo"
NUM_FILES = {"photos_and_drawings": 2, "charts_and_pages": 3}
RATINGS = ("relevance", "image_correspondence", "visual_dependency", "formatting")
SCHEMA = pa.schema(
    [
        ("images", pa.list_(contract.IMAGE)),
        ("texts", pa.list_(pa.struct([("user", pa.string()), ("assistant", pa.string())]))),
        ("source", pa.string()),
        *((f"{rating}_ratings", pa.list_(pa.int64())) for rating in RATINGS),
        *((f"{rating}_min", pa.int64()) for rating in RATINGS),
        ("license", pa.string()),
    ]
)


def build_rows(vqa_mix: Path | None, photos: Path | None, shipped: Path) -> dict[str, list[dict]]:
    """All rows by configuration, in the order they are stored in; see the module's text for what a None keeps."""
    del photos, shipped
    rows = cut.cut_rows(vqa_mix)
    return {config: flaws.add_flaws(config, flaws.rate(rows[config])) for config in NUM_FILES}


def write_rows(rows: list[dict], folder: Path, num_files: int) -> None:
    """Deal `rows` out to `folder/train-0000i-of-0000N.parquet`: row i goes to file i mod N."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(num_files):
        table = pa.Table.from_pylist(rows[i::num_files], schema=SCHEMA)
        metadata = {b"huggingface": json.dumps({"info": {"features": contract.features(SCHEMA)}}).encode()}
        pq.write_table(
            table.replace_schema_metadata(metadata),
            folder / f"train-{i:05d}-of-{num_files:05d}.parquet",
            row_group_size=16,
            **contract.writer_options(SCHEMA),
        )


def build(out: Path, vqa_mix: Path | None, photos: Path | None, merges: Path | None, shipped: Path = DEMO) -> None:
    """Write `out/source/<config>/*.parquet` and `out/processor/`."""
    for config, rows in build_rows(vqa_mix, photos, shipped).items():
        write_rows(rows, out / "source" / config, NUM_FILES[config])
    kept = shipped / "processor" / "tokenizer.json"
    processor.write_processor(processor.read_merges(merges or kept), out / "processor")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vqa-mix", type=Path, help="folder of Parquet files to cut rows from")
    parser.add_argument("--photos", type=Path, help="folder with the photographs that photos.py names")
    parser.add_argument("--merges", type=Path, help="GPT-2's merge list, vocab.bpe or merges.txt")
    parser.add_argument("--out", type=Path, default=DEMO)
    given = parser.parse_args()
    build(given.out, given.vqa_mix, given.photos, given.merges)
