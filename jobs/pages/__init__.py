"""Pages that open from the file system: one HTML file each, with its figures inside it and nothing to fetch.

Templates (`*.html.jinja`) extend `base.html.jinja`, which has the style, and share `macros.html.jinja`. `drawing` has
the figures and `packs` the strips of packs; `comparison` fills the page of `jobs.compare`, `run` that of `jobs.pack`
and `jobs.report`; `pack.html.jinja` is that of `jobs.inspect`. Rejected: a page that draws in the browser (a library to
ship or fetch, and nothing to see in a mail or a ticket).
"""

import base64
from pathlib import Path

import jinja2


def render(template: str, **values) -> str:
    """The page of a template in this folder; all values are escaped, an unknown one is an error."""
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
        "jpeg": jpeg_uri,
    }
    return environment.get_template(template).render(**values)


def share(value: float | None) -> str:
    """A fraction in percent, "–" for none: share(0.1234) == "12.3 %"."""
    return "–" if value is None else f"{value:.1%}".replace("%", "\u202f%")


def hours(value: float) -> str:
    """Hours with as many places as say something: 1,234 and 12.3 and 0.0123."""
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 1 else 2 if abs(value) >= 0.1 else 4
    return f"{value:,.{places}f}"


def jpeg_uri(data: bytes) -> str:
    """A JPEG as the value of a `src`."""
    return data_uri(data, "image/jpeg")


def data_uri(data: bytes, kind: str) -> str:
    """Bytes of a media type (`image/png`) as the value of a `src`."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
