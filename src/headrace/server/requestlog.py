"""What is worth a line in the log: requests that failed or took long."""

from __future__ import annotations

import logging

from headrace.engine.counters import Counters

log = logging.getLogger("headrace.request")

SLOW_S = 1.0


class RequestLog:
    """Notes failed and slow requests, and counts the slow ones."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def note(self, method: str, url: bytes, status: int, took_s: float) -> None:
        """Write a line where the status or the time calls for one."""
        facts = (method, url.decode("latin-1")[:200], status, took_s * 1000)
        if status >= 500:
            log.error("%s %s failed with %d after %.0f ms", *facts)
        elif took_s > SLOW_S:
            self._counters.slow_requests += 1
            log.warning("%s %s answered %d after %.0f ms", *facts)
