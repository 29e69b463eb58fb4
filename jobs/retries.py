"""Asking the Hub again: what is worth another try, and for how long.

A Hub that is busy (429), away (5xx) or cut off is asked again with growing pauses for as long as the caller says; all
else is an answer. Libraries between us and the Hub wrap what they catch, so the causes of an error are looked at too.
"""

import logging
from collections.abc import Callable

import httpx2
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

BUSY = (408, 429, 500, 502, 503, 504)
# What a request to the Hub may raise. hf_xet raises RuntimeError for what its server or the network did.
HUB_ERRORS = (HfHubHTTPError, httpx2.HTTPError, OSError, RuntimeError, ValueError)
LONGEST_PAUSE = 30  # seconds
logger = logging.getLogger(__name__)


def is_transient(error: BaseException) -> bool:
    """Whether the Hub was busy, away or cut off; anywhere in the chain of an error's causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, HfHubHTTPError):
            return error.response is None or error.response.status_code in BUSY
        # A file that is not in the cache is one that the Hub could not be asked for.
        if isinstance(error, httpx2.TransportError | ConnectionError | TimeoutError | LocalEntryNotFoundError):
            return True
        error = error.__cause__ or error.__context__
    return False


def retrying(seconds: float, again: Callable[[BaseException], bool] = is_transient) -> Retrying:
    """Call something again, for about `seconds`, while it raises errors of which `again` holds; the last is raised."""
    return Retrying(
        retry=retry_if_exception(again),
        wait=wait_exponential(multiplier=0.5, max=LONGEST_PAUSE),
        stop=stop_after_delay(seconds),
        before_sleep=lambda state: logger.warning("the Hub: %s; trying again", one_line(state.outcome.exception())),
        reraise=True,
    )


def one_line(error: BaseException) -> str:
    """An error's message without the line breaks that huggingface_hub puts into it."""
    return " ".join(str(error).split()) or type(error).__name__
