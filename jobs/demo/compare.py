"""The comparison page of the demo's source, on the embedded Hub: python -m jobs.demo.compare [OPTION …]

Options are those of `jobs.compare`, but for --config. The Hub is the one of `make run`. The source is uploaded to it
when it is not there yet.
"""

import os
import sys

from jobs.command import fail
from jobs.demo.start import JOB, ROOT, SOURCE, upload_source
from jobs.local_hub import LocalHub

__all__ = ["main"]


def main(options: list[str]) -> int:
    """Compare on the demo; returns the exit code."""
    if {"-h", "--help"} & set(options):
        return _compare(["--help"])  # it exits, and no Hub is made
    try:
        hub = LocalHub(ROOT / ".local_hub").start()
    except ValueError as error:  # another process serves the folder's Hub
        return fail(error)
    try:
        os.environ |= hub.environment()  # before huggingface_hub is imported and before the JVM starts
        from huggingface_hub import HfApi

        if not HfApi().file_exists(SOURCE, "README.md", repo_type="dataset"):  # the card is uploaded last
            upload_source()
        return _compare([*JOB, *options])
    finally:
        hub.stop()


def _compare(arguments: list[str]) -> int:
    from jobs.compare import main as compare

    return compare(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
