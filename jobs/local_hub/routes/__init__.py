"""The Hub's HTTP API: one module per topic, and here all routes in the order in which they are tried."""

from . import cards, contents, discussions, files, repo_admin, xet
from .routing import Route

__all__ = ["find"]

_MODULES = (repo_admin, files, cards, discussions, contents, xet)
_ROUTES = [route for module in _MODULES for route in module.routes]


def find(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route for a request and its decoded parameters, None where there is none."""
    for route in _ROUTES:
        parameters = route.match(method, path)
        if parameters is not None:
            return route, parameters
    return None
