"""`python -m jobs.inspect`: one pack of a published dataset."""

import sys
from collections.abc import Callable
from pathlib import Path

from jobs.command import add_dataset, fail, new_parser
from jobs.output.retries import one_line
from jobs.published.dataset import UNREADABLE, Packed, PackedError, open_packed
from jobs.published.one_pack import as_text, describe, find_sample, page
from packing_udfs.encode.processor import ProcessorError, fetch_named
from packing_udfs.manifest import Manifest
from packing_udfs.published.shape import require_manifest

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = new_parser("inspect", "Print and draw one pack.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--pack", type=int, help="number of a pack in its split, from 0")
    which.add_argument("--sample", type=int, metavar="ID", help="a sample's id: the first pack that holds it")
    parser.add_argument("--split", default="train", help="split to look into (%(default)s)")
    add_dataset(parser)
    parser.add_argument("--processor", help="the processor it is packed for, where the named one is out of reach")
    parser.add_argument("--out", help="a page to write, as in pack.html")
    args = parser.parse_args(argv)
    try:
        packed = open_packed(args.dataset, args.revision)
        found = packed.manifest(args.split)
        require_manifest(found, args.split, packed.name)
        number = args.pack if args.sample is None else _first_pack(packed, found, args.sample)
        pack = describe(packed, found, number, _decoder(found, args.processor))
        if args.out:
            Path(args.out).write_text(page(pack, f"{args.dataset}, {args.split}"), encoding="utf-8")
    except UNREADABLE as error:
        return fail(one_line(error))
    print(as_text(pack, colours=sys.stdout.isatty()))
    if args.out:
        print(f"\npage         {Path(args.out).resolve()}")
    return 0


def _first_pack(packed: Packed, found: Manifest, sample_id: int) -> int:
    numbers = find_sample(packed, found, sample_id)
    if not numbers:
        raise PackedError(f"--sample: no pack of {packed.name} {found.info['split']} holds {sample_id}")
    if len(numbers) > 1:
        print(f"sample {sample_id} is in packs {', '.join(map(str, numbers))}\n")
    return numbers[0]


def _decoder(found: Manifest, processor: str | None) -> Callable[[list[int]], str] | None:
    """Token ids to text by the dataset's own processor; None, with a message, when it is out of reach."""
    try:
        files = fetch_named(found.info["processor"], processor)
    except ProcessorError as error:
        if processor:
            raise
        print(f"text stays token ids: {error}", file=sys.stderr)
        return None
    return files.load().tokenizer.decode


if __name__ == "__main__":
    sys.exit(main())
