"""What searches read: the companions of a stream in files, those of the rest in memory, and stored events.

Everything here is for threads. A thread borrows a connection for one answer, and computes it from a snapshot of the
stream. Where events move or vanish meanwhile, the answer is computed again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from headrace.config import Config
from headrace.deadline import Deadline
from headrace.engine.history.stored_events import Events, EventsMoved, MissingObjects
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.auto_tune import beside_companions
from headrace.engine.search.blocks import Blocks, Room
from headrace.engine.search.companion_coverage import CompanionCoverage, Defined, Definitions, may_answer, span, widest
from headrace.errors import BadRequest, CorruptData, NotFound, Unavailable
from headrace.format.companion.layout import Companion, PartName
from headrace.format.companion.reader import CompanionReader
from headrace.format.decoded_columns import DecodedCache
from headrace.format.ranges import Range, without
from headrace.reduce import duck
from headrace.reduce.groups import GroupLimits
from headrace.storage import database
from headrace.storage.companion_files import CompanionFiles
from headrace.storage.objects import ObjectMissing, Objects
from headrace.storage.streams import LIVE, Streams

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

log = logging.getLogger("headrace.search")

_CACHE_BYTES = 2 * 1024 * 1024
#: Connections that wait for the next answer.
_MOST_IDLE = 8


class CoveredRange(NamedTuple):
    """Consecutive events, and the companion in files that describes them; None where there is none."""

    start: int
    stop: int
    companion: Companion | None


class IndexedRange(NamedTuple):
    """Events ``start`` to ``stop``, and a companion that describes them, and perhaps others."""

    companion: CompanionReader
    start: int
    stop: int
    #: The least and the greatest primary time in ms that it holds.
    times: tuple[int, int] | None


class SearchSnapshot:
    """A stream as of one head, for one answer."""

    def __init__(self, archive: Archive, link: _Link, stream: Stream, head: Head, defined: Defined) -> None:
        self._archive = archive
        self._coverage = link.coverage
        self.stream, self.head, self.defined = stream, head, defined
        # What it finds goes to where it was found: events may be erased meanwhile.
        self._blocks = archive.blocks
        self.events = Events(link.connection, archive.segments, archive.recent, stream, head)
        row = Streams(link.connection).by_id(stream.id)
        if row is None or row.state != LIVE:
            raise EventsMoved(f"{stream.name} is gone")
        #: Answers speak of retained events in versions from which lenses lead on.
        self.start = min(max(row.first_seq, head.first_seq, defined.registry.readable_from), head.next_seq)
        self.stop = head.next_seq

    def stretches(self, fields: Collection[str], rollups: Collection[str] = ()) -> list[CoveredRange]:
        """All events in order, by the companions that hold these fields and rollups as they are defined now."""
        listed = [
            companion for companion in self._coverage.listed(self.stream) if not self._archive.is_damaged(companion)
        ]
        usable = [companion for companion in listed if may_answer(companion, self.defined, fields, rollups)]
        whole = Range(self.start, self.stop)
        chosen = [companion for companion in widest(usable) if span(companion).overlaps(whole)]
        covered = [
            CoveredRange(max(companion.first_seq, self.start), min(companion.end_seq, self.stop), companion)
            for companion in chosen
        ]
        gaps = [CoveredRange(*gap, None) for gap in without([whole], map(span, chosen))]
        return sorted([*covered, *gaps], key=lambda each: each.start)

    @contextmanager
    def described(
        self,
        covered: CoveredRange,
        parts: Collection[PartName],
        *,
        newest_first: bool = True,
        deadline: Deadline | None = None,
    ) -> Iterator[Iterator[IndexedRange]]:
        """The companions of a stretch, one after the other."""
        if covered.companion is not None:
            stream = self.stream
            with self._archive.files.open(stream.name, stream.incarnation, covered.companion, parts) as opened:
                yield iter([IndexedRange(opened, covered.start, covered.stop, self.times(covered.companion))])
            return
        pieces = self._blocks.pieces(
            self.stream.incarnation,
            self.defined,
            self.events,
            covered.start,
            covered.stop,
            newest_first=newest_first,
            deadline=deadline,
        )
        yield (IndexedRange(*piece, piece.companion.info.times) for piece in pieces)

    def extract(self, start: int, stop: int) -> None:
        """Extract the columns of a range of events, where no companion holds everything that is defined."""
        for first, end in self.uncovered():
            wanted = max(first, start), min(end, stop)
            self._blocks.extract(self.stream.incarnation, self.defined, self.events, *wanted)

    def release(self) -> None:
        """Let go of columns of events that companions describe by now, or that are not retained."""
        self._blocks.keep_only(self.stream.incarnation, self.uncovered())

    def uncovered(self) -> list[Range]:
        """The events that no companion describes in everything that is defined."""
        search = self.defined.definition.search
        stretches = self.stretches(search.fields, search.rollups)
        return [Range(start, stop) for start, stop, companion in stretches if companion is None]

    def times(self, companion: Companion) -> tuple[int, int] | None:
        """The primary times that a companion holds; None where it holds none as they are defined now."""
        primary = self.defined.definition.search.primary_timestamp
        return companion.times if may_answer(companion, self.defined, [primary]) else None


class _Link(NamedTuple):
    """A connection, and what is known through it."""

    connection: Any
    coverage: CompanionCoverage


class Archive:
    """Shared by all answers of a node."""

    def __init__(
        self, config: Config, objects: Objects, segments: Callable[[], Segments], vfs: str | None = None
    ) -> None:
        data_dir = Path(config.storage.data_dir)
        self._path, self._vfs = data_dir / "headrace.db", vfs
        self.segments = segments
        duck.limit_memory(config.limits.duckdb_bytes)
        beside_bytes = beside_companions(config)
        #: Stored events that were given out last.
        self.recent = DecodedCache(beside_bytes)
        self._room = Room(
            config.limits.tail_columns_bytes, config.storage.tail_cache_bytes, data_dir / "cache" / "tail"
        )
        self.blocks = Blocks(self._room)
        self.files = CompanionFiles(
            objects,
            data_dir / "cache" / "companions",
            limit_bytes=config.storage.companion_cache_bytes,
            decoded_bytes=config.limits.companion_bytes,
            footer_bytes=beside_bytes,
        )
        self.group_limits = GroupLimits(config.limits.aggregate_groups, config.limits.aggregate_bytes)
        self._definitions = Definitions()
        self._lock = threading.Lock()
        self._idle: list[_Link] = []
        self._closed = False
        self._damaged: set[str] = set()
        # Arrow looks for pandas when it first sees an array of numpy, and loads it for a second.
        pa.array(np.empty(0))

    def close(self) -> None:
        """Let go of the connections; those in use go when they are given back."""
        with self._lock:
            self._closed = True
            for link in self._idle:
                link.connection.close()
            self._idle.clear()

    def shrink(self) -> None:
        """Keep half of what is decoded, no connection that nobody uses, and no mapped page."""
        self.files.shrink()
        self.recent.shrink(self.recent.bytes // 2)
        self.blocks.drop_pages()
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.connection.close()

    def forget(self) -> None:
        """Answer from nothing that was kept of events: some were erased."""
        blocks = Blocks(self._room)
        blocks.extracted = self.blocks.extracted
        self.recent, self.blocks = DecodedCache(self.recent.limit_bytes), blocks

    def defined(self, stream: Stream, head: Head) -> Defined:
        """What is declared for search; refused where nothing is."""
        if not stream.is_json:
            raise BadRequest(f"search needs a JSON stream; this one holds {stream.content_type}", field="stream")
        registry = head.registry
        found = (
            None if registry is None else self._definitions.of(stream.id, registry.revision, lambda: registry.registry)
        )
        if found is None:
            raise BadRequest("search is not configured for this stream; see _schema", field="search")
        return found

    def is_damaged(self, companion: Companion) -> bool:
        """Whether the files of a companion were found damaged or missing."""
        return companion.name in self._damaged

    def distrust(self, companion: Companion, reason: CorruptData) -> None:
        """Use the files of a companion no more: what they describe is still in the segments."""
        log.error("a companion is left out from now on: %s", reason.message)
        self._damaged.add(companion.name)

    @contextmanager
    def snapshot(self, stream: Stream, head: Head, defined: Defined) -> Iterator[SearchSnapshot]:
        """A look at a stream, as it is at one head."""
        link = self._borrowed()
        try:
            yield SearchSnapshot(self, link, stream, head, defined)
        finally:
            self._give_back(link)

    def _borrowed(self) -> _Link:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = database.connect(self._path, cache_bytes=_CACHE_BYTES, readonly=True, vfs=self._vfs)
        return _Link(connection, CompanionCoverage(connection, self._definitions))

    def _give_back(self, link: _Link) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _MOST_IDLE:
                self._idle.append(link)
                return
        link.connection.close()


T = TypeVar("T")

_TRIES = 5


def tried(archive: Archive, stream: Stream, head: Head, defined: Defined, answer: Callable[[SearchSnapshot], T]) -> T:
    """What can be answered from a look at a stream as of a head; looks again where that has changed meanwhile."""
    missing = MissingObjects()
    for _ in range(_TRIES):
        try:
            with archive.snapshot(stream, head, defined) as snapshot:
                return answer(snapshot)
        except (EventsMoved, ObjectMissing) as reason:
            if stream.head.state != LIVE:
                raise NotFound("the stream was deleted", stream=stream.name) from reason
            if isinstance(reason, ObjectMissing):
                missing.note(reason)
    raise Unavailable("the events of the stream keep moving; try again", retry_after=1, reason="moving")


@contextmanager
def trusting(archive: Archive, covered: CoveredRange) -> Iterator[None]:
    """A companion whose files cannot be read is used no more; what it describes is still in the segments."""
    try:
        yield
    except CorruptData as reason:
        if covered.companion is None:
            raise
        archive.distrust(covered.companion, reason)
        raise EventsMoved("a companion cannot be read") from reason
