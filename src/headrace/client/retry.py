"""Retries: which failed requests are sent again, and after which pause."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from headrace import errors
from headrace.client.errors import ApiError, ClientError, Unreachable
from headrace.client.requests import Request
from headrace.errors import Gone, HeadraceError, NotFound

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


def pause_s(failures: int, error: HeadraceError | None, chance: Callable[[], float] = random.random) -> float:
    """Exponential in the failures so far, jittered to half, and never shorter than ``Retry-After``."""
    steady = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 16))
    retry_after = error.facts.get("retry_after") if error is not None else None
    floor = float(retry_after) if isinstance(retry_after, int | float) else 0.0
    return max(floor, steady * (0.5 + 0.5 * chance()))


def is_transient(error: HeadraceError) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, ClientError) and not isinstance(error, ApiError):
        return isinstance(error, Unreachable)
    return error.status in (408, 429) or (error.status >= 500 and not isinstance(error, errors.CorruptData))


def is_surely_unprocessed(error: HeadraceError) -> bool:
    """Whether the server surely did not process the request, so that even a plain append may be sent again."""
    return error.status in (429, 503) or (isinstance(error, Unreachable) and not error.sent)


class Backoff:
    """Pauses between retries: counts failures since the last success, and gives up after some time."""

    def __init__(self, for_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._for_s = for_s
        self._clock = clock
        self._failures = 0
        #: Whether a failed attempt may have been processed.
        self.is_uncertain = False
        self._since = clock()

    def reset(self) -> None:
        """Forget the failures: something worked."""
        self._failures = 0

    def pause_s(self, error: HeadraceError) -> float:
        """How long to wait before trying again; raises the error once the time is over."""
        self.is_uncertain = self.is_uncertain or not is_surely_unprocessed(error)
        if not self._failures:
            self._since = self._clock()
        self._failures += 1
        pause = pause_s(self._failures, error)
        if self._clock() + pause > self._since + self._for_s:
            raise error
        return pause


def check_repeatable(request: Request, error: HeadraceError) -> HeadraceError:
    """The error back if the request may be repeated after it; raises it otherwise."""
    appends = request.method == "POST" and bool(request.body) and request.changes
    may_repeat = is_surely_unprocessed(error) if appends else is_transient(error)
    if not may_repeat:
        raise error
    return error


def is_repeated_delete(request: Request, error: HeadraceError, backoff: Backoff) -> bool:
    """Whether this error answers a repeated DELETE whose earlier attempt may have deleted the stream."""
    return request.method == "DELETE" and backoff.is_uncertain and isinstance(error, NotFound | Gone)
