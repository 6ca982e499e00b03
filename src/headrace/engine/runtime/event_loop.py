"""The event loop: many small pieces of work in slices, and a watchdog that measures and logs stalls.

A timer of the loop measures how late it is, and a thread logs what keeps the loop busy. While the loop is busy nobody
is served. The timer costs a few microseconds per tick. Beside the length of a stall there is the processor time of the
loop's thread during it: a stall that takes much of it is work on the loop, one that takes little is a wait for the
disk, for the interpreter's lock, or for a core of a busy machine.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection
from itertools import accumulate
from time import monotonic, thread_time
from types import FrameType

log, stalls_log = logging.getLogger("headrace.loop"), logging.getLogger("headrace.stalls")

TICK_S = 0.02
#: Upper bounds of the buckets of a histogram; a tick that is late by less than the first is no stall.
BOUNDS_S = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LOGGED_S = 0.25
_WATCH_S = 0.05
_REST_S = 10.0
_FRAMES = 25
#: So few pieces are done at once: the way over the loop would take longer.
FEW = 32
SLICE_S = 0.005


class Histogram:
    """Durations, counted by ``BOUNDS_S``."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.longest_s = 0.0

    @property
    def count(self) -> int:
        """How many durations there are."""
        return sum(self._counts)

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def buckets(self) -> list[tuple[str, float]]:
        """How many durations are at most as long as each bound, as Prometheus wants them."""
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True))


class StallWatchdog:
    """Watches the event loop that it is started on."""

    def __init__(self, *, logged_s: float = _LOGGED_S, rest_s: float = _REST_S) -> None:
        """Log stalls from ``logged_s`` on, once in ``rest_s`` at most."""
        self._logged_s, self._rest_s = logged_s, rest_s
        #: How long the loop did not turn, and for how long its thread computed meanwhile.
        self.stalls, self.busy = Histogram(), Histogram()
        self._due = 0.0
        self._computed_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop_thread = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headrace-watchdog", daemon=True)

    def start(self) -> None:
        """Start watching; must be called on the event loop."""
        self._loop_thread = threading.get_ident()
        self._wait()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._due, self._computed_s = monotonic() + TICK_S, thread_time()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        late_s = monotonic() - self._due
        if late_s > BOUNDS_S[0]:
            self.stalls.observe(late_s)
            self.busy.observe(thread_time() - self._computed_s)
        self._wait()

    def _watch(self) -> None:
        """Log what the loop's thread does when it is late."""
        rests_until = 0.0
        while not self._stopped.wait(_WATCH_S):
            now = monotonic()
            if now - self._due < self._logged_s or now < rests_until:
                continue
            frame = sys._current_frames().get(self._loop_thread)
            message = "the event loop has not turned for %d ms, after %d stalls since the start: %s"
            stalls_log.warning(message, (now - self._due) * 1000, self.stalls.count, _described(frame))
            rests_until = now + self._rest_s


def _described(frame: FrameType | None) -> str:
    """The innermost calls, the last one first."""
    calls: list[str] = []
    while frame is not None and len(calls) < _FRAMES:
        code = frame.f_code
        calls.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(calls)


class Slices:
    """Work that waits for its turn, in order; all who share one share its time."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        #: Pieces that came one by one in this turn of the loop.
        self._came = 0

    @property
    def queued(self) -> int:
        """How many pieces wait."""
        return len(self._waiting)

    def run_all(self, pieces: Collection[Callable[[], None]]) -> None:
        """Run pieces of work: a few immediately, many in slices."""
        if len(pieces) <= FEW:
            for piece in pieces:
                piece()
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._do_some)
        self._waiting.extend(pieces)

    def run_or_queue(self, piece: Callable[[], None]) -> None:
        """Run a piece of work immediately, or soon where many were submitted in this iteration of the loop."""
        if not self._came:
            asyncio.get_running_loop().call_soon(self._turn)
        self._came += 1
        if self._came <= FEW and not self._waiting:
            piece()
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._do_some)
        self._waiting.append(piece)

    def _turn(self) -> None:
        self._came = 0

    def _do_some(self) -> None:
        waiting, until = self._waiting, monotonic() + SLICE_S
        while waiting and monotonic() < until:
            try:
                waiting.popleft()()
            except Exception:
                log.exception("a piece of work failed; the others go on")
        if waiting:
            asyncio.get_running_loop().call_soon(self._do_some)
