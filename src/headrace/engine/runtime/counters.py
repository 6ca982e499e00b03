"""Counters of the hot path, as plain attributes."""

from __future__ import annotations


class Counters:
    """What happened since the server started."""

    def __init__(self) -> None:
        self.appends = 0
        self.appended_events = 0
        self.appended_bytes = 0
        self.deduplicated_events = 0
        self.reads = 0
        self.read_bytes = 0
        self.created = 0
        self.deleted = 0
        self.expired = 0
        self.responses: dict[int, int] = {}
        self.slow_requests = 0
