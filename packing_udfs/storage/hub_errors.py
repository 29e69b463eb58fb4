"""Errors of the Hub's clients as one line that says what to check.

Their messages have line breaks and links to an encyclopedia of HTTP, and do not name HF_ENDPOINT and HF_TOKEN, by which
a user chooses the Hub and the account. Errors are recognised by their attributes, so this imports no client.
"""

import re
from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

__all__ = ["chain", "is_refused_here", "one_line"]


def one_line(error: BaseException) -> str:
    """An error's message in one line, with advice for a refused token and for a Hub that does not run."""
    text = " ".join(re.sub(r"For more information check: \S+", "", str(error)).split()) or type(error).__name__
    if getattr(getattr(error, "response", None), "status_code", None) == 401 and "HF_TOKEN" not in text:
        return f"it refuses the token in HF_TOKEN, or needs one there: {text}"
    if is_refused_here(error) and "HF_ENDPOINT" not in text:
        return f"{text}; HF_ENDPOINT is {_endpoint()}, where no Hub runs: start it (`make hub`), or name another"
    return text


def is_refused_here(error: BaseException) -> bool:
    """Whether the Hub's address is on this machine and nothing listens there: waiting does not start it."""
    host = urlsplit(_endpoint()).hostname or ""
    if not (host == "localhost" or (re.fullmatch(r"[\d.]+|.*:.*", host) and ip_address(host).is_loopback)):
        return False
    return any(isinstance(one, ConnectionRefusedError) or "Connection refused" in str(one) for one in chain(error))


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes, each once."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT
