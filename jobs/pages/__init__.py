"""Pages that open from the file system: one HTML file each, with its figures inside it and nothing to fetch.

Templates (`*.html.jinja`) extend `base.html.jinja`, which has the style, and share `macros.html.jinja`. `drawing` makes
the figures and `strips` the pictures of packs. `forecast.comparison_page` fills the page of `jobs.compare`, `run` that
of `jobs.pack` and `jobs.report`, `published.one_pack` that of `jobs.inspect`. Rejected: a page that draws in the
browser (it needs a library, and a mail or a ticket does not show it).
"""

import base64
from pathlib import Path

import jinja2

__all__ = ["data_uri", "render", "share"]


def render(template: str, **values) -> str:
    """The page of a template in this folder. All values are escaped; an unknown one is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": "{:,}".format,
        "share": share,
        "ratio": "{:.2f}".format,
        "hours": hours,
        "jpeg": lambda data: data_uri(data, "image/jpeg"),
    }
    return environment.get_template(template).render(**values)


def share(value: float | None) -> str:
    """A fraction in percent, "–" for none: share(0.1234) == "12.3 %"."""
    return "–" if value is None else f"{value:.1%}".replace("%", "\u202f%")


def hours(value: float) -> str:
    """Hours, the fewer the more places: 1,234 and 12.3 and 0.0123."""
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 1 else 2 if abs(value) >= 0.1 else 4
    return f"{value:,.{places}f}"


def data_uri(data: bytes, kind: str) -> str:
    """Bytes of a media type (`image/png`) as the value of a `src`."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
