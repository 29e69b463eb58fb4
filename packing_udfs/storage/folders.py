"""What is a folder and what a repository, and a folder's file system."""

import fsspec


def is_folder(repo: str) -> bool:
    """Whether a `repo` names a folder and not a repository on the Hub: an absolute path, or a URL such as s3://…."""
    return repo.startswith("/") or "://" in repo


def open_folder(folder: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """fsspec's file system for a folder, and the folder's name there. Raises ValueError for one that it lacks."""
    try:
        return fsspec.core.url_to_fs(folder)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{folder} cannot be opened: {error}") from None
