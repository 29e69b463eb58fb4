"""`python -m jobs.dist`: the archive that Spark's workers unpack."""

import argparse
import sys
from pathlib import Path

from jobs.cluster.dist import DistError, build


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m jobs.dist", description="Build the archive for Spark's workers.")
    parser.add_argument("path", type=Path, help="archive to write, as in dist/packing-env.tar.gz")
    parser.add_argument(
        "--with", dest="extra_packages", action="append", default=[], metavar="PACKAGE",
        help="one more installed package, as in av for sources with videos; may be given again",
    )  # fmt: skip
    arguments = parser.parse_args()
    try:
        names = build(arguments.path, arguments.extra_packages)
    except DistError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.path}: {len(names)} packages, {arguments.path.stat().st_size >> 20} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
