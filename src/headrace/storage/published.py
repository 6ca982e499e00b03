"""The rows of ``segments``, ``unpublished`` and ``leftovers``: what is in the object store, and what must go there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace.format.manifest import Segment
from headrace.format.object_names import segment_key
from headrace.storage.table import Table, TableQueries
from headrace.types import MAX_AHEAD_US


class SegmentObject(NamedTuple):
    """A segment, and the key of its object."""

    key: str
    segment: Segment


class Backlog(NamedTuple):
    """The rows of a stream in the log: how many entries and payload bytes, and since when they wait."""

    stream: int
    entries: int
    bytes: int
    since_us: int
    #: Where many are listed, unless the stream is gone.
    name: str | None = None


class StoredTotals(NamedTuple):
    """What the object store holds of a stream, and when that and the registry changed last; 0 is never."""

    segments: int = 0
    bytes: int = 0
    generation: int = 0
    manifest_bytes: int = 0
    published_us: int = 0
    registry_us: int = 0


class DeletedStream(NamedTuple):
    """A deleted stream that may have objects."""

    incarnation: str
    name: str


class Leftover(NamedTuple):
    """An object that nothing lists any more, and since when."""

    key: str
    since_us: int


class SegmentSpan(NamedTuple):
    """Segments that hold entries of a range: how many, where the first begins, and where the last ends."""

    segments: int
    first: int
    end: int


class ContainedSegments(NamedTuple):
    """The number of segments within a range, and when the last of their entries was appended."""

    segments: int
    last_us: int | None


class _JoinedSegments(Table[SegmentObject]):
    """Segments with the keys of their objects, of which a stream's name and incarnation are parts."""

    def __init__(self) -> None:
        super().__init__("segments", SegmentObject)
        columns = ", ".join(f"segments.{field}" for field in Segment.__struct_fields__)
        self.select = f"SELECT streams.name, incarnation, {columns} FROM segments JOIN streams ON id = stream"

    def to_row(self, record: Any) -> SegmentObject:
        """The segment of a record, and its key."""
        stream, incarnation, *values = record
        segment = Segment(*values)
        return SegmentObject(segment_key(stream, incarnation, segment.name), segment)


_SEGMENTS = Table("segments", Segment, extra=("stream",))
_JOINED = _JoinedSegments()
_GRAVES = Table("graves", DeletedStream)


class Published(TableQueries):
    """Reads and writes segments, streams with outdated manifests, and objects that are to be removed."""

    def holding(self, stream: int, seq: int) -> SegmentObject | None:
        """The segment that holds an entry."""
        placed = self._first(_JOINED, _HOLDING, stream, seq)
        return placed if placed is not None and seq < placed.segment.end_seq else None

    def following(self, stream: int, start: int, end: int, limit: int = -1) -> list[SegmentObject]:
        """The segments that hold entries of [start, end), in order."""
        return self._all(_JOINED, _FOLLOWING, stream, start, end, limit)

    def last(self, stream: int) -> SegmentObject | None:
        """The newest segment."""
        return self._first(_JOINED, "WHERE stream = ? ORDER BY segments.first_seq DESC LIMIT 1", stream)

    def published_until(self, stream: int) -> int:
        """The sequence number before which the own entries of a stream are published."""
        return int(self._value("SELECT published_seq FROM streams WHERE id = ?", stream))

    def totals(self, stream: int) -> StoredTotals:
        """The sums over the segments of a stream."""
        row: Any = self._connection.execute(_TOTALS, (stream,)).fetchone()
        return StoredTotals() if row is None else StoredTotals(*row)

    def checksums(self, stream: int) -> list[str]:
        """The checksum of every segment of a stream."""
        return self._texts("SELECT sha256 FROM segments WHERE stream = ?", stream)

    def every_checksum(self) -> set[str]:
        """The checksum of every segment of any stream."""
        return set(self._texts("SELECT sha256 FROM segments"))

    def first_from(self, stream: int, us: int) -> SegmentObject | None:
        """The first segment whose last entry was appended at or after a moment."""
        return self._first(_JOINED, "WHERE stream = ? AND max_us >= ? ORDER BY segments.first_seq LIMIT 1", stream, us)

    def add(self, stream: int, segment: Segment) -> None:
        """Store a segment, in place of those with the same entries."""
        condition = "stream = ? AND first_seq >= ? AND first_seq < ?"
        self._delete("segments", condition, stream, segment.first_seq, segment.end_seq)
        self._insert(_SEGMENTS, segment, stream)

    def remove(self, stream: int, segments: Iterable[Segment]) -> None:
        """Remove segments."""
        keys = ((stream, segment.first_seq) for segment in segments)
        self._delete_each("segments", "stream = ? AND first_seq = ?", keys)

    def first_beyond(self, stream: int, size: int) -> SegmentObject | None:
        """The first segment that ends after so many payload bytes of the stream."""
        return self._first(
            _JOINED, "WHERE stream = ? AND total_bytes > ? ORDER BY segments.first_seq LIMIT 1", stream, size
        )

    def mark(self, stream: int, now_us: int) -> None:
        """Mark the manifest of a stream as out of date."""
        self._connection.execute("INSERT OR IGNORE INTO unpublished VALUES (?, ?)", (stream, now_us))

    def unmark(self, stream: int, now_us: int) -> None:
        """Mark the manifest of a stream as up to date."""
        condition = "stream = ? AND (since_us <= ? OR since_us > ?)"
        self._delete("unpublished", condition, stream, now_us, now_us + MAX_AHEAD_US)

    def marked(self, until_us: int, now_us: int, limit: int) -> list[int]:
        """Streams whose manifest has been out of date since before a moment, the longest first.

        Before them come those that were marked when the clock was ahead, since when is not known.
        """
        streams: list[int] = []
        for clause, bound in (("> ?", now_us + MAX_AHEAD_US), ("<= ?", until_us)):
            sql = f"SELECT stream FROM unpublished WHERE since_us {clause} ORDER BY since_us LIMIT ?"
            streams += [int(row[0]) for row in self._connection.execute(sql, (bound, limit - len(streams)))]
        return streams

    def backlogs(self, after: int, limit: int, now_us: int) -> list[Backlog]:
        """The streams that have rows in the log, by their ids after one."""
        rows: Any = self._connection.execute(_BACKLOGS, (after, limit, now_us + MAX_AHEAD_US)).fetchall()
        return [Backlog(*row) for row in rows]

    def backlog(self, stream: int, start: int = 0) -> Backlog:
        """The rows of one stream in the log, from a sequence number on."""
        row: Any = self._connection.execute(_BACKLOG, (stream, start)).fetchone()
        return Backlog(stream, 0, 0, 0) if row is None else Backlog(*row)

    def discard(self, keys: Iterable[str], now_us: int) -> None:
        """Mark objects for removal by a sweep."""
        self._connection.executemany("INSERT OR IGNORE INTO leftovers VALUES (?, ?)", [(key, now_us) for key in keys])

    def leftovers(self, until_us: int, limit: int, after: str = "") -> list[Leftover]:
        """Objects that were marked for removal before a moment, in the order of their keys after one."""
        sql = "SELECT key, since_us FROM leftovers WHERE key > ? AND since_us <= ? ORDER BY key LIMIT ?"
        rows: Any = self._connection.execute(sql, (after, until_us, limit)).fetchall()
        return [Leftover(*row) for row in rows]

    def forget(self, keys: Iterable[str]) -> None:
        """Remove the marks of objects, which are removed."""
        self._delete_each("leftovers", "key = ?", ((key,) for key in keys))

    def is_orphan(self, incarnation: str, name: str) -> bool:
        """Whether a stream of this incarnation exists that does not list a segment of this name."""
        sql = "SELECT EXISTS (SELECT 1 FROM segments WHERE stream = id AND segments.name = ?) FROM streams"
        is_listed = self._value(f"{sql} WHERE incarnation = ? AND state != 2", name, incarnation)
        return is_listed is not None and not is_listed

    def mark_deleted(self, deleted_stream: DeletedStream) -> None:
        """Mark a deleted stream, so that all its objects are removed."""
        self._write(_GRAVES.insert_new, _GRAVES, [deleted_stream])

    def mark_stream_deleted(self, stream: int) -> None:
        """Mark a stream that is being deleted, if it may have objects."""
        sql = "INSERT OR IGNORE INTO graves SELECT incarnation, name FROM streams WHERE id = ? AND attempted"
        self._connection.execute(sql, (stream,))

    def deleted_streams(self, limit: int) -> list[DeletedStream]:
        """Deleted streams whose objects are to be removed."""
        return self._all(_GRAVES, "LIMIT ?", limit)

    def unmark_deleted(self, deleted_stream: DeletedStream) -> None:
        """Remove the mark of a deleted stream, of which no object is left."""
        self._delete("graves", "incarnation = ?", deleted_stream.incarnation)

    def overlapping(self, stream: int, first: int, end: int) -> SegmentSpan:
        """The own segments of a stream that hold entries of [first, end)."""
        row: Any = self._connection.execute(_OVERLAPPING, (stream, first, end)).fetchone()
        return SegmentSpan(0, first, end) if not row[0] else SegmentSpan(*row)

    def contained(self, stream: int, first: int, end: int) -> ContainedSegments:
        """The own segments of a stream within [first, end)."""
        row: Any = self._connection.execute(_CONTAINED, (stream, first, end)).fetchone()
        return ContainedSegments(*row)

    def newest_companion(self) -> int:
        """The greatest id of a companion of any stream."""
        return int(self._value("SELECT ifnull(max(id), 0) FROM companions"))


_HOLDING = "WHERE stream = ? AND segments.first_seq <= ? ORDER BY segments.first_seq DESC LIMIT 1"
_FOLLOWING = """WHERE stream = ?1
    AND segments.first_seq >= ifnull((SELECT max(first_seq) FROM segments WHERE stream = ?1 AND first_seq <= ?2), ?2)
    AND segments.first_seq + count > ?2 AND segments.first_seq < ?3 ORDER BY segments.first_seq LIMIT ?4"""

# The first row of a stream and its newest: the index leads there without reading the others. Entries that were imported
# with times of their own have not waited since then.
_BACKLOG = """
SELECT f.stream, n.seq + n.count - f.seq, n.total_bytes - f.total_bytes + ifnull(f.packed, length(f.body)),
       max(f.append_us, ifnull(s.created_us, 0), ifnull(s.published_us, 0))
FROM wal AS f JOIN wal AS n ON n.stream = f.stream LEFT JOIN streams AS s ON s.id = f.stream
WHERE f.stream = ?1 AND f.seq = (SELECT min(seq) FROM wal WHERE stream = ?1 AND seq >= ?2)
                    AND n.seq = (SELECT max(seq) FROM wal WHERE stream = ?1)
"""

# The same for many streams in one statement: the index leads from each to the next, and to its newest row. Times from
# when the clock was ahead do not count.
_BACKLOGS = """
WITH RECURSIVE first(stream, seq, append_us, total_bytes, size) AS (
    SELECT * FROM (SELECT stream, seq, append_us, total_bytes, ifnull(packed, length(body))
                   FROM wal WHERE stream > ?1 ORDER BY stream, seq LIMIT 1)
    UNION ALL SELECT w.stream, w.seq, w.append_us, w.total_bytes, ifnull(w.packed, length(w.body))
    FROM first CROSS JOIN wal AS w
    ON w.id = (SELECT id FROM wal WHERE stream > first.stream ORDER BY stream, seq LIMIT 1)
    LIMIT ?2
)
SELECT f.stream, n.seq + n.count - f.seq, n.total_bytes - f.total_bytes + f.size,
       max(iif(f.append_us > ?3, 0, f.append_us), iif(s.created_us <= ?3, s.created_us, 0),
           iif(s.published_us <= ?3, s.published_us, 0)), s.name
FROM first AS f CROSS JOIN wal AS n ON n.id = (SELECT id FROM wal WHERE stream = f.stream ORDER BY seq DESC LIMIT 1)
LEFT JOIN streams AS s ON s.id = f.stream
"""

_TOTALS = """
SELECT count(g.stream), ifnull(sum(g.bytes), 0), s.generation, s.manifest_bytes, s.published_us,
       ifnull((SELECT at_us FROM registries AS r WHERE r.stream = s.id AND r.revision = s.revision), 0)
FROM streams AS s LEFT JOIN segments AS g ON g.stream = s.id WHERE s.id = ? GROUP BY s.id
"""

_OVERLAPPING = """
SELECT count(*), min(first_seq), max(first_seq + count) FROM segments
WHERE stream = ?1 AND first_seq < ?3 AND first_seq + count > ?2
  AND first_seq >= ifnull((SELECT max(first_seq) FROM segments WHERE stream = ?1 AND first_seq <= ?2), ?2)
"""
_CONTAINED = """
SELECT count(*), max(max_us) FROM segments
WHERE stream = ?1 AND first_seq >= ?2 AND first_seq < ?3 AND first_seq + count <= ?3
"""
