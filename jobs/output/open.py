"""The output that a configuration names."""

from jobs.output import hub_repository
from jobs.output.folder import Folder
from jobs.output.interface import Output
from packing_udfs.config import Config
from packing_udfs.storage.folders import is_folder


def open_output(config: Config) -> Output:
    """Where packs go."""
    fields = config.output
    if is_folder(fields.repo):
        return Folder(fields.repo)
    return hub_repository.Repository(
        fields.repo, fields.retry_seconds, fields.max_operations_per_commit, fields.checkpoint_seconds
    )
