"""A page for people, at the Hub's address of a repository: its files as links, and its card."""

from html import escape
from urllib.parse import quote

from jobs.local_hub.store.repos import Repo

from .cards import card_text
from .routing import Answer, Call, Routes

__all__ = ["routes"]

routes = Routes()

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
