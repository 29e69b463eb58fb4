"""Check that a job's packages are installed before any is imported: one line instead of a traceback.

The bounds are those of the extra [spark] in pyproject.toml. Spark may come without a distribution's metadata, as under
spark-submit and on Databricks, so pyspark itself is asked for its version. Cost: some ms; it imports only pyspark.
"""

import importlib
import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version

__all__ = ["InstallationError", "check", "check_or_exit", "version"]


class InstallationError(RuntimeError):
    """A package that is missing or too old; the message says which and what to install."""


def version(name: str) -> str:
    """Version of an installed distribution. Raises PackageNotFoundError."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        if name != "pyspark":
            raise
        return importlib.import_module("pyspark").__version__


def check() -> None:
    """Raises InstallationError when a package of this project's extra [spark] is missing or too old."""
    for requirement in map(Requirement, metadata.requires("packing-udfs") or []):
        if requirement.marker and requirement.marker.evaluate({"extra": "spark"}):
            _check(requirement)


def _check(requirement: Requirement) -> None:
    wanted = f"{requirement.name}{requirement.specifier}"
    try:
        found = version(requirement.name)
    except (metadata.PackageNotFoundError, ModuleNotFoundError):
        raise InstallationError(
            f"{requirement.name} is not installed: pip install 'packing-udfs[spark]', or '{wanted}' alone where the "
            "platform brings Spark; on a cluster, on the workers too"
        ) from None
    if not requirement.specifier.contains(Version(found).base_version):
        spark = "; Spark itself has to be 4.0 or newer (Databricks: runtime 17 or newer)"
        raise InstallationError(
            f"{requirement.name} {found} is too old: {wanted} is needed{spark if requirement.name == 'pyspark' else ''}"
        )


def check_or_exit() -> None:
    """`check` for commands: print the message as `error: …` and exit with 1."""
    try:
        check()
    except InstallationError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
