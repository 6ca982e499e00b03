"""The streams whose touches clients wait for: opened on the first request, and closed when idle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from headrace.engine.touch.active_templates import Activation, ActiveTemplates, TemplateLog
from headrace.engine.touch.journal import TouchJournal
from headrace.engine.touch.processor import TouchCounts
from headrace.engine.touch.stream_touches import StreamTouches
from headrace.engine.touch.timer import TouchTimer
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
_MAX_OPEN_STREAMS = 1_000
_IDLE_S = 900.0
_MAINTENANCE_S = 1.0

Apply = Callable[["Callable[[Batch], Any]"], Awaitable[Any]]


def settings_of(stream: Stream) -> Touch | None:
    """The touch settings of a stream; None where its profile has none."""
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
        self._open: dict[int, TouchTimer] = {}
        self._opening: dict[int, asyncio.Task[TouchTimer]] = {}
        self._touches_by_waiter: dict[Waiter, StreamTouches] = {}
        self._deadlines = Deadlines(self.time_out)
        self._maintenance: asyncio.Task[None] | None = None
        self.template_log = TemplateLog()
        #: The totals of streams that are not followed any more.
        self.past = TouchCounts()
        log.on_append.append(self._appended)
        log.on_delete.append(self._deleted)

    def start(self) -> None:
        """Start the task that tidies templates and closes idle streams."""
        self._maintenance = asyncio.get_running_loop().create_task(self._maintain())

    async def stop(self) -> None:
        """Stop the task and close all streams."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._maintenance
        for stream in tuple(self._open):
            self._close(stream)
        self._deadlines.close()

    def find(self, stream: Stream) -> TouchTimer | None:
        """The timer of a stream if it is followed; changed settings hold from now on."""
        timer = self._open.get(stream.id)
        if timer is not None:
            settings = self._settings(stream)
            if settings != timer.stream_touches.settings:
                timer.stream_touches.change(settings)
                timer.schedule()
        return timer

    def followed(self) -> list[StreamTouches]:
        """Every stream that is followed."""
        return [timer.stream_touches for timer in self._open.values()]

    async def open(self, stream: Stream) -> TouchTimer:
        """Follow a stream from now on; its journal is read from the end of the log."""
        timer = self.find(stream)
        if timer is not None:
            return timer
        opening = self._opening.get(stream.id)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._follow(stream, self._settings(stream)))
            self._opening[stream.id] = opening
            opening.add_done_callback(lambda _: self._opening.pop(stream.id, None))
        return await asyncio.shield(opening)

    async def _follow(self, stream: Stream, settings: Touch) -> TouchTimer:
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
            templates = ActiveTemplates(settings.templates, self._rows.templates(stream.id), time() * 1000)
            journal = TouchJournal(epoch, floor, settings.memory)
            timer = TouchTimer(
                StreamTouches(stream, settings, journal, templates, self._tiers, time() * 1000, self._slices)
            )
        except BaseException:
            stream.pins -= 1
            raise
        self._open[stream.id] = timer
        timer.schedule(at_once=True)
        return timer

    async def activate(
        self, stream_touches: StreamTouches, declared: Sequence[Template | InvalidTemplate], ttl_ms: float | None
    ) -> Activation:
        """Activate templates; those that are accepted see every change from now on, and survive a restart."""
        templates, stream = stream_touches.templates, stream_touches.stream
        default_ms = stream_touches.settings.templates.default_inactivity_ttl_ms
        async with stream_touches.activation_lock:
            activation = templates.declare(declared, default_ms if ttl_ms is None else ttl_ms, time() * 1000)
            rows = [active.row()._replace(active_from=stream.head.next_seq) for active in activation.added]
            evicted = [active.row().template for active in activation.evicted]
            try:
                if rows or evicted:
                    await self._apply(lambda batch: _store(TouchRows(batch.connection), stream.id, rows, evicted))
            except BaseException:
                templates.remove(activation.added)
                raise
            for active in activation.added:
                active.active_from = stream.head.next_seq
        stream_touches.retire(activation.evicted)
        self.template_log.activated(stream, activation.added)
        self.template_log.evicted(stream, activation.evicted)
        counts = stream_touches.counts
        counts.activated += len(activation.added)
        counts.evicted += len(activation.evicted)
        counts.denied += len(activation.denied)
        return activation

    # -- waiters

    def park(self, stream_touches: StreamTouches, waiter: Waiter, wait_s: float) -> None:
        """Wake a waiter when one of its keys is touched, or after a time; its owner removes it once it is answered."""
        stream_touches.waiters.add(waiter, stream_touches.journal.through)
        self._touches_by_waiter[waiter] = stream_touches
        self._deadlines.add(waiter, wait_s)

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter that was answered or has gone."""
        stream_touches = self._touches_by_waiter.pop(waiter, None)
        if stream_touches is not None:
            stream_touches.waiters.remove(waiter)
            stream_touches.used_s = monotonic()
            self._deadlines.remove(waiter)

    def time_out(self, waiter: Waiter) -> None:
        """Answer a waiter now, as its time is up."""
        stream_touches = self._touches_by_waiter.get(waiter)
        if stream_touches is not None:
            began_s = monotonic()
            stream_touches.time_out(waiter)
            stream_touches.counts.timeouts += 1
            stream_touches.counts.timeout_ms += (monotonic() - began_s) * 1000

    # -- changes of streams

    def _appended(self, stream: Stream, _first: int) -> None:
        timer = self._open.get(stream.id)
        if timer is not None:
            timer.schedule()

    def _deleted(self, stream: Stream) -> None:
        self._close(stream.id)

    def _settings(self, stream: Stream) -> Touch:
        settings = settings_of(stream)
        if settings is None:
            raise NotFound("touch not enabled", stream=stream.name)
        return settings

    def _close(self, stream_id: int) -> None:
        timer = self._open.pop(stream_id, None)
        if timer is None:
            return
        timer.close()
        self.past.add(timer.stream_touches.counts)
        for waiter in tuple(timer.stream_touches.waiters.parked):
            timer.stream_touches.waiters.remove(waiter)
            waiter.answer("")
        timer.stream_touches.stream.pins -= 1

    def _make_room(self) -> None:
        if len(self._open) < _MAX_OPEN_STREAMS:
            return
        idle = [timer for timer in self._open.values() if not timer.stream_touches.waiters.parked]
        if not idle:
            raise Overloaded("touches of too many streams are waited for", retry_after=1)
        self._close(min(idle, key=lambda timer: timer.stream_touches.used_s).stream_touches.stream.id)

    async def _maintain(self) -> None:
        due: dict[int, float] = {}
        while True:
            await asyncio.sleep(_MAINTENANCE_S)
            for stream_id, timer in tuple(self._open.items()):
                every_s = timer.stream_touches.settings.templates.gc_interval_ms / 1000
                try:
                    if settings_of(timer.stream_touches.stream) is None:
                        await self._end(timer.stream_touches.stream)
                    elif monotonic() >= due.setdefault(stream_id, monotonic() + every_s):
                        due[stream_id] = monotonic() + every_s
                        await self._tidy(timer.stream_touches)
                except Exception:
                    log.exception("templates of %s could not be tidied", timer.stream_touches.stream.name)
            due = {stream_id: at_s for stream_id, at_s in due.items() if stream_id in self._open}

    async def _end(self, stream: Stream) -> None:
        """Stop following a stream without touches, and forget its templates."""
        self._close(stream.id)
        await self._apply(lambda batch: TouchRows(batch.connection).end(stream.id))

    async def _tidy(self, stream_touches: StreamTouches) -> None:
        """Retire unused templates, store when the others were used, and close an idle stream."""
        now_ms, templates, stream = time() * 1000, stream_touches.templates, stream_touches.stream
        if not stream_touches.waiters.parked and monotonic() - stream_touches.used_s > _IDLE_S:
            self._close(stream.id)
            return
        used = {template.id for waiter in stream_touches.waiters.parked for template in waiter.templates}
        templates.see(used, now_ms)
        expired, seen = templates.expired(now_ms), templates.unstored(now_ms)
        if expired or seen:
            dropped = [active.row().template for active in expired]
            rows = [active.row() for active in seen if active not in expired]
            await self._apply(lambda batch: _store(TouchRows(batch.connection), stream.id, rows, dropped))
        for active in seen:
            active.stored_ms = now_ms
        stream_touches.retire(expired)
        self.template_log.retired(stream, expired)
        stream_touches.counts.retired += len(expired)


def _store(rows: TouchRows, stream: int, saved: list[Any], dropped: list[str]) -> None:
    rows.save(stream, saved)
    rows.drop(stream, dropped)
