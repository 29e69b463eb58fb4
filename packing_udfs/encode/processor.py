"""A processor as bytes: fetched once at a pinned revision, named by a hash of its files, loaded wherever it is sent.

The driver and the workers must encode with the same files, and a worker may reach neither the driver's disk nor the
Hub. So the few files are read once and sent along. Their SHA-256 goes into the manifest, where the reader checks it.
Code in a processor's repository is never run.
"""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from packing_udfs.storage.hub_errors import one_line

__all__ = ["ProcessorError", "ProcessorFiles", "fetch", "fetch_named"]

_PATTERNS = ("*.json", "*.jinja", "*.txt", "*.model")
_REQUIRED = ("processor_config.json", "preprocessor_config.json")
_MAX_BYTES = 256 << 20


class ProcessorError(ValueError):
    """A processor that cannot be found or used; the message names its path and what to do."""


@dataclass(frozen=True)
class ProcessorFiles:
    """The files of a processor: `name` is the path or repository asked for, `revision` its commit (None if local)."""

    name: str
    revision: str | None
    files: tuple[tuple[str, bytes], ...]

    @property
    def published_name(self) -> str:
        """Its name in published files. The path to a folder is left out: it differs from one machine to the next."""
        return self.name if self.revision else os.path.basename(os.path.abspath(self.name))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over names and contents."""
        digest = hashlib.sha256()
        for name, data in self.files:
            digest.update(f"{name}\0{len(data)}\0".encode())
            digest.update(data)
        return digest.hexdigest()

    def load(self):
        """The processor. Raises ProcessorError when transformers cannot build it without running foreign code."""
        from transformers import AutoProcessor

        with tempfile.TemporaryDirectory(prefix="processor-") as folder:
            for name, data in self.files:
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            try:
                processor = AutoProcessor.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
            except (OSError, ValueError, ImportError, KeyError, AttributeError) as error:
                message = _explain(" ".join(str(error).replace(folder, self.name).split()))
                raise ProcessorError(f"processor.path: {self.name} cannot be loaded: {message}") from None
        if not hasattr(processor, "image_processor"):
            raise ProcessorError(f"processor.path: {self.name} is a {type(processor).__name__}, which takes no images")
        return processor


def _explain(message: str) -> str:
    """What transformers says, or what to do where that is known."""
    if "torchvision" in message.lower() and find_spec("torchvision") is None:
        return (
            f"{message.split()[0]} of this model needs torchvision, even where there is no video, and it is not "
            "installed; on the driver and the workers, pip install the torchvision of your torch"
        )
    if "trust_remote_code" in message:
        return "it has code of its own (auto_map), which is never run; use one whose class transformers has"
    return message


def fetch(path: str, revision: str = "main") -> ProcessorFiles:
    """Read a processor's files from a local directory, or from a Hub repository at `revision`.

    Raises ProcessorError when there is no such directory or repository, or it has no processor files.
    """
    folder, commit = (Path(path), None) if Path(path).is_dir() else _download(path, revision)
    # Checked first, because a wrong directory may hold anything, and any amount of it.
    if not any((folder / name).is_file() for name in _REQUIRED):
        raise ProcessorError(f"processor.path: {path} has no {' or '.join(_REQUIRED)}")
    names = sorted({file.relative_to(folder).as_posix() for pattern in _PATTERNS for file in folder.rglob(pattern)})
    names = [name for name in names if "/." not in f"/{name}"]  # no hidden file or folder
    num_bytes = sum((folder / name).stat().st_size for name in names)
    if num_bytes > _MAX_BYTES:
        raise ProcessorError(f"processor.path: {path} has {num_bytes} bytes of configuration, more than {_MAX_BYTES}")
    return ProcessorFiles(path, commit, tuple((name, (folder / name).read_bytes()) for name in names))


def fetch_named(named: dict, path: str | None = None) -> ProcessorFiles:
    """The processor that a manifest names (its info's `processor`), or the copy of it at `path`.

    Raises ProcessorError when it cannot be reached, or when a copy has other files than the named one.
    """
    is_folder = named["revision"] is None
    if path is None and is_folder and not Path(named["name"]).is_dir():
        raise ProcessorError(
            f"the dataset was packed with a folder {named['name']!r}, whose place is not published: name it, or a copy "
            f"with the fingerprint {named['fingerprint']}, with --processor"
        )
    found = fetch(path or named["name"], "main" if path or is_folder else named["revision"])
    if found.fingerprint != named["fingerprint"]:
        at = "" if is_folder else f" at {named['revision']}"
        raise ProcessorError(
            f"--processor: {found.name} has other files than {named['name']}{at}, for which this is packed; name a copy"
        )
    return found


def _download(path: str, revision: str) -> tuple[Path, str | None]:
    """The folder that holds a repository's files, and the commit."""
    import httpx2
    from huggingface_hub import HfApi, constants, errors, snapshot_download

    try:
        commit = HfApi().model_info(path, revision=revision).sha
        return Path(snapshot_download(path, revision=commit, allow_patterns=list(_PATTERNS))), commit
    except errors.HFValidationError:
        problem = f"path: {path!r} is neither a directory nor a repository owner/name"
    except errors.GatedRepoError:
        where = f"{constants.ENDPOINT}/{path}"
        problem = f"path: {path} is gated: ask for access at {where}, with the account whose token is in HF_TOKEN"
    except errors.RevisionNotFoundError:
        problem = f"revision: {path} has no branch, tag or commit {revision!r}"
    except errors.RepositoryNotFoundError:
        where = f"no model repository at {constants.ENDPOINT} that HF_TOKEN may read"
        problem = f"path: {path!r} is no directory, and {where}"
    except (httpx2.HTTPError, OSError) as error:
        problem = f"path: {path!r} is no directory, and {constants.ENDPOINT} does not give it: {one_line(error)}"
    raise ProcessorError(f"processor.{problem}")
