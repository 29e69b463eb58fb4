"""What the command lines share: their parsers, their log, and how they end with an error."""

import argparse
import logging
import sys

from packing_udfs.config_file import describe

__all__ = ["add_dataset", "config_parser", "fail", "log_to_stderr", "new_parser"]


def new_parser(name: str, description: str, **options) -> argparse.ArgumentParser:
    """The parser of `python -m jobs.{name}`. `options`: as argparse takes them."""
    return argparse.ArgumentParser(prog=f"python -m jobs.{name}", description=description, **options)


def config_parser(name: str, description: str) -> argparse.ArgumentParser:
    """A parser of --config and `key=value` overrides, whose help lists the fields of the configuration."""
    same = "" if name == "pack" else ", as in jobs.pack"
    parser = new_parser(
        name,
        description,
        epilog=f"Fields of the configuration{same}:\n" + "\n".join(describe()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, help="YAML file with the fields below")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="override a field, as in pack.seq_len=8192")
    return parser


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a packed dataset."""
    parser.add_argument("dataset", help="owner/name on the Hub, or a folder")
    parser.add_argument("--revision", help="branch, tag or commit; default main")


def log_to_stderr() -> None:
    """Print log messages with their level and origin."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")


def fail(message: object) -> int:
    """Print an error and return the exit code 1."""
    print(f"error: {message}", file=sys.stderr)
    return 1
