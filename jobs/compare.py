"""`python -m jobs.compare`: padding and packing side by side."""

import argparse
import logging
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from jobs.forecast import comparison_page
from jobs.forecast.comparison import as_json, as_text, compare
from jobs.java import JavaError
from packing_udfs.config_file import describe, load


def main(argv: list[str] | None = None, spark: SparkSession | None = None) -> int:
    """Command line; returns the exit code. `spark`: a session to use, as in a notebook."""
    parser = argparse.ArgumentParser(
        prog="python -m jobs.compare",
        description="One page: what padding and packing make of a sample of your data. Nothing is written to the Hub.",
        epilog="Fields of the configuration, as in jobs.pack:\n" + "\n".join(describe()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, help="YAML file with the fields below")
    parser.add_argument(
        "--out", default="artifacts/compare", help="folder for compare.html and compare.json (%(default)s)"
    )
    parser.add_argument("--max-samples", type=int, default=2000, help="rows to read at most (%(default)s)")
    parser.add_argument("--global-batch-size", type=int, default=32, help="rows in a training step (%(default)s)")
    parser.add_argument("--spark-conf", help="Spark properties of a session made here; default conf/spark/local.conf")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="override a field, as in pack.seq_len=8192")
    args = parser.parse_intermixed_args(argv)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    try:
        config = load(args.config, args.overrides)
        found = compare(config, args.max_samples, args.global_batch_size, spark, spark_conf=args.spark_conf)
    except (ValueError, JavaError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_text(as_json(found.figures), encoding="utf-8")
    (folder / "compare.html").write_text(comparison_page.page(found), encoding="utf-8")
    print(as_text(found.figures))
    print(f"page         {(folder / 'compare.html').resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
