"""The backlog of publication and the pace that follows from it, and whether this node still holds the lease to write.

A publication may take as long as the store lets it, and the pause after a failure is up to a minute. Neither may hold
up what is watched here: the writer knows how much room the backlog has, and a node that was replaced finds that out.

Publishing takes a small part of the machine while appends are busy, and all of it once the backlog grows: after each
segment, and each stream, the sealer rests. What is put off by that is done when appends pause.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import NamedTuple

from headrace.config import StorageConfig
from headrace.engine.log.writer import Writer
from headrace.engine.runtime.background import BackgroundLoop, BackgroundThread
from headrace.errors import Fenced, Unavailable
from headrace.storage.database import Connection
from headrace.storage.published import Backlog, Published
from headrace.types import Clock

log = logging.getLogger("headrace.sealing")

COUNT_S = 1.0
#: How often a node asks whether another has taken over; every publication asks too.
CHECK_S = 10.0
_PAGE = 200
# Counting rests so many times as long as it takes, however many streams wait.
_RESTS = 24
#: The sealer rests so many times as long as it has worked before.
RESTS = 9
#: There is no rest once so much of the backlog's limit is used up, or of the room for columns of what has no companion.
_FULL_SPEED = 0.25
#: Nor once entries have waited so many times as long as they should: what is due all at once is paced in between.
_LATEST = 1.1
#: A rest ends when nothing was appended for so long.
_LULL_S = 0.05


class _Waiting(NamedTuple):
    """Payload bytes that are only here, and since when the first of them have been."""

    bytes: int
    oldest_us: int


class SealWatch:
    """Looks after the backlog, counted in a thread of its own, and the lease of a node."""

    def __init__(
        self,
        writer: Writer,
        connect: Callable[[], Connection],
        check: Callable[[], Awaitable[None]],
        clock: Clock,
        limit_bytes: int,
    ) -> None:
        self._writer = writer
        self._thread = BackgroundThread("watch", connect)
        self._check = check
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._count_loop = BackgroundLoop(
            "headrace.sealing", self._count_again, failed="the backlog was not counted", retry_s=COUNT_S
        )
        self._check_loop = BackgroundLoop(
            "headrace.sealing", self._check_again, failed="the lease was not checked", retry_s=CHECK_S
        )
        self._counting = asyncio.Lock()
        self._counted_s = 0.0
        #: Payload bytes that are only here, and since when the first of them have been.
        self.backlog_bytes = 0
        self.oldest_us: int | None = None

    def start(self) -> None:
        """Count and check until another node has taken over."""
        self._count_loop.start()
        self._check_loop.start(after_s=CHECK_S)

    async def stop(self) -> None:
        """Stop counting and checking, and close the database."""
        await self._count_loop.stop(timeout_s=0)
        await self._check_loop.stop(timeout_s=0)
        await self._thread.stop()

    async def count(self, on_page: Callable[[list[Backlog]], None] = lambda page: None) -> None:
        """Count the backlog, and set how much more the writer may accept.

        ``on_page`` is called with every stream that waits, in the thread that counts.
        """
        async with self._counting:
            writer = self._writer
            queued_bytes, room_bytes = writer.queued_bytes, writer.room_bytes
            waiting = await self._thread.run(self._waiting, on_page)
            self.backlog_bytes, self.oldest_us = waiting.bytes, waiting.oldest_us if waiting.bytes else None
            # What came while it was counted may have been missed.
            since_bytes = room_bytes - writer.room_bytes
            writer.room_bytes = self._limit_bytes - waiting.bytes - queued_bytes - since_bytes
            self._counted_s = _now_s()

    def _waiting(self, on_page: Callable[[list[Backlog]], None]) -> _Waiting:
        published, after, total, oldest_us = Published(self._thread.connection), 0, 0, self._clock.now_us()
        wal_names = self._writer.wal_names
        wal_names.begin()
        began_s = monotonic()
        while page := published.backlogs(after, _PAGE, self._clock.now_us()):
            after = page[-1].stream
            total += sum(backlog.bytes for backlog in page)
            oldest_us = min(oldest_us, *(backlog.since_us for backlog in page))
            wal_names.add_counted(backlog.name for backlog in page if backlog.name is not None)
            on_page(page)
            if len(page) < _PAGE:
                break
            if self._thread.stopping.wait(_RESTS * (monotonic() - began_s)):
                return _Waiting(total, oldest_us)
            began_s = monotonic()
        wal_names.end()
        return _Waiting(total, oldest_us)

    async def _count_again(self) -> float | None:
        if self._writer.fenced:
            return None
        if (rest_s := self._counted_s + COUNT_S - _now_s()) > 0:
            return rest_s  # someone else has counted meanwhile
        await self.count()
        return COUNT_S

    async def _check_again(self) -> float | None:
        if self._writer.fenced:
            return None
        try:
            await self._check()
        except Fenced as reason:
            self.fence(reason)
        except Unavailable:
            pass  # whoever publishes next has more to say about that
        return CHECK_S

    def fence(self, reason: Fenced) -> None:
        """Stop all writes, since another node has taken over."""
        log.error("%s", reason.message)
        self._writer.fenced = True


def _now_s() -> float:
    return asyncio.get_running_loop().time()


class SealPace:
    """Lets the sealer's thread rest, by what the watch has counted."""

    def __init__(
        self,
        watch: SealWatch,
        appends: Callable[[], int],
        clock: Clock,
        config: StorageConfig,
        columns_share: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``appends`` says how many there have been, ``columns_share`` how much of the room for columns is taken."""
        self._watch = watch
        self._appends = appends
        self._clock = clock
        self._config = config
        self._columns_share = columns_share
        self._stopping = threading.Event()
        #: How many wait for a publication, so that there is no rest.
        self.callers = 0
        self.begin()

    def begin(self) -> None:
        """Work begins."""
        self._began_s, self._began_with = monotonic(), self._appends()

    def rest(self) -> None:
        """Pause while appends are served, for a limited time."""
        now_s, seen = monotonic(), self._began_with
        until_s = now_s + self.rest_s(now_s - self._began_s)
        while now_s < until_s and not self.callers and seen != (seen := self._appends()):
            if self._stopping.wait(min(until_s - now_s, _LULL_S)):
                break
            now_s = monotonic()
        self.begin()

    def rest_s(self, worked_s: float) -> float:
        """How long a rest may be after so much work."""
        config, oldest_us = self._config, self._watch.oldest_us
        fill = max(self._watch.backlog_bytes / max(1, config.backlog_bytes), self._columns_share())
        haste = min(1.0, fill / _FULL_SPEED)
        waited_s = 0.0 if oldest_us is None else (self._clock.now_us() - oldest_us) / 1e6
        return max(0.0, min(RESTS * worked_s * (1 - haste), (_LATEST * config.seal_age_s - waited_s) / 2))

    def stop(self) -> None:
        """End the present rest, and rest no more: the server stops."""
        self._stopping.set()
