"""When a request is worth another try, and how long to wait before it. The reader and the jobs both follow this."""

import re
from email.message import Message

__all__ = ["PASSING_STATUS", "STALE_STATUS", "asked_pause", "pause"]

PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})  # the server is busy or away: ask again
STALE_STATUS = frozenset({400, 401, 403, 404, 410})  # final from the Hub; of a signed URL: it has expired
_FIRST_PAUSE, _LONGEST_PAUSE, _MOST_DOUBLINGS = 0.5, 30.0, 16  # seconds, seconds


def pause(attempt: int) -> float:
    """Seconds to wait after failed attempt number `attempt`, counted from 1. They double up to half a minute."""
    return min(_FIRST_PAUSE * 2 ** min(attempt - 1, _MOST_DOUBLINGS), _LONGEST_PAUSE)


def asked_pause(headers: Message) -> float | None:
    """Seconds that a server asks for, in Retry-After or the Hub's `ratelimit: "resolvers";r=0;t=55`, else None."""
    limit = headers.get("ratelimit", "").replace(" ", "")
    found = re.fullmatch(r"\s*(\d+)\s*", headers.get("Retry-After", "")) or re.search(r";r=0;t=(\d+)", limit)
    return float(found[1]) or None if found else None
