"""The card of a repository (README.md), its YAML metadata, and a page for people that shows it."""

import re
from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import quote

import yaml

from jobs.local_hub.errors import HubError
from jobs.local_hub.store.blobs import Blobs
from jobs.local_hub.store.repo_state import FileEntry
from jobs.local_hub.store.repos import Repo
from jobs.sources.licenses import ACCEPTED

from .routing import Answer, Call, Routes, json_answer

__all__ = ["card_data", "card_text", "routes"]

routes = Routes()

HEAD = re.compile(r"\ufeff?---\s*\n(.*?\n)??---\s*(\n|$)", re.S)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title><style>
body {{ font: 15px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
td {{ padding: 0 1.5rem 0 0 }} td + td {{ text-align: right }}
pre {{ white-space: pre-wrap; background: #f5f5f5; padding: 1rem }}
</style></head><body>
<h1>{name}</h1>
<p>{num_files:,} files at <code>{commit}</code>, {date}, on a Hub of this machine</p>
<table>{rows}</table>
{card}
</body></html>
"""


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


@routes.add("GET", "/{kind}/{repo}")
def page(call: Call, repo: Repo) -> Answer:
    """The files of `main` and the card as it is written; the page loads nothing from elsewhere."""
    commit = repo.commit("main")
    rows = [
        f'<tr><td><a href="/{repo.kind}/{quote(repo.id)}/resolve/main/{quote(path)}">{escape(path)}</a></td>'
        f"<td>{entry.size:,} bytes</td></tr>\n"
        for path, entry in commit.files.items()
    ]
    card = card_text(call.hub.blobs, commit.files)
    text = _PAGE.format(
        name=escape(repo.id),
        num_files=len(rows),
        commit=commit.oid[:12],
        date=escape(commit.date),
        rows="".join(rows),
        card=f"<h2>README.md</h2>\n<pre>{escape(card)}</pre>" if card else "",
    )
    return Answer(text.encode(), headers=[("Content-Type", "text/html; charset=utf-8")])
