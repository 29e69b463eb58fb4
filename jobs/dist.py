"""`python -m jobs.dist`: the archive that Spark's workers unpack."""

import sys
from pathlib import Path

from jobs.cluster.dist import DistError, build
from jobs.command import fail, new_parser

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = new_parser("dist", "Build the archive for Spark's workers.")
    parser.add_argument("path", type=Path, help="archive to write, as in dist/packing-env.tar.gz")
    parser.add_argument(
        "--with", dest="extra_packages", action="append", default=[], metavar="PACKAGE",
        help="one more installed package, as in av for sources with videos; may be given again",
    )  # fmt: skip
    args = parser.parse_args(argv)
    try:
        names = build(args.path, args.extra_packages)
    except DistError as error:
        return fail(error)
    print(f"{args.path}: {len(names)} packages, {args.path.stat().st_size >> 20} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
