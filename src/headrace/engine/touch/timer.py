"""The timer of one stream: it processes appended entries, bucket by bucket, and wakes waiters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import time

from headrace.engine.log.tiers import NeedsFetch
from headrace.engine.touch.stream_touches import StreamTouches

log = logging.getLogger("headrace.touch")

_RETRY_S = 1.0


class TouchTimer:
    """Runs the touches of one stream on the event loop; there is no timer while nothing is appended."""

    def __init__(self, stream_touches: StreamTouches) -> None:
        self.stream_touches = stream_touches
        self._timer: asyncio.TimerHandle | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._began_ms = 0.0
        self._rows_s = self._tables_s = 0.0
        self._on_settled: list[Callable[[], None]] = []

    def schedule(self, *, at_once: bool = False) -> None:
        """Schedule processing, unless it is scheduled."""
        if self._timer is None and self._fetching is None:
            self._began_ms = time() * 1000
            self._call_in(0.0 if at_once else self.stream_touches.settings.memory.bucket_ms / 1000)

    async def settle(self, timeout_s: float) -> None:
        """Wait until all changes are processed and all waiters woken, or until the timeout."""
        if self.stream_touches.settled or self.stream_touches.halted:
            return
        self.schedule()
        done = asyncio.Event()
        self._on_settled.append(done.set)
        try:
            async with asyncio.timeout(timeout_s):
                await done.wait()
        except TimeoutError:
            pass
        finally:
            if done.set in self._on_settled:
                self._on_settled.remove(done.set)

    def close(self) -> None:
        """Cancel the scheduled call."""
        for handle in (self._timer, self._fetching):
            if handle is not None:
                handle.cancel()
        self._notify_settled()

    def _call_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            more = self.stream_touches.step()
        except NeedsFetch as needed:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(needed.work))
            return
        except Exception:
            log.exception("touches of %s could not be processed; they are tried again", self.stream_touches.stream.name)
            self._call_in(_RETRY_S)
            return
        due_s = self._flush()
        if more:
            self._call_in(0.0)
        elif due_s is not None:
            self._call_in(due_s)
        if self.stream_touches.settled or self.stream_touches.halted:
            self._notify_settled()

    def _flush(self) -> float | None:
        """Flush what is due; returns in how many seconds the rest is due, if there is any."""
        stream_touches, settings = self.stream_touches, self.stream_touches.settings
        if not stream_touches.processor.bucket:
            return None
        now_s, bucket_ms = asyncio.get_running_loop().time(), settings.memory.bucket_ms
        rows_s = self._rows_s + max(bucket_ms, settings.touch_coalesce_window_ms) / 1000 - now_s
        tables_s = self._tables_s + max(bucket_ms, settings.coarse_interval_ms) / 1000 - now_s
        # Timers are a little early or late; what is due within a tick of the clock is due.
        rows, tables = rows_s <= 0.001, tables_s <= 0.001
        if rows or tables:
            now_ms = time() * 1000
            stream_touches.flushes.note(self._began_ms, now_ms)
            stream_touches.flush(now_ms, rows=rows, tables=tables)
            self._rows_s, self._tables_s = now_s if rows else self._rows_s, now_s if tables else self._tables_s
            self._began_ms = now_ms
        if not stream_touches.processor.bucket:
            return None
        return max(0.001, min(rows_s if not rows else tables_s, tables_s if not tables else rows_s))

    async def _fetch(self, work: Callable[[], None]) -> None:
        """Fetch older entries in a thread, then process them."""
        try:
            await asyncio.to_thread(work)
        except Exception:
            log.exception(
                "older entries of %s cannot be read now; they are tried again", self.stream_touches.stream.name
            )
            await asyncio.sleep(_RETRY_S)
        self._fetching = None
        self._call_in(0.0)

    def _notify_settled(self) -> None:
        for notify in self._on_settled:
            notify()
        self._on_settled.clear()
