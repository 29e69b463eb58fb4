"""How often the Hub accepts a commit."""

import logging
import time
from collections import deque
from collections.abc import Callable

__all__ = ["COMMITS_AN_HOUR", "Pace"]

COMMITS_AN_HOUR = 120  # the Hub allows 128
HOUR = 3600
logger = logging.getLogger(__name__)


class Pace:
    """Allows at most COMMITS_AN_HOUR commits in any hour."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep):
        self.clock, self._sleep = clock, sleep
        self._times: deque[float] = deque(maxlen=COMMITS_AN_HOUR)

    def seconds_to_wait(self) -> float:
        """Seconds until the next commit is allowed."""
        is_full = len(self._times) == COMMITS_AN_HOUR
        return max(0.0, self._times[0] + HOUR - self.clock()) if is_full else 0.0

    def begin(self) -> None:
        """Wait until a commit is allowed and count it."""
        if seconds := self.seconds_to_wait():
            logger.warning("the Hub takes %d commits an hour: waiting %.0f s", COMMITS_AN_HOUR, seconds)
            self._sleep(seconds)
        self._times.append(self.clock())
