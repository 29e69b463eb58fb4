"""Asking the Hub again, with growing pauses, while it is busy (429), away (5xx) or cut off. Other answers are final.

Libraries between us and the Hub wrap what they catch, so an error's causes are examined too.
"""

import logging
from collections.abc import Callable

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from tenacity import RetryCallState, Retrying, retry_if_exception

from packing_udfs.storage.hub_errors import chain, is_refused_here, one_line
from packing_udfs.storage.retry_policy import PASSING_STATUS, pause

__all__ = ["HUB_ERRORS", "LOCAL_SECONDS", "is_transient", "one_line", "retrying", "status_of"]

# What a request to the Hub may raise. hf_xet raises RuntimeError for errors of its server or of the network.
HUB_ERRORS = (HfHubHTTPError, httpx2.HTTPError, OSError, RuntimeError, ValueError)
# Raised without an answer. LocalEntryNotFoundError: a file is not in the cache and the Hub could not be asked for it.
UNANSWERED = (HfHubHTTPError, httpx2.TransportError, ConnectionError, TimeoutError, LocalEntryNotFoundError)
LOCAL_SECONDS = 10  # seconds, for a Hub on this machine that is not running
logger = logging.getLogger(__name__)


def status_of(error: BaseException) -> int | None:
    """The HTTP status that the Hub answered with, None for an error that is no answer."""
    return error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else None


def is_transient(error: BaseException) -> bool:
    """Whether the Hub was busy, away or cut off. An answer decides, wherever it is among the error's causes."""
    found = list(chain(error))
    for one in found:
        if (status := status_of(one)) is not None:
            return status in PASSING_STATUS
    return any(isinstance(one, UNANSWERED) for one in found)


def retrying(seconds: float, again: Callable[[BaseException], bool] = is_transient) -> Retrying:
    """Repeat a call for about `seconds` while `again` holds for the error that it raises; the last one is raised.

    A Hub of this machine that is not running gets LOCAL_SECONDS at most: enough time to restart it.
    """

    def limit(state: RetryCallState) -> float:
        return min(seconds, LOCAL_SECONDS) if is_refused_here(_error(state)) else seconds

    def is_over(state: RetryCallState) -> bool:
        passed = state.seconds_since_start or 0.0
        if limit(state) < seconds:  # no pause may go beyond it
            return passed + state.upcoming_sleep > limit(state)
        return passed >= seconds

    def say(state: RetryCallState) -> None:
        text = f"{one_line(_error(state))}; trying again"
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


def _error(state: RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome else None
    assert error is not None, "a call is repeated only after an error"
    return error
