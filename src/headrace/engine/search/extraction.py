"""Extracts the columns of new events in a thread soon after they are committed, ahead of queries."""

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

#: Fewer new events are left to queries; of a stream that was not queried for a while, so many as make a block that is
#: not merged with others.
MIN_ROWS, MIN_UNQUERIED_ROWS = 16_384, 65_536
#: Of a stream whose new events are extracted for the first time, so many of those before them are, too.
CATCH_UP_ROWS = 4_000_000
#: So many events of one stream are extracted before it is another's turn.
_TURN_ROWS = 262_144
_RELEASE_S = 1.0


class TailExtractor:
    """Follows the streams that have search fields; its thread starts with the first that has enough new events."""

    def __init__(
        self, events: Log, opened_archive: Callable[[], Archive | None], open_archive: Callable[[], Archive]
    ) -> None:
        self._log = events
        self._opened_archive = opened_archive
        self._open_archive = open_archive
        self._queue: SimpleQueue[Stream | None] = SimpleQueue()
        self._queued: set[int] = set()
        #: By id, the streams whose columns are kept, and the first event of each that is not extracted yet.
        self._followed: dict[int, tuple[Stream, int]] = {}
        self._thread: BackgroundThread | None = None
        self._released_s = 0.0
        events.on_append.append(self._note_append)

    async def stop(self) -> None:
        """Extract nothing more."""
        self._log.on_append.remove(self._note_append)
        if self._thread is not None:
            self._thread.stopping.set()
            self._queue.put(None)
            await self._thread.stop()

    def _note_append(self, stream: Stream, _first: int) -> None:
        """Called on the event loop after each commit."""
        head = stream.head
        if head.registry is None or head.next_seq - head.published_seq < MIN_ROWS or stream.id in self._queued:
            return
        followed = self._followed.get(stream.id)
        if followed is not None and head.next_seq - followed[1] < MIN_ROWS:
            return
        if head.registry.registry.search is None or not self._is_worthwhile(stream, head, followed):
            return
        self._enqueue(stream)
        if self._thread is None:
            thread = self._thread = BackgroundThread("extract")
            self._released_s = monotonic()
            thread.submit(lambda: self._take_turn(thread))

    def _is_worthwhile(self, stream: Stream, head: Head, followed: tuple[Stream, int] | None) -> bool:
        """Whether new events are enough, or queries expected: a managed stream always has search fields."""
        archive = self._opened_archive()
        if archive is not None and archive.blocks.is_queried(stream.incarnation):
            return True
        if stream.managed and (archive is None or not archive.blocks.has(stream.incarnation)):
            return False
        return head.next_seq - (head.published_seq if followed is None else followed[1]) >= MIN_UNQUERIED_ROWS

    def _enqueue(self, stream: Stream) -> None:
        self._queued.add(stream.id)
        self._queue.put(stream)

    def _take_turn(self, thread: BackgroundThread) -> None:
        """Extract events of the first stream in the queue, drop unused blocks, and submit the next turn."""
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
        # One turn at a time: a call that never returned would keep the process from ending.
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
            pass  # retention or an erasure has removed them; queries extract what is left
        if head.next_seq - stop >= MIN_ROWS:
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
