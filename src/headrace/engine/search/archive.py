"""What searches read: the companions of a stream in files, those of the rest in memory, and stored events.

Everything here is for threads. A thread borrows a connection for one answer, and computes it from a snapshot of the
stream. Where events move or vanish meanwhile, the answer is computed again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from headrace.config import Config
from headrace.deadline import Deadline
from headrace.engine.history.stored_events import Events, EventsMoved, MissingObjects
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.auto_tune import beside_companions
from headrace.engine.runtime.background import ConnectionPool
from headrace.engine.search.blocks import BlockCache, BlockLimits
from headrace.engine.search.companion_coverage import (
    CompanionCoverage,
    SearchDefinition,
    SearchDefinitions,
    span,
    widest,
)
from headrace.errors import BadRequest, CorruptData, NotFound, Unavailable
from headrace.format.companion.layout import Companion, PartName
from headrace.format.companion.reader import CompanionReader
from headrace.format.decoded_columns import LruCache
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

Answer = TypeVar("Answer")

_CACHE_BYTES = 2 * 1024 * 1024
_MAX_IDLE_CONNECTIONS = 8
#: How often an answer is computed before the request is refused because events keep moving.
_MAX_ATTEMPTS = 5


class CoveredRange(NamedTuple):
    """Consecutive events, and the companion in files that describes them; None where there is none."""

    start: int
    stop: int
    companion: Companion | None


class IndexedRange(NamedTuple):
    """Events ``start`` to ``stop``, and an open companion that describes them, and perhaps others."""

    companion: CompanionReader
    start: int
    stop: int
    #: The least and the greatest primary time in ms that it holds.
    times: tuple[int, int] | None


class CompanionDamaged(EventsMoved):
    """A companion that cannot be read; from now on its events are read from segments."""


class SearchSnapshot:
    """A stream as of one head, for one answer."""

    def __init__(
        self, archive: Archive, coverage: CompanionCoverage, stream: Stream, head: Head, defined: SearchDefinition
    ) -> None:
        self.archive, self._coverage = archive, coverage
        self.stream, self.head, self.defined = stream, head, defined
        # Blocks that it makes go to where it looked for them: events may be erased meanwhile.
        self._blocks = archive.blocks
        self.events = Events(coverage.connection, archive.segments, archive.recent, stream, head)
        row = Streams(coverage.connection).by_id(stream.id)
        if row is None or row.state != LIVE:
            raise EventsMoved(f"{stream.name} is gone")
        #: The first event that is retained and that lenses carry to the newest version.
        self.start = min(max(row.first_seq, head.first_seq, defined.registry.readable_from), head.next_seq)
        self.stop = head.next_seq

    def covered_ranges(self, fields: Collection[str], rollups: Collection[str] = ()) -> list[CoveredRange]:
        """All events in order, by the companions that hold these fields and rollups as they are defined now."""
        usable = [
            companion
            for companion in self._coverage.listed(self.stream)
            if not self.archive.is_damaged(companion) and self.defined.may_answer(companion, fields, rollups)
        ]
        retained = Range(self.start, self.stop)
        chosen = [companion for companion in widest(usable) if span(companion).overlaps(retained)]
        covered = [
            CoveredRange(max(companion.first_seq, self.start), min(companion.end_seq, self.stop), companion)
            for companion in chosen
        ]
        gaps = [CoveredRange(*gap, None) for gap in without([retained], map(span, chosen))]
        return sorted([*covered, *gaps], key=attrgetter("start"))

    @contextmanager
    def open_range(
        self,
        covered: CoveredRange,
        parts: Collection[PartName],
        *,
        newest_first: bool = True,
        deadline: Deadline | None = None,
    ) -> Iterator[Iterator[IndexedRange]]:
        """The companions of a range, one after the other; what has none in files gets one in memory."""
        if covered.companion is None:
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
            return
        stream = self.stream
        with self.archive.files.open(stream.name, stream.incarnation, covered.companion, parts) as companion:
            yield iter([IndexedRange(companion, covered.start, covered.stop, self.times(covered.companion))])

    def extract(self, start: int, stop: int) -> None:
        """Extract the columns of a range of events, where no companion holds everything that is defined."""
        for first, end in self.uncovered():
            self._blocks.extract(self.stream.incarnation, self.defined, self.events, max(first, start), min(end, stop))

    def release(self) -> None:
        """Drop blocks of events that companions in files describe by now, or that are not retained."""
        self._blocks.keep_only(self.stream.incarnation, self.uncovered())

    def uncovered(self) -> list[Range]:
        """The events that no companion in files describes in everything that is defined."""
        search = self.defined.definition.search
        ranges = self.covered_ranges(search.fields, search.rollups)
        return [Range(start, stop) for start, stop, companion in ranges if companion is None]

    def times(self, companion: Companion) -> tuple[int, int] | None:
        """The primary times that a companion holds; None where it holds none as they are defined now."""
        primary = self.defined.definition.search.primary_timestamp
        return companion.times if self.defined.may_answer(companion, [primary]) else None


class Archive:
    """The caches and connections that all requests of a node share."""

    def __init__(
        self, config: Config, objects: Objects, segments: Callable[[], Segments], vfs: str | None = None
    ) -> None:
        data_dir = Path(config.storage.data_dir)
        self._path, self._vfs = data_dir / "headrace.db", vfs
        self.segments = segments
        duck.limit_memory(config.limits.duckdb_bytes)
        beside_bytes = beside_companions(config)
        #: Stored events that were read last.
        self.recent = LruCache(beside_bytes)
        self._block_limits = BlockLimits(
            config.limits.tail_columns_bytes, config.storage.tail_cache_bytes, data_dir / "cache" / "tail"
        )
        self.blocks = BlockCache(self._block_limits)
        self.files = CompanionFiles(
            objects,
            data_dir / "cache" / "companions",
            limit_bytes=config.storage.companion_cache_bytes,
            decoded_bytes=config.limits.companion_bytes,
            footer_bytes=beside_bytes,
        )
        self.group_limits = GroupLimits(config.limits.aggregate_groups, config.limits.aggregate_bytes)
        self._definitions = SearchDefinitions()
        self._connections = ConnectionPool(self._connect, max_idle=_MAX_IDLE_CONNECTIONS)
        self._damaged: set[str] = set()
        # Arrow looks for pandas when it first sees an array of numpy, and loads it for a second.
        pa.array(np.empty(0))

    def close(self) -> None:
        """Close the connections; those in use are closed when they are given back."""
        self._connections.close()

    def shrink(self) -> None:
        """Halve the caches of decoded data, close idle connections, and evict mapped pages."""
        self.files.shrink()
        self.recent.shrink(self.recent.bytes // 2)
        self.blocks.drop_pages()
        self._connections.close_idle()

    def clear_events(self) -> None:
        """Drop the events and columns that are kept in memory: some were erased."""
        blocks = BlockCache(self._block_limits)
        blocks.extracted = self.blocks.extracted
        self.recent, self.blocks = LruCache(self.recent.limit_bytes), blocks

    def defined(self, stream: Stream, head: Head) -> SearchDefinition:
        """The search definition of a stream; raises BadRequest where it has none."""
        if not stream.is_json:
            raise BadRequest(f"search needs a JSON stream; this one holds {stream.content_type}", field="stream")
        registry = head.registry
        defined = (
            None if registry is None else self._definitions.get(stream.id, registry.revision, lambda: registry.registry)
        )
        if defined is None:
            raise BadRequest("search is not configured for this stream; see _schema", field="search")
        return defined

    def is_damaged(self, companion: Companion) -> bool:
        """Whether the files of a companion were found damaged or missing."""
        return companion.name in self._damaged

    @contextmanager
    def guard(self, companion: Companion | None) -> Iterator[None]:
        """Raise CompanionDamaged where the block cannot read a companion, which is left out from now on."""
        try:
            yield
        except CorruptData as reason:
            if companion is None:
                raise
            log.error("a companion is left out from now on: %s", reason.message)
            self._damaged.add(companion.name)
            raise CompanionDamaged("a companion cannot be read") from reason

    @contextmanager
    def snapshot(self, stream: Stream, head: Head, defined: SearchDefinition) -> Iterator[SearchSnapshot]:
        """A stream as it is at one head."""
        with self._connections.borrow() as coverage:
            yield SearchSnapshot(self, coverage, stream, head, defined)

    def answer(
        self, stream: Stream, head: Head, defined: SearchDefinition, compute: Callable[[SearchSnapshot], Answer]
    ) -> Answer:
        """The result of a computation on a snapshot, retried on a new one where events have moved meanwhile."""

        def attempt() -> Answer:
            with self.snapshot(stream, head, defined) as snapshot:
                return compute(snapshot)

        return self.retry_moved(stream, attempt)

    def retry_moved(self, stream: Stream, attempt: Callable[[], Answer]) -> Answer:
        """Attempt an answer again while events move or vanish, or companions turn out damaged."""
        missing, attempts = MissingObjects(), 0
        while attempts < _MAX_ATTEMPTS:
            try:
                return attempt()
            except CompanionDamaged:
                continue  # each companion is left out after that, so that this ends
            except (EventsMoved, ObjectMissing) as reason:
                if stream.head.state != LIVE:
                    raise NotFound("the stream was deleted", stream=stream.name) from reason
                if isinstance(reason, ObjectMissing):
                    missing.note(reason)
                attempts += 1
        raise Unavailable("the events of the stream keep moving; try again", retry_after=1, reason="moving")

    def _connect(self) -> CompanionCoverage:
        connection = database.connect(self._path, cache_bytes=_CACHE_BYTES, readonly=True, vfs=self._vfs)
        return CompanionCoverage(connection, self._definitions)
