"""`python -m jobs.report`: the report page of a published dataset, again."""

import argparse
import sys
from pathlib import Path

from jobs.output.retries import one_line
from jobs.published.dataset import UNREADABLE, open_packed
from jobs.published.rebuild_report import rebuild
from jobs.revision.figures import as_text


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    from jobs.pages import run  # draws; the job's own figures need no picture

    parser = argparse.ArgumentParser(
        prog="python -m jobs.report", description="Rebuild the report page of a packed dataset from what is published."
    )
    parser.add_argument("dataset", help="owner/name on the Hub, or a folder")
    parser.add_argument("--revision", help="branch, tag or commit; default main")
    parser.add_argument("--out", default="report.html", help="file to write (%(default)s)")
    parser.add_argument(
        "--tokens-per-second", type=int, default=run.TOKENS_PER_SECOND, metavar="N",
        help="what one GPU trains on in a second, for GPU-hours (%(default)s)",
    )  # fmt: skip
    args = parser.parse_args(argv)
    try:
        if args.tokens_per_second < 1:
            raise ValueError(f"--tokens-per-second: {args.tokens_per_second} is refused: must be at least 1")
        report, manifests, drawn = rebuild(open_packed(args.dataset, args.revision))
        Path(args.out).write_text(run.page(report, manifests, drawn, args.tokens_per_second), encoding="utf-8")
    except UNREADABLE as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 1
    print(as_text(report.dump()))
    print(f"page         {Path(args.out).resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
