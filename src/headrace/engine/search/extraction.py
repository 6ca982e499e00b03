"""Columns of new events, extracted in a thread soon after they are committed, so that questions find them made."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from headrace.engine.log import Log
from headrace.engine.stream import Stream
from headrace.errors import HeadraceError
from headrace.storage.streams import LIVE

if TYPE_CHECKING:
    from headrace.engine.search.archive import Archive

log = logging.getLogger("headrace.search")

#: Fewer new events are left to whoever asks.
LEAST_ROWS = 16_384
_RELEASE_S = 1.0


class Extraction:
    """Follows the streams that have search fields; its thread starts with the first that has enough new events."""

    def __init__(self, events: Log, open_archive: Callable[[], Archive]) -> None:
        self._log = events
        self._open_archive = open_archive
        self._due: dict[int, Stream] = {}
        #: By id, streams with many new events: where those begin that are not extracted, and the stream.
        self._known: dict[int, tuple[int, Stream]] = {}
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        events.on_append.append(self._appended)

    async def stop(self) -> None:
        """Extract nothing more."""
        self._log.on_append.remove(self._appended)
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _appended(self, stream: Stream, _first: int) -> None:
        """Called on the event loop after each commit."""
        head = stream.head
        if head.registry is None or head.next_seq - head.published_seq < LEAST_ROWS:
            return
        known = self._known.get(stream.id)
        if known is not None and head.next_seq - known[0] < LEAST_ROWS:
            return
        if head.registry.registry.search is None:
            return
        self._due[stream.id] = stream
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headrace-extract", daemon=True)
            self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        released = monotonic()
        while not self._stopping.is_set():
            self._wake.wait(_RELEASE_S)
            self._wake.clear()
            due, self._due = self._due, {}
            for stream in due.values():
                self._do(stream, self._extract)
            if monotonic() - released >= _RELEASE_S:
                for _, stream in list(self._known.values()):
                    self._do(stream, self._release)
                released = monotonic()

    def _do(self, stream: Stream, work: Callable[[Archive, Stream], None]) -> None:
        if self._stopping.is_set():
            return
        try:
            work(self._open_archive(), stream)
        except HeadraceError as reason:
            log.info("%s: %s", stream.name, reason.message)
        except Exception:
            log.exception("columns of %s are not extracted ahead", stream.name)

    def _extract(self, archive: Archive, stream: Stream) -> None:
        head = stream.head
        start, _ = self._known.get(stream.id, (head.published_seq, stream))
        self._known[stream.id] = head.next_seq, stream
        with archive.look(stream, head, archive.defined(stream, head)) as look:
            look.extract(start)

    def _release(self, archive: Archive, stream: Stream) -> None:
        head = stream.head
        if stream.head.state != LIVE:
            del self._known[stream.id]
            archive.blocks.keep_only(stream.incarnation, [])
            return
        with archive.look(stream, head, archive.defined(stream, head)) as look:
            look.release()
        if stream.incarnation not in archive.blocks.streams():
            del self._known[stream.id]
