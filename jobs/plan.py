"""`python -m jobs.plan`: what to expect of a run, before anything is spent."""

import argparse
import json
import logging
import sys

from jobs.forecast.forecast import as_text, forecast
from packing_udfs.config_file import describe, load


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m jobs.plan",
        description="What a job would make and need, from a sample of its sources. Needs no Spark and writes nothing.",
        epilog="Fields of the configuration, as in jobs.pack:\n" + "\n".join(describe()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, help="YAML file with the fields below")
    parser.add_argument("--global-batch-size", type=int, default=32, help="packs in a training step (%(default)s)")
    parser.add_argument("--num-executors", type=int, default=1, help="that share the shuffle's disk (%(default)s)")
    parser.add_argument("--max-rows", type=int, default=4096, help="rows to read, about (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="override a field, as in pack.seq_len=8192")
    args = parser.parse_intermixed_args(argv)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    try:
        found = forecast(
            load(args.config, args.overrides),
            max_rows=args.max_rows,
            global_batch_size=args.global_batch_size,
            num_executors=args.num_executors,
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) if args.json else as_text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
