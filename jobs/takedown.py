"""`python -m jobs.takedown`: takes samples out of a published dataset."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs.command import fail, log_to_stderr, new_parser
from jobs.output.interface import OutputError, PublishError
from jobs.published.take_out import take_down
from jobs.published.takedown_proof import NUM_SHOWN, SharedImagesError, some_of
from jobs.published.wanted import TakedownError, Wanted, ids_of, where_of
from packing_udfs.storage.folders import is_folder

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = new_parser("takedown", "Take samples out of a packed dataset.")
    parser.add_argument("--repo", required=True, help="the packed dataset, owner/name or a folder")
    parser.add_argument("--ids", help="sample_ids, with commas between them; they may be negative: --ids -77,12")
    parser.add_argument("--ids-file", metavar="FILE", help="a file of sample_ids, one a line")
    parser.add_argument(
        "--where", action="append", nargs="+", metavar="NAME=VALUE", default=[],
        help="samples by where they come from, as `jobs.inspect` shows it: source=NAME, file=PATH, row=NUMBER, or "
        "several of them; may be given again",
    )  # fmt: skip
    parser.add_argument("--processor", help="where the processor is, if not where the manifest says")
    args = parser.parse_args(_joined(sys.argv[1:] if argv is None else argv))
    if args.ids is None and args.ids_file is None and not args.where:
        parser.error("which samples? one of --ids, --ids-file and --where is needed; what several name is all taken")
    log_to_stderr()
    try:
        done = take_down(args.repo, _wanted(args), processor=args.processor)
    except (ValueError, OSError, PublishError, OutputError) as error:
        if isinstance(error, SharedImagesError) and len(error.ids) > NUM_SHOWN:
            print("\n".join(map(str, error.ids)))
        return fail(error)
    if some := done.not_there:
        print(f"not there    {len(some):,} of the ids given: {some_of(some)}")
    print(
        f"taken down   {done.num_samples:,} samples with {done.num_images_taken_down:,} images, "
        f"from {done.num_files:,} files\n"
        f"proof        none of {done.num_images_compared:,} images of the new revision is one of them\n"
        f"published    {args.repo} at {done.commit[:12]}"
    )
    if is_folder(args.repo):
        print("old          files that held them are removed; copies elsewhere are not reached")
    else:
        print(
            f"old          {done.previous_commit[:12]} and the revisions before it keep them until the history is "
            "squashed, which cannot be undone:\n"
            f"             HfApi().super_squash_history({args.repo!r}, repo_type='dataset')\n             "
            "and pull requests, branches and tags that hold them are deleted; copies elsewhere are not reached"
        )
    return 0


def _joined(argv: Sequence[str]) -> list[str]:
    """`--ids -77,12` as `--ids=-77,12`: argparse takes a word like `-77,12` for an option."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] == "--ids" and re.match(r"-\d", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _wanted(args: argparse.Namespace) -> Wanted:
    ids = set()
    if args.ids is not None:
        ids |= ids_of("--ids", args.ids)
    if args.ids_file is not None:
        ids |= ids_of("--ids-file", _read(args.ids_file))
    return Wanted(frozenset(ids), tuple(map(where_of, args.where)))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TakedownError(f"--ids-file: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TakedownError(f"--ids-file: {path} is not text in UTF-8") from None


if __name__ == "__main__":
    sys.exit(main())
