"""What has to be installed for a job, checked before any of it is imported: one line in place of a traceback.

The bounds are those of the extra [spark] in pyproject.toml. Spark's own distribution may come without metadata, as
under spark-submit and on Databricks, so pyspark is asked itself. Cost: some ms. It imports nothing but pyspark.
"""

import importlib
import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version

DISTRIBUTION = "packing-udfs"


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


def check(extra: str = "spark") -> None:
    """Raises InstallationError when a package of an extra of this project is missing or too old."""
    for text in metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(text)
        if requirement.marker and requirement.marker.evaluate({"extra": extra}):
            _check(requirement, extra)


def _check(requirement: Requirement, extra: str) -> None:
    wanted = f"{requirement.name}{requirement.specifier}"
    try:
        found = version(requirement.name)
    except (metadata.PackageNotFoundError, ModuleNotFoundError):
        raise InstallationError(
            f"{requirement.name} is not installed: pip install 'packing-udfs[{extra}]', or '{wanted}' alone where the "
            "platform brings Spark; on a cluster, on the workers too"
        ) from None
    if not requirement.specifier.contains(Version(found).base_version):
        spark = "; Spark itself has to be 4.0 or newer (Databricks: runtime 17 or newer)"
        raise InstallationError(
            f"{requirement.name} {found} is too old: {wanted} is needed{spark if requirement.name == 'pyspark' else ''}"
        )


def check_or_exit(extra: str = "spark") -> None:
    """`check` for entry points: print the message as `error: …` and exit with 1."""
    try:
        check(extra)
    except InstallationError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
