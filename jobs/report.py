"""`python -m jobs.report`: the report page of a published dataset, made again."""

import sys
from pathlib import Path

from jobs.command import add_dataset, fail, new_parser
from jobs.output.retries import one_line
from jobs.pages import run
from jobs.published.dataset import UNREADABLE, open_packed
from jobs.published.rebuild_report import rebuild
from jobs.revision.figures import as_text

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = new_parser("report", "Rebuild the report page of a packed dataset from what is published.")
    add_dataset(parser)
    parser.add_argument("--out", default="report.html", help="file to write (%(default)s)")
    parser.add_argument(
        "--tokens-per-second", type=int, default=run.TOKENS_PER_SECOND, metavar="N",
        help="what one GPU trains on in a second, for GPU-hours (%(default)s)",
    )  # fmt: skip
    args = parser.parse_args(argv)
    if args.tokens_per_second < 1:
        return fail(f"--tokens-per-second: {args.tokens_per_second} is refused: must be at least 1")
    try:
        report, manifests, drawn = rebuild(open_packed(args.dataset, args.revision))
        Path(args.out).write_text(run.page(report, manifests, drawn, args.tokens_per_second), encoding="utf-8")
    except UNREADABLE as error:
        return fail(one_line(error))
    print(as_text(report.dump()))
    print(f"page         {Path(args.out).resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
