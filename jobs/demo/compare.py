"""The comparison page of the demo's source, on the embedded Hub: python -m jobs.demo.compare [OPTION …]

Options are those of `jobs.compare`, but for --config. The Hub is the one of `make run`; the source is uploaded to it
when it is not there yet.
"""

import os
import sys

from jobs.demo.__main__ import DEMO, ROOT, SOURCE, upload_source
from jobs.local_hub import LocalHub


def main(options: list[str]) -> int:
    """Compare on the demo; returns the exit code."""
    if {"-h", "--help"} & set(options):
        from jobs import compare

        return compare.main(["--help"])  # which exits, with no Hub made
    with LocalHub(ROOT / ".local_hub") as hub:
        os.environ |= hub.environment()  # before huggingface_hub is imported and before the JVM starts
        from huggingface_hub import HfApi

        from jobs import compare
        from jobs.shards.session import get_session

        spark = get_session()
        if not HfApi().file_exists(SOURCE, "README.md", repo_type="dataset"):  # it goes there last
            upload_source()
        config = ["--config", str(ROOT / "conf" / "jobs" / "demo.yaml"), f"processor.path={DEMO}/processor"]
        code = compare.main([*config, *options], spark)
        spark.stop()
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:  # the folder's Hub is being served by another process
        sys.exit(f"error: {error}")
