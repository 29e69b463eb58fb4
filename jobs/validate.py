"""`python -m jobs.validate`: holds a published dataset to its contract."""

import sys

from jobs.command import add_dataset, fail, new_parser
from jobs.output.retries import one_line
from jobs.published.check_dataset import validate
from jobs.published.dataset import UNREADABLE, open_packed

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code: 0 for a sound dataset, 1 for findings or an unreadable dataset."""
    parser = new_parser("validate", "Check a packed dataset against contract, manifest, ledger and hashes.")
    add_dataset(parser)
    parser.add_argument("--processor", help="processor it is packed for: counts images' tokens and vision cost again")
    parser.add_argument("--decode", action="store_true", help="decode every image; default: read its header")
    args = parser.parse_args(argv)
    num_findings = 0
    try:
        packed = open_packed(args.dataset, args.revision)
        for finding in validate(packed, args.processor, decodes=args.decode):
            print(finding)
            num_findings += 1
    except UNREADABLE as error:
        return fail(one_line(error))
    num_bytes = sum(packed.paths.values())
    print(f"{num_findings or 'no'} findings in {len(packed.paths):,} files, {num_bytes:,} bytes, of {packed.name}")
    return 1 if num_findings else 0


if __name__ == "__main__":
    sys.exit(main())
