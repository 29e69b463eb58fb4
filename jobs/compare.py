"""`python -m jobs.compare`: padding and packing side by side."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from jobs.command import config_parser, fail, log_to_stderr
from jobs.forecast import comparison_page
from jobs.forecast.comparison import as_json, as_text, compare
from jobs.java import JavaError
from packing_udfs.config_file import load

__all__ = ["main"]


def main(argv: list[str] | None = None, spark: SparkSession | None = None) -> int:
    """Command line; returns the exit code. `spark`: a session to use, as in a notebook."""
    description = "One page: what padding and packing make of a sample of your data. Nothing is written to the Hub."
    parser = config_parser("compare", description)
    parser.add_argument(
        "--out", default="artifacts/compare", help="folder for compare.html and compare.json (%(default)s)"
    )
    parser.add_argument("--max-samples", type=int, default=2000, help="rows to read at most (%(default)s)")
    parser.add_argument("--global-batch-size", type=int, default=32, help="rows in a training step (%(default)s)")
    parser.add_argument("--spark-conf", help="Spark properties of a session made here; default conf/spark/local.conf")
    args = parser.parse_intermixed_args(argv)
    log_to_stderr()
    try:
        config = load(args.config, args.overrides)
        found = compare(config, args.max_samples, args.global_batch_size, spark, spark_conf=args.spark_conf)
    except (ValueError, JavaError) as error:
        return fail(error)
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_text(as_json(found.figures), encoding="utf-8")
    (folder / "compare.html").write_text(comparison_page.page(found), encoding="utf-8")
    print(as_text(found.figures))
    print(f"page         {(folder / 'compare.html').resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
