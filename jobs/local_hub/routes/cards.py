"""Cards: the README.md of a repository and the YAML metadata at its head."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from jobs.local_hub.errors import HubError
from jobs.local_hub.store.blobs import Blobs
from jobs.local_hub.store.repo_state import FileEntry
from jobs.sources.licenses import ACCEPTED

from .routing import Answer, Call, Routes, json_answer

__all__ = ["card_data", "card_text", "routes"]

routes = Routes()

HEAD = re.compile(r"\ufeff?---\s*\n(.*?\n)??---\s*(\n|$)", re.S)


def card_text(blobs: Blobs, files: Mapping[str, FileEntry]) -> str:
    """The card as it is written; "" when there is none, or it is an LFS file."""
    readme = files.get("README.md")
    return "" if readme is None or readme.lfs else blobs.path(readme.oid).read_text("utf-8", "replace")


def card_data(text: str) -> dict[str, Any]:
    """The YAML between the first two lines of `---`, {} when there is none; HubError 400 if it is not a mapping."""
    head = HEAD.match(text)
    try:
        value = yaml.safe_load(head[1] or "") if head else None
    except yaml.YAMLError as error:
        raise HubError(400, f"README.md: its metadata is not YAML: {error}") from error
    if value is not None and not isinstance(value, dict):
        raise HubError(400, "README.md: its metadata is not a mapping")
    return value or {}


@routes.add("POST", "/api/validate-yaml")
def validate_yaml(call: Call) -> Answer:
    try:
        found = card_data(str(call.json().get("content", "")))
        names = found.get("license") or []
        if odd := [name for name in (names if isinstance(names, list) else [names]) if name not in ACCEPTED]:
            raise HubError(400, f'"license" must be one of [{", ".join(sorted(ACCEPTED))}, array], not {odd[0]}')
    except HubError as error:
        return json_answer({"error": str(error), "errors": [{"message": str(error)}], "warnings": []}, 400)
    warning = {"message": "empty or missing yaml metadata in repo card"}
    return json_answer({"errors": [], "warnings": [] if found else [warning]})
