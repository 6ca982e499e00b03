"""What is worth a line in the log: requests that failed, took long, or asked in vain for what takes an admin.

The others are only counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

from headrace.engine.runtime.counters import Counters
from headrace.server.http.auth import Principal
from headrace.server.http.logs import SLOW_S, log_refused_admin, log_request

#: Lines about refused callers in a minute, at most; they can ask as often as they like.
_REFUSALS_A_MINUTE = 120
_MINUTE_S = 60.0


class RequestLog:
    """Counts every answer, and notes those that failed or were slow."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._minute_ends_s = 0.0
        self._refusals = 0

    def note(self, method: str, url: bytes, status: int, took_s: float, headers: Mapping[bytes, bytes]) -> None:
        """An answer was given to a request with these headers."""
        responses = self._counters.responses
        responses[status] = responses.get(status, 0) + 1
        if status >= 500 or took_s > SLOW_S:
            self._counters.slow_requests += took_s > SLOW_S
            log_request(method, _path(url), status, took_s, request_id=_request_id(headers))

    def refuse_admin(
        self, method: str, url: bytes, principal: Principal | None, headers: Mapping[bytes, bytes]
    ) -> None:
        """Someone who is no admin asked for what takes one; None is a caller without a key that holds."""
        if monotonic() >= self._minute_ends_s:
            unlogged = max(0, self._refusals - _REFUSALS_A_MINUTE)
            self._minute_ends_s, self._refusals = monotonic() + _MINUTE_S, 0
            if unlogged:
                log_refused_admin(unlogged=unlogged)
        self._refusals += 1
        if self._refusals <= _REFUSALS_A_MINUTE:
            who = {} if principal is None else {"user_id": principal.user_id, "key": principal.key_id}
            facts = {"method": method, "path": _path(url), **who, "request_id": _request_id(headers)}
            log_refused_admin(**{name: fact for name, fact in facts.items() if fact is not None})


def _path(url: bytes) -> str:
    return url.decode("latin-1")[:200]


def _request_id(headers: Mapping[bytes, bytes]) -> str | None:
    return headers.get(b"x-request-id", b"").decode("latin-1")[:128] or None
