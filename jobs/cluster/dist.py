"""An archive for Spark workers that have a Python and none of our packages: what `--archives` unpacks on each executor.

    python -m jobs.dist dist/packing-env.tar.gz [--with av --with torchvision]

    env/bin/python3     the worker's own Python of the same minor version, with env/lib first on its path
    env/lib/…           this project and what the job imports, as installed here

The packages are copied from the environment that runs this, so workers compute with the driver's very versions (those
of constraints.txt after `make setup`), and nothing is downloaded: about 15 s. pyspark stays out, because it comes with
the cluster; torch too, because the job has no use for it. Rejected: venv-pack2 packs whole environments, 2 GB here,
and refuses the editable install of a checkout; conda-pack needs conda; a PEX unpacks into the worker's home folder.
"""

import io
import sys
import tarfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT, EXTRA = "packing-udfs", "spark"


CLUSTERS_OWN = frozenset({"pyspark", "py4j"})


FOLDERS = ("jobs", "packing_udfs")


LEFT_OUT = frozenset({"tests"})  # a third of pandas


_PYTHON = f"""#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd) || exit
PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}" exec python{sys.version_info[0]}.{sys.version_info[1]} "$@"
"""


class DistError(ValueError):
    """A package that cannot be put into the archive; the message says what to install."""


def build(path: Path, extra_packages: Iterable[str] = ()) -> list[str]:
    """Write the archive and return the names of the packages in it, sorted.

    `extra_packages`: names of more installed packages, which come with what they need. Raises DistError for one that
    is not installed.
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
    """Add a requirement's distribution and all that it needs, as its metadata says."""
    name = canonicalize_name(wanted.name)
    if name in CLUSTERS_OWN or (name in found and not wanted.extras):
        return
    try:
        found[name] = distribution(name)
    except PackageNotFoundError:
        raise DistError(f"{wanted.name} is not installed here; run `make setup` or pip install it") from None
    for text in found[name].requires or ():
        needed = Requirement(text)
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
        is_ours = name != PROJECT or ".dist-info" in file.parts[0]
        if is_ours and file.parts[0] != ".." and not LEFT_OUT & set(file.parts) and file.locate().is_file():
            yield Path(file.locate()), file.as_posix()
