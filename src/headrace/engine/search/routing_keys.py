"""The routing keys of a stream, page by page: from the lexicons of companions, else from segments and the log.

Everything here is for threads. One transaction of the database finds what has to be read; the objects are read after
it. Keys of segments that no companion describes are cached.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from heapq import nsmallest
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.config import Config
from headrace.deadline import Deadline
from headrace.engine.log.read import owned_entries
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.auto_tune import beside_companions
from headrace.engine.search.companion_coverage import span, widest
from headrace.errors import NotFound
from headrace.format.companion.layout import KEYS, Companion, PartName
from headrace.format.decoded_columns import LruCache
from headrace.format.ranges import Range, without
from headrace.storage.database import Connection
from headrace.storage.derived import Companions
from headrace.storage.published import Published, SegmentObject
from headrace.storage.streams import LIVE, Streams
from headrace.storage.wal import WalKeys

if TYPE_CHECKING:
    from headrace.engine.search.archive import Archive
    from headrace.format.companion.file_reader import FileCompanion

_PARTS: tuple[PartName, ...] = ("columns", "postings")
#: Of more keys than this only the first are held.
_MAX_HELD_KEYS = 20_000
_OVERHEAD = 300


class KeyPage(msgspec.Struct):
    """Routing keys in order, how they were found, and what was left out; times are in milliseconds."""

    keys: list[str]
    has_more: bool = False
    is_complete: bool = True
    indexed_segments: int = 0
    scanned_segments: int = 0
    scanned_rows: int = 0
    missing_segments: int = 0
    companions: int = 0
    companion_get_ms: float = 0
    enumerate_ms: float = 0
    merge_ms: float = 0
    scan_ms: float = 0
    segment_get_ms: float = 0
    row_scan_ms: float = 0

    @contextmanager
    def timing(self, *names: str) -> Iterator[None]:
        """Add what the block takes to some of the times."""
        began = perf_counter()
        try:
            yield
        finally:
            for name in names:
                setattr(self, name, getattr(self, name) + (perf_counter() - began) * 1000)


class KeyQuery(NamedTuple):
    """The routing keys of a stream after one of them, as of a head: at most ``limit``, found before the deadline."""

    stream: Stream
    head: Head
    after: str
    limit: int
    deadline: Deadline


class RoutingKeyReader:
    """Lists routing keys; shared by all answers of a node."""

    def __init__(
        self, *, config: Config, open_archive: Callable[[], Archive], connect: Callable[[], Connection]
    ) -> None:
        self._open_archive, self._connect = open_archive, connect
        #: The keys of segments that no companion describes.
        self.cache = LruCache(beside_companions(config))

    def page(self, query: KeyQuery) -> KeyPage:
        """One page of keys."""
        archive = self._open_archive()

        def attempt() -> KeyPage:
            with closing(self._connect()) as connection:
                return _KeyListing(connection, self.cache, archive, query).page()

        return archive.retry_moved(query.stream, attempt)


class _SegmentPart(NamedTuple):
    """Entries of a segment that no companion describes."""

    placed: SegmentObject
    start: int
    end: int


class _KeyListing:
    """One attempt to list keys."""

    def __init__(self, connection: Connection, cache: LruCache, archive: Archive, query: KeyQuery) -> None:
        self._connection, self._cache, self._archive, self._query = connection, cache, archive, query
        #: One key more than the limit says whether there are more.
        self._wanted = query.limit + 1
        self._keys: set[str] = set()
        self._page = KeyPage([])
        self._start = 0

    def page(self) -> KeyPage:
        """List the keys that are found before the deadline."""
        companions, parts = self._find_sources()
        self._read_companions(companions)
        self._read_segments(parts)
        page = self._page
        with page.timing("merge_ms"):
            keys = nsmallest(self._wanted, self._keys)
        page.keys, page.has_more = keys[: self._query.limit], len(keys) == self._wanted
        return page

    def _find_sources(self) -> tuple[list[Companion], list[_SegmentPart]]:
        """The companions and segments that have to be read; keys in the log are read at once."""
        connection, stream, head = self._connection, self._query.stream, self._query.head
        connection.execute("BEGIN")
        try:
            row = Streams(connection).by_id(stream.id)
            if row is None or row.state != LIVE:
                raise NotFound("the stream was deleted", stream=stream.name)
            self._start = max(row.first_seq, head.first_seq)
            listed = Companions(connection).listed(stream.id)
            usable = (companion for companion in listed if companion.keys and companion.end_seq > self._start)
            companions = widest(companion for companion in usable if not self._archive.is_damaged(companion))
            gaps = without([Range(self._start, head.next_seq)], map(span, companions))
            return companions, [part for gap in gaps for part in self._segment_parts(gap)]
        finally:
            connection.execute("COMMIT")

    def _segment_parts(self, gap: Range) -> Iterator[_SegmentPart]:
        """The segments of a range; entries after them in the log are read at once."""
        published = Published(self._connection)
        for owned in owned_entries(self._query.stream, self._query.head, gap.first):
            end = min(owned.end, gap.end)
            edge = min(max(owned.start, published.published_until(owned.owner)), end)
            for placed in published.following(owned.owner, owned.start, edge) if owned.start < edge else ():
                segment = placed.segment
                yield _SegmentPart(placed, max(segment.first_seq, owned.start), min(segment.end_seq, edge))
            if edge < end:
                with self._page.timing("scan_ms", "row_scan_ms"):
                    self._read_rows(owned.owner, edge, end)

    def _read_rows(self, owner: int, start: int, end: int) -> None:
        rows, after = WalKeys(self._connection), self._query.after
        for key in islice(rows.shared(owner, start, end, after), self._wanted):
            if self._is_over():
                return
            self._keys.add(key)
        for seq, count, keys in rows.mixed(owner, start, end):
            if self._is_over():
                return
            own = keys[max(0, start - seq) : min(count, end - seq)]
            self._keys.update(key for key in own if key is not None and key > after)
            if len(self._keys) > _MAX_HELD_KEYS:
                self._keys = set(nsmallest(self._wanted, self._keys))
        self._page.scanned_rows += end - start

    def _read_companions(self, companions: list[Companion]) -> None:
        stream, page = self._query.stream, self._page
        for companion in companions:
            if self._is_over():
                page.missing_segments += companion.segments
                continue
            began = perf_counter()
            with (
                self._archive.guard(companion),
                self._archive.files.open(stream.name, stream.incarnation, companion, _PARTS) as opened,
            ):
                page.companion_get_ms += (perf_counter() - began) * 1000
                with page.timing("enumerate_ms"):
                    self._keys.update(self._retained_keys(opened))
            page.companions += 1
            page.indexed_segments += companion.segments

    def _retained_keys(self, companion: FileCompanion) -> list[str]:
        """The next keys of a companion; where retention has cut into it, those of events that are still there."""
        cut, after, limit = self._start - companion.first_seq, self._query.after, self._wanted
        if cut <= 0:
            return companion.keys(after, limit)
        retained: list[str] = []
        while len(retained) < limit and (keys := companion.keys(after, limit)) and not self._is_over():
            retained += [key for key in keys if companion.rows(KEYS, key)[-1] >= cut]
            after = keys[-1]
        return retained[:limit]

    def _read_segments(self, parts: list[_SegmentPart]) -> None:
        page, after = self._page, self._query.after
        for part in parts:
            if self._is_over():
                page.missing_segments += 1
                continue
            with page.timing("scan_ms"):
                keys = self._segment_keys(part)
                first = bisect_right(keys, after, key=lambda key: key.as_py())
                self._keys.update(keys.slice(first, self._wanted).to_pylist())
            page.scanned_segments += 1

    def _segment_keys(self, part: _SegmentPart) -> Any:
        """The keys of a segment, or of a part of it, as a sorted Arrow array."""
        segment, segments = part.placed.segment, self._archive.segments()
        name = segment.sha256, segments.mask_number(part.placed.key), part.start, part.end
        keys = self._cache.get(name)
        if keys is None:
            began = perf_counter()
            with segments.open(part.placed.key, segment) as reader:
                self._page.segment_get_ms += (perf_counter() - began) * 1000
                keys = reader.keys(part.start, part.end)
            self._cache.put(name, keys, keys.nbytes + _OVERHEAD)
        return keys

    def _is_over(self) -> bool:
        """Whether the deadline has passed, so that keys may be missing from the page."""
        if self._query.deadline.passed:
            self._page.is_complete = False
        return not self._page.is_complete
