"""The command `packing-udfs`, and the entry point of a Databricks wheel task: `packing-udfs pack --config job.yaml`.

Each command is the `main` of a module of the same name, which `python -m jobs.pack` runs too. `main` here exits when a
command fails, because a wheel task ignores the returned code.
"""

import importlib
import sys

from jobs.installed import check_or_exit, version

__all__ = ["COMMANDS", "main"]

COMMANDS = {
    "pack": "pack datasets of images and chat turns into training data",
    "plan": "what to expect of a job before it runs",
    "compare": "what packing would do to your data, beside padding",
    "inspect": "print and draw one pack",
    "validate": "check a packed dataset against contract, manifest, ledger and hashes",
    "takedown": "take samples out of a packed dataset",
    "report": "the page of a packed dataset, rebuilt from what is published",
}


def main(argv: list[str] | None = None) -> None:
    """Run a command with its arguments; those of the process by default."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name == "--version":
        print(f"packing-udfs {version('packing-udfs')}")
        return
    if name in ("-h", "--help"):
        print(_usage())
        return
    if name not in COMMANDS:
        print(f"error: no command {name!r}\n{_usage()}", file=sys.stderr)
        sys.exit(2)
    check_or_exit()
    code = importlib.import_module(f"jobs.{name}").main(arguments)
    if code:
        sys.exit(code)


def _usage() -> str:
    lines = [f"  {name:<10}{text}" for name, text in COMMANDS.items()]
    return "\n".join(["usage: packing-udfs COMMAND …, with --help behind it for what it takes", *lines])
