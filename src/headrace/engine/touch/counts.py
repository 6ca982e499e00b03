"""What has happened on a stream whose touches are told, in numbers."""

from __future__ import annotations

from collections import deque

_WINDOW_MS = 10_000


class Counts:
    """Totals since the journal was opened."""

    def __init__(self) -> None:
        self.rows = self.batches = self.empty_batches = 0
        self.touches = self.table_touches = self.template_touches = 0
        self.dropped = self.cold_keys = self.cold_templates = self.overflows = 0
        self.waits_touched = self.waits_timed_out = self.waits_stale = 0
        self.flushes = self.wakeups = self.timeouts = 0
        self.wake_ms = self.wake_ms_max = self.timeout_ms = 0.0
        self.activated = self.retired = self.evicted = self.denied = 0

    def add(self, other: Counts) -> None:
        """Count what others have counted."""
        longest_ms = max(self.wake_ms_max, other.wake_ms_max)
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        self.wake_ms_max = longest_ms

    def left_out(self, keys: int, *, behind: bool) -> None:
        """Keys that nobody waits for were not told: processing is behind, or they were more than a stream may spend."""
        if behind:
            self.cold_keys += keys
        else:
            self.dropped += keys

    def waited(self, outcome: bool | str) -> None:
        """A wait has ended so."""
        if isinstance(outcome, str):
            self.waits_stale += 1
        elif outcome:
            self.waits_touched += 1
        else:
            self.waits_timed_out += 1

    def woke(self, ms: float, waiters: int) -> None:
        """So many were woken, which took so long."""
        self.wakeups += waiters
        self.wake_ms += ms
        self.wake_ms_max = max(self.wake_ms_max, ms)


class Flushes:
    """When the journal was flushed, over the last ten seconds."""

    def __init__(self, now_ms: float) -> None:
        self.began_ms = self.last_ms = now_ms
        self._intervals: deque[tuple[float, float]] = deque(maxlen=4096)

    def note(self, began_ms: float, now_ms: float) -> None:
        """A bucket that began then was flushed now."""
        self._intervals.append((now_ms, now_ms - self.last_ms))
        self.began_ms, self.last_ms = began_ms, now_ms

    def intervals(self, now_ms: float) -> tuple[float, float]:
        """The longest time between flushes, and the 95th percentile."""
        recent = sorted(length for at_ms, length in self._intervals if at_ms >= now_ms - _WINDOW_MS)
        return (recent[-1], recent[min(len(recent) - 1, len(recent) * 95 // 100)]) if recent else (0.0, 0.0)
