"""A page for people: what is in a repository, with links to its files, at the address where the Hub shows it."""

from html import escape
from typing import Any
from urllib.parse import quote

from .routing import Answer, Call, route

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title><style>
body {{ font: 15px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
td {{ padding: 0 1.5rem 0 0 }} td + td {{ text-align: right }}
pre {{ white-space: pre-wrap; background: #f5f5f5; padding: 1rem }}
</style></head><body>
<h1>{name}</h1>
<p>{num_files} files at <code>{commit}</code>, {date}, on a Hub of this machine</p>
<table>{rows}</table>
{card}
</body></html>
"""


@route("GET", "/{kind}/{repo}")
def page(call: Call, kind: str, repo: str) -> Answer:
    """The files of `main`, and the card as it is written. Needs nothing from elsewhere."""
    found = call.repo(kind, repo)
    commit = found.commit("main")
    rows = [
        f'<tr><td><a href="/{kind}/{quote(found.id)}/resolve/main/{quote(path)}">{escape(path)}</a></td>'
        f"<td>{entry['size']:,} bytes</td></tr>\n"
        for path, entry in commit["files"].items()
    ]
    card = _card(call, commit["files"])
    text = _PAGE.format(
        name=escape(found.id),
        num_files=f"{len(rows):,}",
        commit=commit["oid"][:12],
        date=escape(str(commit["date"])),
        rows="".join(rows),
        card=f"<h2>README.md</h2>\n<pre>{escape(card)}</pre>" if card else "",
    )
    return Answer(text.encode(), headers=[("Content-Type", "text/html; charset=utf-8")])


def _card(call: Call, files: dict[str, dict[str, Any]]) -> str:
    readme = files.get("README.md")
    if readme is None or "lfs" in readme:
        return ""
    return call.hub.blobs.path(readme["oid"]).read_text("utf-8", "replace")
