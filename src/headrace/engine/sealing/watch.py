"""Keeping watch while streams are published, or cannot be: what waits is counted, and whether we may still write.

A publication may take as long as the store lets it, and the pause after a failure is up to a minute. Neither may hold
up what is watched here: the writer knows how much room the backlog has, and a node that was replaced finds that out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic

from headrace.engine.writer import Writer
from headrace.errors import Fenced, Unavailable
from headrace.storage.published import Backlog, Published
from headrace.types import Clock

log = logging.getLogger("headrace.sealing")

COUNT_S = 1.0
#: How often a node asks whether another has taken over; every publication asks too.
CHECK_S = 10.0
_PAGE = 200
# Counting is work for the event loop, which rests so many times as long from it, however many streams wait.
_RESTS = 24


class Watch:
    """Looks after the backlog and the lease of a node."""

    def __init__(
        self,
        writer: Writer,
        published: Published,
        check: Callable[[], Awaitable[None]],
        clock: Clock,
        limit_bytes: int,
    ) -> None:
        self._writer = writer
        self._published = published
        self._check = check
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._counting = asyncio.Lock()
        self._counted_s = 0.0
        #: Payload bytes that are only here, and since when the first of them have been.
        self.backlog_bytes = 0
        self.oldest_us: int | None = None

    async def run(self) -> None:
        """Keep watch until another node has taken over."""
        await asyncio.gather(self._count_forever(), self._check_forever())

    async def count(self, tell: Callable[[list[Backlog]], None] = lambda page: None) -> None:
        """Count what waits, and let the writer know how much more may; ``tell`` hears of every stream that waits."""
        async with self._counting:
            await self._count(tell)

    async def _count(self, tell: Callable[[list[Backlog]], None]) -> None:
        writer, after, total, oldest_us = self._writer, 0, 0, self._clock.now_us()
        queued_bytes, room_bytes = writer.queued_bytes, writer.room_bytes
        began_s = monotonic()
        while page := self._published.backlogs(after, _PAGE):
            after = page[-1].stream
            total += sum(backlog.bytes for backlog in page)
            oldest_us = min(oldest_us, *(backlog.since_us for backlog in page))
            tell(page)
            if len(page) < _PAGE:
                break
            await asyncio.sleep(_RESTS * (monotonic() - began_s))
            began_s = monotonic()
        self.backlog_bytes, self.oldest_us = total, oldest_us if total else None
        # What came while we counted may have been missed.
        since_bytes = room_bytes - writer.room_bytes
        writer.room_bytes = self._limit_bytes - total - queued_bytes - since_bytes
        self._counted_s = _now_s()

    async def _count_forever(self) -> None:
        while not self._writer.fenced:
            await self.count()
            await asyncio.sleep(COUNT_S)
            while (rest_s := self._counted_s + COUNT_S - _now_s()) > 0:
                await asyncio.sleep(rest_s)  # someone else has counted meanwhile

    async def _check_forever(self) -> None:
        while not self._writer.fenced:
            await asyncio.sleep(CHECK_S)
            try:
                await self._check()
            except Fenced as reason:
                self.fence(reason)
            except Unavailable:
                pass  # whoever publishes next has more to say about that

    def fence(self, reason: Fenced) -> None:
        """Another node has taken over: let nothing more be written here."""
        log.error("%s", reason.message)
        self._writer.fenced = True


def _now_s() -> float:
    return asyncio.get_running_loop().time()
