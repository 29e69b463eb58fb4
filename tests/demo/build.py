"""Rebuild the demo's data and processor, `jobs/demo/`, byte for byte.

    python -m tests.demo.build                                     # redraw what is drawn, keep what is not
    python -m tests.demo.build --vqa-mix DIR --photos DIR --merges FILE

Rows come from three places: cut from openly licensed Parquet files (`cut`), photographs (`photos`), and made here
(`charts`, `pages`, `written`). Where a path is not given, those rows or the tokenizer's merges are taken over from
the files that are being replaced; so a rebuild needs nothing from outside the repository, and gives the same bytes
with the package versions in `versions.json` (encoders and Parquet writers change between releases).
"""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract
from tests.demo import charts, cut, flaws, pages, photos, processor, written

DEMO = Path(__file__).resolve().parents[2] / "jobs" / "demo"
NUM_FILES = {"photos_and_drawings": 2, "charts_and_pages": 3}
PACKAGES = ("matplotlib", "numpy", "pillow", "pyarrow", "tokenizers", "transformers")
CHUNKING = {"min_chunk_size": 256 * 1024, "max_chunk_size": 1024 * 1024, "norm_level": 0}
SCHEMA = pa.schema(
    [
        ("images", pa.list_(contract.IMAGE)),
        ("texts", pa.list_(pa.struct([("user", pa.string()), ("assistant", pa.string())]))),
        ("source", pa.string()),
        *((f"{rating}_ratings", pa.list_(pa.int64())) for rating in flaws.RATINGS),
        *((f"{rating}_min", pa.int64()) for rating in flaws.RATINGS),
        ("license", pa.string()),
    ]
)


def build(
    out: Path,
    *,
    vqa_mix: Path | None = None,
    photo_folder: Path | None = None,
    merges: Path | None = None,
    shipped: Path = DEMO,
) -> None:
    """Write `out/source/<config>/*.parquet`, `out/processor/` and `out/versions.json`; a None keeps `shipped`'s."""
    for config, rows in build_rows(vqa_mix, photo_folder, shipped).items():
        write_rows(rows, out / "source" / config, NUM_FILES[config])
    kept = shipped / "processor" / "tokenizer.json"
    processor.write_processor(processor.read_merges(merges or kept), out / "processor")
    (out / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n")


def build_rows(vqa_mix: Path | None, photo_folder: Path | None, shipped: Path) -> dict[str, list[dict]]:
    """All rows by configuration, in the order in which they are stored."""
    cut_rows = cut.cut_rows(vqa_mix) if vqa_mix else _kept_rows(shipped, cut.SOURCES)
    if photo_folder:
        photo_rows = photos.photo_rows(photo_folder)
    else:
        photo_rows = _kept_rows(shipped, {photos.SOURCE})["photos_and_drawings"]
    rows = {
        "photos_and_drawings": [*photo_rows, *cut_rows["photos_and_drawings"]],
        "charts_and_pages": [
            *charts.chart_rows(),
            *pages.page_rows(),
            *cut_rows["charts_and_pages"],
            *written.written_rows(),
        ],
    }
    return {config: flaws.add_flaws(config, flaws.rate(rows[config])) for config in NUM_FILES}


def _kept_rows(shipped: Path, sources: set[str]) -> dict[str, list[dict]]:
    kept = {}
    for config in NUM_FILES:
        rows = flaws.without_flaws(config, read_rows(shipped / "source" / config))
        kept[config] = [row for row in rows if row["source"] in sources]
    return kept


def read_rows(folder: Path) -> list[dict]:
    """The rows of a configuration's folder in the order in which `write_rows` was given them."""
    files = [pq.read_table(file).to_pylist() for file in sorted(folder.glob("*.parquet"))]
    return [files[i % len(files)][i // len(files)] for i in range(sum(map(len, files)))]


def write_rows(rows: list[dict], folder: Path, num_files: int) -> None:
    """Deal `rows` out to `folder/train-0000i-of-0000N.parquet`: row i goes to file i mod N."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {b"huggingface": json.dumps({"info": {"features": contract.features(SCHEMA)}}).encode()}
    for i in range(num_files):
        table = pa.Table.from_pylist(rows[i::num_files], schema=SCHEMA.with_metadata(metadata))
        file = folder / f"train-{i:05d}-of-{num_files:05d}.parquet"
        # As `datasets` writes its files, and not packs: with its chunking and the library's pages and levels.
        own = {"use_content_defined_chunking": CHUNKING, "data_page_size": None, "compression_level": None}
        options = contract.writer_options(SCHEMA) | own
        pq.write_table(table, file, row_group_size=16, **options)


def versions() -> dict[str, str]:
    """The installed versions of the packages that the bytes depend on."""
    return {package: version(package) for package in PACKAGES}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vqa-mix", type=Path, help="folder of the Parquet files that cut.py takes rows from")
    parser.add_argument("--photos", type=Path, help="folder of the photographs that photos.py names")
    parser.add_argument("--merges", type=Path, help="GPT-2's merge list, vocab.bpe or merges.txt")
    parser.add_argument("--out", type=Path, default=DEMO)
    given = parser.parse_args()
    build(given.out, vqa_mix=given.vqa_mix, photo_folder=given.photos, merges=given.merges)
