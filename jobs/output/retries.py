"""Asking the Hub again: what is worth another try, and for how long.

A Hub that is busy (429), away (5xx) or cut off is asked again with growing pauses for as long as the caller says; all
else is an answer. Libraries between us and the Hub wrap what they catch, so the causes of an error are looked at too.
"""

import logging
from collections.abc import Callable

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from tenacity import RetryCallState, Retrying, retry_if_exception

from packing_udfs.storage.hub_errors import chain, is_refused_here, one_line
from packing_udfs.storage.retry_policy import PASSING_STATUS, pause

# What a request to the Hub may raise. hf_xet raises RuntimeError for what its server or the network did.
HUB_ERRORS = (HfHubHTTPError, httpx2.HTTPError, OSError, RuntimeError, ValueError)
# Without an answer. A file that is not in the cache is one that the Hub could not be asked for.
UNANSWERED = (HfHubHTTPError, httpx2.TransportError, ConnectionError, TimeoutError, LocalEntryNotFoundError)
LOCAL_SECONDS = 10  # seconds, for a Hub on this machine that is not running
logger = logging.getLogger(__name__)


def is_transient(error: BaseException) -> bool:
    """Whether the Hub was busy, away or cut off. What it answered decides, wherever it is among an error's causes."""
    found = list(chain(error))
    for one in found:
        if isinstance(one, HfHubHTTPError) and one.response is not None:
            return one.response.status_code in PASSING_STATUS
    return any(isinstance(one, UNANSWERED) for one in found)


def retrying(seconds: float, again: Callable[[BaseException], bool] = is_transient) -> Retrying:
    """Call something again, for about `seconds`, while it raises errors of which `again` holds; the last is raised.

    A Hub of this machine that is not running gets LOCAL_SECONDS at most: time to be restarted, and no more.
    """

    def limit(state: RetryCallState) -> float:
        return min(seconds, LOCAL_SECONDS) if is_refused_here(state.outcome.exception()) else seconds

    def is_over(state: RetryCallState) -> bool:
        if limit(state) < seconds:  # which is not overstepped by a pause
            return state.seconds_since_start + state.upcoming_sleep > limit(state)
        return state.seconds_since_start >= seconds

    def say(state: RetryCallState) -> None:
        text = f"{one_line(state.outcome.exception())}; trying again"
        if state.attempt_number == 1:
            text += f" for up to {limit(state):,.0f} s"
            text += "" if "HF_ENDPOINT" in text else f"; HF_ENDPOINT is {constants.ENDPOINT}"
        logger.warning("the Hub: %s", text)

    return Retrying(
        retry=retry_if_exception(again),
        wait=lambda state: pause(state.attempt_number),
        stop=is_over,
        before_sleep=say,
        reraise=True,
    )
