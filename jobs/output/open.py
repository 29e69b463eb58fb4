"""The output that a configuration names."""

from jobs.output.folder import Folder, FolderDraft
from jobs.output.hub_draft import HubDraft
from jobs.output.hub_repository import Repository
from jobs.output.interface import Head, MovedError
from packing_udfs.config import Config
from packing_udfs.storage.folders import is_folder

__all__ = ["Draft", "Output", "create_output", "open_output"]

Output = Folder | Repository
Draft = FolderDraft | HubDraft


def open_output(config: Config) -> Output:
    """Where the packs go: a folder, or a repository on the Hub."""
    fields = config.output
    if is_folder(fields.repo):
        return Folder(fields.repo)
    return Repository(fields.repo, fields.retry_seconds, fields.max_operations_per_commit, fields.checkpoint_seconds)


def create_output(config: Config, output: Output, head: Head) -> Head:
    """Make the output unless it exists, and return what it holds. It was at `head` when the run was planned.

    Raises OutputError when it cannot be written to, MovedError when somebody wrote to it since.
    """
    made = output.create(config.output.private)
    if made.commit != head.commit and not (head.commit is None and made.is_new):
        raise MovedError(config.output.repo, head.commit)
    return made
