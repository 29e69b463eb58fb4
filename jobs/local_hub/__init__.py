"""A Hugging Face Hub for one machine: the offline stand-in for the real one.

The unmodified huggingface_hub, hf_xet, datasets and pyspark_huggingface read from it and write to it over HTTP on
loopback. Setting HF_ENDPOINT and HF_TOKEN to the real Hub's is the only change for production.

    with LocalHub(root) as hub:                         in a test or a local run
    python -m jobs.local_hub ROOT --port 8765           on its own

    hub.py           `LocalHub`                     request_log.py   a record per request
    server.py        HTTP                           routing.py       routes, calls, answers
    *_routes.py      the API, by topic
    repos.py         references and commits         faults.py        failures on order, for tests
    commits.py       applying a commit              discussions.py   pull requests
    blobs.py         LFS and regular contents       cas.py, xorbs.py, shards.py   Xet
    disk.py          atomic, durable files          errors.py        refusals

Not answered: `datasets-server` look-ups, searches, moving and squashing, copies of LFS files between repositories,
buckets, spaces' runtimes, collections, LFS multipart.
"""

from .faults import Fault
from .hub import DEFAULT_TOKEN, PORT, LocalHub
from .request_log import RequestLog, RequestRecord

__all__ = ["DEFAULT_TOKEN", "PORT", "Fault", "LocalHub", "RequestLog", "RequestRecord"]
