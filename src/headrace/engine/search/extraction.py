"""Columns of new events, extracted in a thread soon after they are committed, so that questions find them made."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING

from headrace.engine.history.stored_events import EventsMoved
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.background import BackgroundThread
from headrace.errors import HeadraceError
from headrace.storage.streams import LIVE

if TYPE_CHECKING:
    from headrace.engine.search.archive import Archive

log = logging.getLogger("headrace.search")

#: Fewer new events are left to whoever asks; of a stream that nobody has asked for a while, so many as make a block
#: that is not merged with others.
LEAST_ROWS, UNEXPECTED_ROWS = 16_384, 65_536
#: Of a stream whose new events are extracted for the first time, so many of those before them are, too.
CATCH_UP_ROWS = 4_000_000
#: So many events of one stream are extracted before it is another's turn.
_TURN_ROWS = 262_144
_RELEASE_S = 1.0


class Extraction:
    """Follows the streams that have search fields; its thread starts with the first that has enough new events."""

    def __init__(
        self, events: Log, opened_archive: Callable[[], Archive | None], open_archive: Callable[[], Archive]
    ) -> None:
        self._log = events
        self._opened_archive = opened_archive
        self._open_archive = open_archive
        self._queue: SimpleQueue[Stream | None] = SimpleQueue()
        self._queued: set[int] = set()
        #: By id, the streams whose columns are kept, and the first event of each that was not looked at yet.
        self._followed: dict[int, tuple[Stream, int]] = {}
        self._thread: BackgroundThread | None = None
        self._released_s = 0.0
        events.on_append.append(self._appended)

    async def stop(self) -> None:
        """Extract nothing more."""
        self._log.on_append.remove(self._appended)
        if self._thread is not None:
            self._thread.stopping.set()
            self._queue.put(None)
            await self._thread.stop()

    def _appended(self, stream: Stream, _first: int) -> None:
        """Called on the event loop after each commit."""
        head = stream.head
        if head.registry is None or head.next_seq - head.published_seq < LEAST_ROWS or stream.id in self._queued:
            return
        followed = self._followed.get(stream.id)
        if followed is not None and head.next_seq - followed[1] < LEAST_ROWS:
            return
        if head.registry.registry.search is None or not self._is_worth_it(stream, head, followed):
            return
        self._enqueue(stream)
        if self._thread is None:
            thread = self._thread = BackgroundThread("extract")
            self._released_s = monotonic()
            thread.submit(lambda: self._take_turn(thread))

    def _is_worth_it(self, stream: Stream, head: Head, followed: tuple[Stream, int] | None) -> bool:
        """Whether new events are enough, or questions expected: a managed stream has search fields in any case."""
        archive = self._opened_archive()
        if archive is not None and archive.blocks.is_expected(stream.incarnation):
            return True
        if stream.managed and (archive is None or not archive.blocks.has(stream.incarnation)):
            return False
        return head.next_seq - (head.published_seq if followed is None else followed[1]) >= UNEXPECTED_ROWS

    def _enqueue(self, stream: Stream) -> None:
        self._queued.add(stream.id)
        self._queue.put(stream)

    def _take_turn(self, thread: BackgroundThread) -> None:
        """Extract what is queued first, and release what nobody needs; then the next turn begins."""
        try:
            stream = self._queue.get(timeout=_RELEASE_S)
        except Empty:
            stream = None
        if thread.stopping.is_set():
            return
        if stream is not None:
            self._queued.discard(stream.id)
            self._try(self._extract, stream)
        if monotonic() - self._released_s >= _RELEASE_S:
            for followed, _ in list(self._followed.values()):
                if not thread.stopping.is_set():
                    self._try(self._release, followed)
            self._released_s = monotonic()
        # A turn of its own each time: a thread that never came to an end would keep the process from ending.
        thread.submit(lambda: self._take_turn(thread))

    def _try(self, work: Callable[[Archive, Stream], None], stream: Stream) -> None:
        try:
            work(self._open_archive(), stream)
        except HeadraceError as reason:
            log.info("%s: %s", stream.name, reason.message)
        except Exception:
            log.exception("columns of %s are not extracted ahead", stream.name)

    def _extract(self, archive: Archive, stream: Stream) -> None:

        head = stream.head
        _, start = self._followed.get(stream.id, (stream, max(0, head.next_seq - CATCH_UP_ROWS)))
        stop = min(head.next_seq, start + _TURN_ROWS)
        self._followed[stream.id] = stream, stop
        try:
            with archive.snapshot(stream, head, archive.defined(stream, head)) as snapshot:
                snapshot.extract(start, stop)
        except EventsMoved:
            pass  # retention or an erasure took them away; whoever asks looks again
        if head.next_seq - stop >= LEAST_ROWS:
            self._enqueue(stream)

    def _release(self, archive: Archive, stream: Stream) -> None:
        head = stream.head
        if head.state != LIVE or head.registry is None or head.registry.registry.search is None:
            archive.blocks.keep_only(stream.incarnation, [])
        else:
            with archive.snapshot(stream, head, archive.defined(stream, head)) as snapshot:
                snapshot.release()
        if stream.incarnation not in archive.blocks.streams():
            del self._followed[stream.id]
