"""The streams whose touches clients wait for: opened on the first request, and closed when idle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from headrace.engine.touch.active_templates import ActiveTemplates, TemplateLog, Verdict
from headrace.engine.touch.journal import TouchJournal
from headrace.engine.touch.pace import Pace
from headrace.engine.touch.processor import Counts
from headrace.engine.touch.stream_touches import StreamTouches
from headrace.engine.touch.waiters import Deadlines, Waiter
from headrace.errors import NotFound, Overloaded
from headrace.profiles.state_protocol.keys import InvalidTemplate, Template
from headrace.profiles.state_protocol.profile import StateProtocol, Touch
from headrace.profiles.table import load
from headrace.storage.streams import LIVE
from headrace.storage.touch import TouchRows

if TYPE_CHECKING:
    from headrace.engine.log.batch import Batch
    from headrace.engine.log.log import Log
    from headrace.engine.log.stream import Stream
    from headrace.engine.log.tiers import Tiers
    from headrace.engine.runtime.event_loop import Slices
    from headrace.storage.database import Connection

log = logging.getLogger("headrace.touch")

#: So many entries at the end of a stream are read again when its journal is opened.
REPLAY = 10_000
_MOST_OPEN = 1_000
_IDLE_S = 900.0
_HOUSE_S = 1.0

Apply = Callable[["Callable[[Batch], Any]"], Awaitable[Any]]


def settings_of(stream: Stream) -> Touch | None:
    """The settings of a stream whose touches are told; None for any other stream."""
    hook = load(stream.profile).hook if stream.profile else None
    return hook.touch if isinstance(hook, StateProtocol) else None


class Touches:
    """The touches of this node. Runs on the event loop."""

    def __init__(self, log: Log, tiers: Tiers, apply: Apply, reader: Connection, slices: Slices) -> None:
        self._log = log
        self._slices = slices
        self._tiers = tiers
        self._apply = apply
        self._rows = TouchRows(reader)
        self._open: dict[int, Pace] = {}
        self._opening: dict[int, asyncio.Task[Pace]] = {}
        self._placed: dict[Waiter, StreamTouches] = {}
        self._deadlines = Deadlines(self._give_up)
        self._house: asyncio.Task[None] | None = None
        self.template_log = TemplateLog()
        #: What happened on streams that are not followed any more.
        self.past = Counts()
        log.on_append.append(self._appended)
        log.on_delete.append(self._deleted)

    def start(self) -> None:
        """Start the task that tidies templates and closes idle streams."""
        self._house = asyncio.get_running_loop().create_task(self._keep_house())

    async def stop(self) -> None:
        """Stop the task and close all streams."""
        if self._house is not None:
            self._house.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._house
        for stream in tuple(self._open):
            self._close(stream)
        self._deadlines.close()

    def find(self, stream: Stream) -> Pace | None:
        """A stream that is followed, if it is; settings that were changed hold from now on."""
        pace = self._open.get(stream.id)
        if pace is not None:
            settings = self._settings(stream)
            if settings != pace.touching.settings:
                pace.touching.change(settings)
                pace.poke()
        return pace

    def followed(self) -> list[StreamTouches]:
        """Every stream that is followed."""
        return [pace.touching for pace in self._open.values()]

    async def open(self, stream: Stream) -> Pace:
        """Follow a stream from now on; its journal is made anew from the end of the log."""
        pace = self.find(stream)
        if pace is not None:
            return pace
        opening = self._opening.get(stream.id)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._follow(stream, self._settings(stream)))
            self._opening[stream.id] = opening
            opening.add_done_callback(lambda _: self._opening.pop(stream.id, None))
        return await asyncio.shield(opening)

    async def _follow(self, stream: Stream, settings: Touch) -> Pace:
        self._make_room()
        stream.pins += 1
        try:
            epoch = self._rows.epoch(stream.id)
            if epoch is None:
                fresh = secrets.token_hex(8)
                epoch = await self._apply(lambda batch: TouchRows(batch.connection).begin(stream.id, fresh))
            head = stream.head
            if head.state != LIVE:
                raise NotFound("the stream was deleted", stream=stream.name)
            readable = 0 if head.registry is None else head.registry.readable_from
            floor = min(head.next_seq, max(head.first_seq, readable, head.next_seq - REPLAY))
            roster = ActiveTemplates(settings.templates, self._rows.templates(stream.id), time() * 1000)
            journal = TouchJournal(epoch, floor, settings.memory)
            pace = Pace(StreamTouches(stream, settings, journal, roster, self._tiers, time() * 1000, self._slices))
        except BaseException:
            stream.pins -= 1
            raise
        self._open[stream.id] = pace
        pace.poke(at_once=True)
        return pace

    async def activate(
        self, touching: StreamTouches, declared: Sequence[Template | InvalidTemplate], ttl_ms: float | None
    ) -> Verdict:
        """Take templates in; those that are accepted see every change from now on, and outlive a restart."""
        roster, stream = touching.roster, touching.stream
        default_ms = touching.settings.templates.default_inactivity_ttl_ms
        async with touching.entering:
            verdict = roster.declare(declared, default_ms if ttl_ms is None else ttl_ms, time() * 1000)
            rows = [active.row()._replace(active_from=stream.head.next_seq) for active in verdict.added]
            evicted = [active.row().template for active in verdict.evicted]
            try:
                if rows or evicted:
                    await self._apply(lambda batch: _store(TouchRows(batch.connection), stream.id, rows, evicted))
            except BaseException:
                roster.remove(verdict.added)
                raise
            for active in verdict.added:
                active.active_from = stream.head.next_seq
        touching.retire(verdict.evicted)
        self.template_log.activated(stream, verdict.added)
        self.template_log.evicted(stream, verdict.evicted)
        counts = touching.counts
        counts.activated += len(verdict.added)
        counts.evicted += len(verdict.evicted)
        counts.denied += len(verdict.denied)
        return verdict

    # -- waiters

    def park(self, touching: StreamTouches, waiter: Waiter, wait_s: float) -> None:
        """Wake this one when one of its keys is touched, or when its time is up; who was answered leaves."""
        touching.parking.add(waiter, touching.journal.through)
        self._placed[waiter] = touching
        self._deadlines.add(waiter, wait_s)

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter that was answered or has gone."""
        touching = self._placed.pop(waiter, None)
        if touching is not None:
            touching.parking.remove(waiter)
            touching.asked_s = monotonic()
            self._deadlines.remove(waiter)

    def end(self, waiter: Waiter) -> None:
        """Answer a waiter now, as if its time were up."""
        self._give_up(waiter)

    def _give_up(self, waiter: Waiter) -> None:
        touching = self._placed.get(waiter)
        if touching is not None:
            began_s = monotonic()
            touching.give_up(waiter)
            touching.counts.timeouts += 1
            touching.counts.timeout_ms += (monotonic() - began_s) * 1000

    # -- changes of streams

    def _appended(self, stream: Stream, _first: int) -> None:
        pace = self._open.get(stream.id)
        if pace is not None:
            pace.poke()

    def _deleted(self, stream: Stream) -> None:
        self._close(stream.id)

    def _settings(self, stream: Stream) -> Touch:
        settings = settings_of(stream)
        if settings is None:
            raise NotFound("touch not enabled", stream=stream.name)
        return settings

    def _close(self, stream_id: int) -> None:
        pace = self._open.pop(stream_id, None)
        if pace is None:
            return
        pace.close()
        self.past.add(pace.touching.counts)
        for waiter in tuple(pace.touching.parking.waiters):
            pace.touching.parking.remove(waiter)
            waiter.answer("")
        pace.touching.stream.pins -= 1

    def _make_room(self) -> None:
        if len(self._open) < _MOST_OPEN:
            return
        idle = [pace for pace in self._open.values() if not pace.touching.parking.waiters]
        if not idle:
            raise Overloaded("touches of too many streams are waited for", retry_after=1)
        self._close(min(idle, key=lambda pace: pace.touching.asked_s).touching.stream.id)

    async def _keep_house(self) -> None:
        due: dict[int, float] = {}
        while True:
            await asyncio.sleep(_HOUSE_S)
            for stream_id, pace in tuple(self._open.items()):
                every_s = pace.touching.settings.templates.gc_interval_ms / 1000
                try:
                    if settings_of(pace.touching.stream) is None:
                        await self._end(pace.touching.stream)
                    elif monotonic() >= due.setdefault(stream_id, monotonic() + every_s):
                        due[stream_id] = monotonic() + every_s
                        await self._tidy(pace.touching)
                except Exception:
                    log.exception("templates of %s could not be tidied", pace.touching.stream.name)
            due = {stream_id: at_s for stream_id, at_s in due.items() if stream_id in self._open}

    async def _end(self, stream: Stream) -> None:
        """Touches of a stream are not told any more: what was asked of it is forgotten."""
        self._close(stream.id)
        await self._apply(lambda batch: TouchRows(batch.connection).end(stream.id))

    async def _tidy(self, touching: StreamTouches) -> None:
        """Retire templates that nobody uses, store when the others were used, and close what is idle."""
        now_ms, roster, stream = time() * 1000, touching.roster, touching.stream
        if not touching.parking.waiters and monotonic() - touching.asked_s > _IDLE_S:
            self._close(stream.id)
            return
        used = {template.id for waiter in touching.parking.waiters for template in waiter.templates}
        roster.see(used, now_ms)
        expired, seen = roster.expired(now_ms), roster.unstored(now_ms)
        if expired or seen:
            dropped = [active.row().template for active in expired]
            rows = [active.row() for active in seen if active not in expired]
            await self._apply(lambda batch: _store(TouchRows(batch.connection), stream.id, rows, dropped))
        for active in seen:
            active.stored_ms = now_ms
        touching.retire(expired)
        self.template_log.retired(stream, expired)
        touching.counts.retired += len(expired)


def _store(rows: TouchRows, stream: int, saved: list[Any], dropped: list[str]) -> None:
    rows.save(stream, saved)
    rows.drop(stream, dropped)
