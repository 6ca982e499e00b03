"""The routing keys of a stream, page by page: from the lexicons of companions, else from segments and the log.

Everything here is for threads. What an answer is made of is looked up at one moment of the database; the objects are
read afterwards. Keys of segments that no companion describes are kept, within a limit.
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
from headrace.engine.history.stored_events import MissingObjects
from headrace.engine.log.read import owned_entries
from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.auto_tune import beside_companions
from headrace.engine.search.companion_coverage import span, widest
from headrace.errors import CorruptData, NotFound, Unavailable
from headrace.format.companion.layout import KEYS, Companion, PartName
from headrace.format.decoded_columns import DecodedCache
from headrace.format.ranges import Range, without
from headrace.storage.database import Connection
from headrace.storage.derived import Companions
from headrace.storage.objects import ObjectMissing
from headrace.storage.published import Placed, Published
from headrace.storage.streams import LIVE, Streams
from headrace.storage.wal import WalKeys

if TYPE_CHECKING:
    from headrace.engine.search.archive import Archive
    from headrace.format.companion.file_reader import FileCompanion

_PARTS: tuple[PartName, ...] = ("columns", "postings")
_TRIES = 5
#: Of more keys than this only the first are held.
_MANY = 20_000
_OVERHEAD = 300


class KeyPage(msgspec.Struct):
    """Routing keys in order, how they were found, and what was not looked at; times are in milliseconds."""

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
    """The keys of a stream after one of them, as of a head, so many at most, as far as the time goes."""

    stream: Stream
    head: Head
    after: str
    limit: int
    deadline: Deadline


class Lexicon:
    """Lists routing keys; shared by all answers of a node."""

    def __init__(
        self, *, config: Config, open_archive: Callable[[], Archive], connect: Callable[[], Connection]
    ) -> None:
        self._open_archive, self.connect = open_archive, connect
        self.kept = DecodedCache(beside_companions(config))

    def page(self, question: KeyQuery) -> KeyPage:
        """One page; begins again where objects vanish meanwhile."""
        stream, archive = question.stream, self._open_archive()
        tries, missing = 0, MissingObjects()
        while tries < _TRIES:
            try:
                return _KeyScan(self, archive, question).page()
            except _Distrusted:
                continue
            except ObjectMissing as reason:
                if stream.head.state != LIVE:
                    raise NotFound("the stream was deleted", stream=stream.name) from reason
                missing.note(reason)
                tries += 1
        raise Unavailable("the events of the stream keep moving; try again", retry_after=1, reason="moving")


class _Distrusted(Exception):
    """A companion cannot be read, and is left out from now on."""


class _Scan(NamedTuple):
    """Entries of a segment that no companion describes."""

    placed: Placed
    start: int
    end: int


class _KeyScan:
    """One attempt to answer."""

    def __init__(self, lexicon: Lexicon, archive: Archive, question: KeyQuery) -> None:
        self._connect, self._kept = lexicon.connect, lexicon.kept
        self._archive, self._question, self._deadline = archive, question, question.deadline
        self._wanted = question.limit + 1
        self._found: set[str] = set()
        self._page = KeyPage([])
        self._start = 0

    def page(self) -> KeyPage:
        """Look at everything that there is time for."""
        with closing(self._connect()) as connection:
            companions, scans = self._look_up(connection)
        self._read_companions(companions)
        self._read_segments(scans)
        page = self._page
        with page.timing("merge_ms"):
            keys = nsmallest(self._wanted, self._found)
        page.keys, page.has_more = keys[: self._question.limit], len(keys) == self._wanted
        return page

    def _look_up(self, connection: Connection) -> tuple[list[Companion], list[_Scan]]:
        """What has to be read; the keys of the log are found on the way."""
        stream, head = self._question.stream, self._question.head
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
            return companions, [scan for gap in gaps for scan in self._scans(connection, gap)]
        finally:
            connection.execute("COMMIT")

    def _scans(self, connection: Connection, gap: Range) -> Iterator[_Scan]:
        """The segments of a range; what lies behind them in the log is read at once."""
        published, head = Published(connection), self._question.head
        for part in owned_entries(self._question.stream, head, gap.first):
            end = min(part.end, gap.end)
            edge = min(max(part.start, published.until(part.owner)), end)
            for placed in published.following(part.owner, part.start, edge) if part.start < edge else ():
                segment = placed.segment
                yield _Scan(placed, max(segment.first_seq, part.start), min(segment.end_seq, edge))
            if edge < end:
                with self._page.timing("scan_ms", "row_scan_ms"):
                    self._read_rows(WalKeys(connection), part.owner, edge, end)

    def _read_rows(self, rows: WalKeys, owner: int, start: int, end: int) -> None:
        after = self._question.after
        for key in islice(rows.shared(owner, start, end, after), self._wanted):
            if self._is_over():
                return
            self._found.add(key)
        for seq, count, keys in rows.mixed(owner, start, end):
            if self._is_over():
                return
            own = keys[max(0, start - seq) : min(count, end - seq)]
            self._found.update(key for key in own if key is not None and key > after)
            if len(self._found) > _MANY:
                self._found = set(nsmallest(self._wanted, self._found))
        self._page.scanned_rows += end - start

    def _read_companions(self, companions: list[Companion]) -> None:
        stream, page = self._question.stream, self._page
        for companion in companions:
            if self._is_over():
                page.missing_segments += companion.segments
                continue
            try:
                began = perf_counter()
                with self._archive.files.open(stream.name, stream.incarnation, companion, _PARTS) as opened:
                    page.companion_get_ms += (perf_counter() - began) * 1000
                    with page.timing("enumerate_ms"):
                        self._found.update(self._retained(opened))
            except CorruptData as reason:
                self._archive.distrust(companion, reason)
                raise _Distrusted from reason
            page.companions += 1
            page.indexed_segments += companion.segments

    def _retained(self, companion: FileCompanion) -> list[str]:
        """The next keys of a companion; where retention has cut into it, those of events that are still there."""
        cut, after, limit = self._start - companion.first_seq, self._question.after, self._wanted
        if cut <= 0:
            return companion.keys(after, limit)
        keys_found: list[str] = []
        while len(keys_found) < limit and (keys := companion.keys(after, limit)) and not self._is_over():
            keys_found += [key for key in keys if companion.rows(KEYS, key)[-1] >= cut]
            after = keys[-1]
        return keys_found[:limit]

    def _read_segments(self, scans: list[_Scan]) -> None:
        page, after = self._page, self._question.after
        for scan in scans:
            if self._is_over():
                page.missing_segments += 1
                continue
            with page.timing("scan_ms"):
                keys = self._keys(scan)
                first = bisect_right(keys, after, key=lambda key: key.as_py())
                self._found.update(keys.slice(first, self._wanted).to_pylist())
            page.scanned_segments += 1

    def _keys(self, scan: _Scan) -> Any:
        """The keys of a segment, or of a part of it, as a sorted Arrow array."""
        segment, segments = scan.placed.segment, self._archive.segments()
        name = segment.sha256, segments.mask_number(scan.placed.key), scan.start, scan.end
        keys = self._kept.get(name)
        if keys is None:
            began = perf_counter()
            with segments.open(scan.placed.key, segment) as reader:
                self._page.segment_get_ms += (perf_counter() - began) * 1000
                keys = reader.keys(scan.start, scan.end)
            self._kept.keep(name, keys, keys.nbytes + _OVERHEAD)
        return keys

    def _is_over(self) -> bool:
        """Whether there is no time left; then what was not looked at may be missing."""
        if self._deadline.passed:
            self._page.is_complete = False
        return not self._page.is_complete
