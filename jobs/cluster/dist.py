"""An archive for Spark workers that have a Python and none of our packages; `--archives` unpacks it on each executor.

    python -m jobs.dist dist/packing-env.tar.gz [--with av --with torchvision]

    env/bin/python3     the worker's own Python of the same minor version, with env/lib first on its path
    env/lib/…           this project and what the job imports, as installed here

The packages are copied from the environment that runs this, so workers have the driver's exact versions (those of
constraints.txt after `make setup`), and nothing is downloaded: about 15 s. pyspark is left out, because it comes with
the cluster, and torch, because the job does not use it. Rejected: venv-pack2 packs whole environments, 2 GB here, and
refuses the editable install of a checkout; conda-pack needs conda; a PEX unpacks into the worker's home folder.
"""

import io
import sys
import tarfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["DistError", "build"]

PROJECT, EXTRA = "packing-udfs", "spark"
FOLDERS = ("jobs", "packing_udfs")
OF_CLUSTER = frozenset({"pyspark", "py4j"})
LEFT_OUT = frozenset({"tests"})  # a third of pandas
_PYTHON = f"""#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd) || exit
PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}" exec python{sys.version_info[0]}.{sys.version_info[1]} "$@"
"""


class DistError(ValueError):
    """A package that cannot be put into the archive; the message says what to install."""


def build(path: Path, extra_packages: Iterable[str] = ()) -> list[str]:
    """Write the archive and return the names of its packages, sorted.

    `extra_packages`: more installed packages, added with what they need. Raises DistError for a missing one.
    """
    found: dict[str, Distribution] = {}
    for wanted in (f"{PROJECT}[{EXTRA}]", *extra_packages):
        _collect(Requirement(wanted), found)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    with tarfile.open(draft, "w:gz", compresslevel=1) as archive:
        info = tarfile.TarInfo("bin/python3")
        info.mode, info.size = 0o755, len(_PYTHON)
        archive.addfile(info, io.BytesIO(_PYTHON.encode()))
        for name in sorted(found):
            for file, inside in _files(name, found[name]):
                archive.add(file, f"lib/{inside}", recursive=False)
    draft.replace(path)
    return sorted(found)


def _collect(wanted: Requirement, found: dict[str, Distribution]) -> None:
    """Add a requirement's distribution and everything that it needs, as its metadata says."""
    name = canonicalize_name(wanted.name)
    if name in OF_CLUSTER or (name in found and not wanted.extras):
        return
    try:
        found[name] = distribution(name)
    except PackageNotFoundError:
        raise DistError(f"{wanted.name} is not installed here; run `make setup` or pip install it") from None
    for needed in map(Requirement, found[name].requires or ()):
        if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in (*wanted.extras, "")):
            _collect(needed, found)


def _files(name: str, of: Distribution) -> Iterator[tuple[Path, str]]:
    """(file here, its place below lib/) of a distribution; of the project itself the sources, installed or not."""
    root = Path(__file__).resolve().parents[2]
    if name == PROJECT:
        for folder in FOLDERS:
            for file in sorted((root / folder).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    yield file, file.relative_to(root).as_posix()
    for file in of.files or ():
        is_wanted = name != PROJECT or ".dist-info" in file.parts[0]
        here = Path(str(file.locate()))
        if is_wanted and file.parts[0] != ".." and not LEFT_OUT & set(file.parts) and here.is_file():
            yield here, file.as_posix()
