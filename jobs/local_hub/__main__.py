"""Serve a Hub until interrupted: `python -m jobs.local_hub ROOT [--port 8765] [--no-xet] [--log FILE]`.

Prints the lines to paste into a client's shell. The token is this process's HF_TOKEN, or a default that is no secret.
It is never an argument, because process lists show arguments.
"""

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path

from .backend import DEFAULT_TOKEN
from .hub import PORT, LocalHub


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m jobs.local_hub", description="Serve a local Hub.")
    parser.add_argument("root", type=Path, help="folder that holds the Hub; made if missing")
    parser.add_argument("--port", type=int, default=PORT, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--no-xet", action="store_true", help="store large files by LFS only")
    parser.add_argument("--log", type=Path, help="append a JSON line per request to this file")
    arguments = parser.parse_args()
    token = os.environ.get("HF_TOKEN") or DEFAULT_TOKEN
    hub = LocalHub(arguments.root, port=arguments.port, xet=not arguments.no_xet, token=token, log_path=arguments.log)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        hub.start()
    except ValueError as error:  # another Hub has the root
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: port {arguments.port}: {error.strerror}; choose another with --port")
    try:
        print("# A Hub on this machine. Paste these lines where its clients run; stop it with Ctrl-C.", flush=True)
        print(f"# A browser shows what a dataset holds: {hub.url}/datasets/OWNER/NAME", flush=True)
        for name, value in hub.environment().items():
            if name != "HF_TOKEN" or token == DEFAULT_TOKEN:
                print(f"export {name}={shlex.quote(value)}", flush=True)
        hub.wait()
    except KeyboardInterrupt:
        hub.stop()


if __name__ == "__main__":
    main()
