"""What is worth a line in the log: requests that failed or took long. The others are only counted."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.engine.counters import Counters
from headrace.server.logging import SLOW_S, note_request


class RequestLog:
    """Counts every answer, and notes those that failed or were slow."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def note(self, method: str, url: bytes, status: int, took_s: float, headers: Mapping[bytes, bytes]) -> None:
        """An answer was given to a request with these headers."""
        responses = self._counters.responses
        responses[status] = responses.get(status, 0) + 1
        if status >= 500 or took_s > SLOW_S:
            self._counters.slow_requests += took_s > SLOW_S
            request_id = headers.get(b"x-request-id", b"").decode("latin-1")[:128] or None
            note_request(method, url.decode("latin-1")[:200], status, took_s, request_id=request_id)
