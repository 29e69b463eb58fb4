"""A Hugging Face Hub for one machine: the offline stand-in for the real one.

The unmodified huggingface_hub, hf_xet, datasets and pyspark_huggingface use it over HTTP on loopback. In production
only HF_ENDPOINT and HF_TOKEN change.

    with LocalHub(root) as hub:                         in a test or a local run
    python -m jobs.local_hub ROOT --port 8765           on its own

Nothing here imports huggingface_hub, which reads its environment at import: `LocalHub.environment` must come first.
Not answered: `datasets-server` look-ups, searches, moving and squashing, copies of LFS files between repositories,
buckets, spaces' runtimes, collections, LFS multipart.
"""

from .backend import DEFAULT_TOKEN
from .faults import Fault
from .hub import PORT, LocalHub
from .request_log import RequestLog, RequestRecord

__all__ = ["DEFAULT_TOKEN", "PORT", "Fault", "LocalHub", "RequestLog", "RequestRecord"]
