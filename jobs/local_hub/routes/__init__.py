"""The Hub's HTTP API: one module per topic, and here all routes in the order in which they are tried."""

from . import cards, contents, discussions, files, pages, repo_admin, xet
from .routing import Route

__all__ = ["ROUTES", "find"]

ROUTES = [
    *repo_admin.routes,
    *cards.routes,
    *files.routes,
    *pages.routes,
    *discussions.routes,
    *contents.routes,
    *xet.routes,
]


def find(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route for a request and its decoded parameters, None where there is none."""
    for route in ROUTES:
        parameters = route.match(method, path)
        if parameters is not None:
            return route, parameters
    return None
