"""The sweeper: goes over all streams now and then, and carries out what their time asks for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from itertools import islice
from typing import Any

from headrace.engine.log import retention
from headrace.engine.log.append_hook import AppendHooks
from headrace.engine.log.lifecycle import Change, Delete, carry_out, settling
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.engine.log.writer import Writer
from headrace.errors import HeadraceError
from headrace.storage.published import Published
from headrace.storage.streams import LIVE, Streams
from headrace.storage.wal import Wal

log = logging.getLogger("headrace.engine")

SWEEP_S = 10.0
_STREAMS = 500


class Sweeper:
    """Expires streams, drops what is not retained, persists accesses and removes what is gone."""

    def __init__(
        self,
        *,
        writer: Writer,
        log: Log,
        streams: Streams,
        wal: Wal,
        published: Published,
        hooks: AppendHooks,
        held_from: Callable[[Stream], int | None],
    ) -> None:
        """``held_from`` says from which event on a managed stream must be kept, whatever its retention rule says."""
        self._writer = writer
        self._log = log
        self._catalog = log.catalog
        self._streams = streams
        self._wal = wal
        self._published = published
        self._hooks = hooks
        self.held_from = held_from
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Sweep every few seconds from now on."""
        self._task = asyncio.create_task(self._sweep_forever())

    async def stop(self) -> None:
        """Sweep no more by itself."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def sweep(self) -> None:
        """Expire, retain, persist accesses and purge, once."""
        # What frees space comes first, and a full disk that stops one step does not stop the others.
        for step in (self._purge, self._persist_accesses, self._expire, self._retain, self._purge):
            with contextlib.suppress(HeadraceError):
                await step()
        await asyncio.to_thread(self._writer.reserve.restock)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.sweep()
            except Exception:
                log.exception("a sweep failed; the next one tries again")

    async def _purge(self) -> None:
        await self._run_out(retention.Purge)

    async def _persist_accesses(self) -> None:
        accessed = self._catalog.accessed
        for _ in range(0, len(accessed), _STREAMS):
            change = await carry_out(self._writer, retention.PersistAccesses, tuple(islice(accessed, _STREAMS)))
            # Until then they stay in memory, where alone it is known that they were accessed.
            for stream, deadline_us in change.deadlines:
                if stream in accessed:
                    del accessed[stream]
                    if stream.deadline_us != deadline_us:
                        accessed[stream] = None

    async def _expire(self) -> None:
        while True:
            rows = self._streams.due(self._log.clock.now_us(), _STREAMS)
            found = [self._catalog.find(row.name) for row in rows]
            living = [stream for stream in found if stream is not None and stream.head.state == LIVE]
            over = [stream for stream in living if self._catalog.expired(stream)]
            outcomes = await asyncio.gather(*(self._expire_one(stream) for stream in over), return_exceptions=True)
            for failure in filter(None, outcomes):
                raise failure
            # The others were accessed since their deadline was stored, and would hide those that come later.
            self._catalog.accessed.update(dict.fromkeys(set(living) - set(over)))
            await self._persist_accesses()
            if len(rows) < _STREAMS:
                break

    async def _expire_one(self, stream: Stream) -> None:
        settled: asyncio.Future[Delete] = asyncio.get_running_loop().create_future()
        self._log.delete(stream, settling(settled), deadline_us=stream.deadline_us)
        if (error := (await settled).error) is not None:
            raise error
        self._log.counters.expired += stream.head.state != LIVE  # an access may have come before the commit

    async def _retain(self) -> None:
        after = 0
        while rows := self._streams.retained(after, _STREAMS):
            for row in rows:
                after = row.id
                if not self._hooks.is_retained(row):
                    continue
                stream = self._catalog.find(row.name)
                if stream is not None and stream.id == row.id:
                    await self._retain_one(stream)

    async def _retain_one(self, stream: Stream) -> None:
        held_from = self.held_from(stream) if stream.managed else None
        first = retention.first_retained(self._wal, self._published, stream, stream.head, self._log.clock.now_us())
        if first.seq > stream.head.first_seq and (held_from is None or first.seq <= held_from):
            await self._run(retention.Retain, stream)
        if self._wal.starts_before(stream.id, stream.head.first_seq):
            await self._run_out(retention.Trim, stream)
        kind = None if stream.head.registry is None else stream.head.registry.kind
        if kind is not None and kind.dedupes:
            await self._run_out(retention.ForgetKeys, stream)

    async def _run_out(self, kind: Callable[..., Change], *facts: Any) -> None:
        """Carry out an operation again and again, until it finds less than it may remove at once."""
        while await self._run(kind, *facts) >= retention.PURGE_ROWS:
            await asyncio.sleep(0)

    async def _run(self, kind: Callable[..., Change], *facts: Any) -> int:
        """Carry out a sweep's operation; answers how many rows it removed."""
        return getattr(await carry_out(self._writer, kind, *facts), "removed", 0)
