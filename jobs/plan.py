"""`python -m jobs.plan`: what to expect of a run, before anything is spent."""

import sys

from jobs.command import config_parser, fail, log_to_stderr
from jobs.forecast.forecast import as_json, as_text, forecast
from packing_udfs.config_file import load

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    description = "What a job would make and need, from a sample of its sources. Needs no Spark and writes nothing."
    parser = config_parser("plan", description)
    parser.add_argument("--global-batch-size", type=int, default=32, help="packs in a training step (%(default)s)")
    parser.add_argument("--num-executors", type=int, default=1, help="that share the shuffle's disk (%(default)s)")
    parser.add_argument("--max-rows", type=int, default=4096, help="rows to read, about (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_intermixed_args(argv)
    log_to_stderr()
    try:
        found = forecast(
            load(args.config, args.overrides),
            max_rows=args.max_rows,
            global_batch_size=args.global_batch_size,
            num_executors=args.num_executors,
        )
    except ValueError as error:
        return fail(error)
    print(as_json(found) if args.json else as_text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
