"""Pages that open from the file system: one HTML file each, with its figures inside it and nothing to fetch.

Templates (`*.html.jinja`) extend `base.html.jinja`, which has the style and the macros they share; `drawing` has the
figures; `comparison` fills the page of `jobs.compare`. Rejected: a page that draws in the browser (a library to ship
or fetch, and nothing to see in a mail or a ticket).
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
    environment.filters |= {"count": "{:,}".format, "share": share, "ratio": "{:.2f}".format}
    return environment.get_template(template).render(**values)


def share(value: float | None) -> str:
    """A fraction in percent, "–" for none: share(0.1234) == "12.3 %"."""
    return "–" if value is None else f"{value:.1%}".replace("%", "\u202f%")


def data_uri(data: bytes, kind: str) -> str:
    """Bytes of a media type (`image/png`) as the value of a `src`."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
