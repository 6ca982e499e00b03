"""The timer of one stream: it processes what was appended, bucket by bucket, and wakes waiters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import time

from headrace.engine.log.tiers import NeedsFetch
from headrace.engine.touch.stream_touches import StreamTouches

log = logging.getLogger("headrace.touch")

_AGAIN_S = 1.0


class Pace:
    """Drives one stream on the event loop; costs nothing while nothing is appended."""

    def __init__(self, touching: StreamTouches) -> None:
        self.touching = touching
        self._timer: asyncio.TimerHandle | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._began_ms = 0.0
        self._rows_s = self._tables_s = 0.0
        self._settled: list[Callable[[], None]] = []

    def poke(self, *, at_once: bool = False) -> None:
        """Schedule processing, unless it is scheduled."""
        if self._timer is None and self._fetching is None:
            self._began_ms = time() * 1000
            self._beat_in(0.0 if at_once else self.touching.settings.memory.bucket_ms / 1000)

    async def settle(self, timeout_s: float) -> None:
        """Wait until everything is processed and told, or for so long."""
        if self.touching.settled or self.touching.halted:
            return
        self.poke()
        done = asyncio.Event()
        self._settled.append(done.set)
        try:
            async with asyncio.timeout(timeout_s):
                await done.wait()
        except TimeoutError:
            pass
        finally:
            if done.set in self._settled:
                self._settled.remove(done.set)

    def close(self) -> None:
        """Cancel what is scheduled."""
        for handle in (self._timer, self._fetching):
            if handle is not None:
                handle.cancel()
        self._let_settled_go()

    def _beat_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._beat)

    def _beat(self) -> None:
        self._timer = None
        try:
            more = self.touching.step()
        except NeedsFetch as cold:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(cold.work))
            return
        except Exception:
            log.exception("touches of %s could not be processed; they are tried again", self.touching.stream.name)
            self._beat_in(_AGAIN_S)
            return
        held_s = self._flush()
        if more:
            self._beat_in(0.0)
        elif held_s is not None:
            self._beat_in(held_s)
        if self.touching.settled or self.touching.halted:
            self._let_settled_go()

    def _flush(self) -> float | None:
        """Flush what is due; returns in how many seconds the rest is, if there is any."""
        touching, settings = self.touching, self.touching.settings
        if not touching.processor.bucket:
            return None
        now_s, bucket_ms = asyncio.get_running_loop().time(), settings.memory.bucket_ms
        rows_s = self._rows_s + max(bucket_ms, settings.touch_coalesce_window_ms) / 1000 - now_s
        tables_s = self._tables_s + max(bucket_ms, settings.coarse_interval_ms) / 1000 - now_s
        # Timers are a little early or late; what is due within a tick of the clock is due.
        rows, tables = rows_s <= 0.001, tables_s <= 0.001
        if rows or tables:
            now_ms = time() * 1000
            touching.flushes.note(self._began_ms, now_ms)
            touching.flush(now_ms, rows=rows, tables=tables)
            self._rows_s, self._tables_s = now_s if rows else self._rows_s, now_s if tables else self._tables_s
            self._began_ms = now_ms
        if not touching.processor.bucket:
            return None
        return max(0.001, min(rows_s if not rows else tables_s, tables_s if not tables else rows_s))

    async def _fetch(self, work: Callable[[], None]) -> None:
        """Fetch older entries in a thread, then go on."""
        try:
            await asyncio.to_thread(work)
        except Exception:
            log.exception("older entries of %s cannot be read now; they are tried again", self.touching.stream.name)
            await asyncio.sleep(_AGAIN_S)
        self._fetching = None
        self._beat_in(0.0)

    def _let_settled_go(self) -> None:
        for go in self._settled:
            go()
        self._settled.clear()
