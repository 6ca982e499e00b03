"""The observations of entities, by key, in segments and in the log; for threads.

An entity has its own observations, those of entities merged into it, and those moved to it by splits.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from headrace.engine.log.stream import Head, Stream
from headrace.errors import EntityNotFound
from headrace.schema.entity.observation import Observation, decode
from headrace.schema.entries import entries_of
from headrace.storage.background_requests import Erasures
from headrace.storage.database import Connection
from headrace.storage.entities import Aliases, Entities, EntityRow, SplitRow
from headrace.storage.published import Published, SegmentObject
from headrace.storage.wal import Entries, Wal, WalKeys

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

#: Entries that are indexed, of all streams together: 16 bytes each.
MOST_ENTRIES = 2_000_000
_LEAST_ROOM = 1024


class TailKeys:
    """The tails of the streams that were asked for last; for threads."""

    def __init__(self, most_entries: int = MOST_ENTRIES) -> None:
        self._most = most_entries
        self._lock = threading.Lock()
        self._tails: OrderedDict[str, _Tail] = OrderedDict()

    def of(
        self, connection: Connection, stream: Stream, key: str, floor: int, start: int, stop: int
    ) -> list[int] | None:
        """The entries of [start, stop) that have a key, and those of keys with the same hash; None where it is unknown.

        ``floor`` is where the tail began for whoever saw it shortest: nobody asks for entries before it any more.
        """
        with self._lock:
            tail = self._tails.get(stream.incarnation)
            if tail is None or start < tail.start:
                tail = self._tails[stream.incarnation] = _Tail(start)
            self._tails.move_to_end(stream.incarnation)
            tail.forget(floor)
            tail.fill(WalKeys(connection), stream.id, stop)
            self._make_room()
            return None if start < tail.start or stop > tail.end else tail.of(key, start, stop)

    def _make_room(self) -> None:
        while self._tails and sum(tail.count for tail in self._tails.values()) > self._most:
            self._tails.popitem(last=False)[1].drop()


class _Tail:
    """The hashes of the keys of entries from ``start`` to ``end``, as they come."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.count = 0
        self._hashes: Any = np.empty(_LEAST_ROOM, np.int64)
        self._seqs: Any = np.empty(_LEAST_ROOM, np.int64)

    def of(self, key: str, start: int, stop: int) -> list[int]:
        seqs = self._seqs[: self.count][self._hashes[: self.count] == hash(key)]
        matching_seqs: list[int] = seqs[(seqs >= start) & (seqs < stop)].tolist()
        return matching_seqs

    def fill(self, rows: WalKeys, stream: int, stop: int) -> None:
        """Take in the rows up to an entry. Where rows have gone that were not seen, the tail begins after them."""
        if stop <= self.end:
            return
        for row in rows.every(stream, self.end, stop):
            if row.seq > self.end:
                self.start, self.count = row.seq, 0
            self._add(row.seq, row.keys)
            self.end = row.seq + row.entries

    def forget(self, floor: int) -> None:
        """Let go of entries before one; not each time, as that takes longer than to leave them out."""
        if floor <= self.start or not self.count:
            return
        kept = self._seqs[: self.count] >= floor
        left = int(np.count_nonzero(kept))
        if 2 * left <= self.count:
            self._hashes, self._seqs = self._hashes[: self.count][kept], self._seqs[: self.count][kept]
            self.start, self.count = floor, left

    def drop(self) -> None:
        """Know nothing."""
        self.start = self.end + 1

    def _add(self, seq: int, keys: list[str | None]) -> None:
        stop = self.count + len(keys)
        if stop > len(self._hashes):
            room = max(2 * stop, _LEAST_ROOM)
            self._hashes = np.resize(self._hashes, room)
            self._seqs = np.resize(self._seqs, room)
        self._hashes[self.count : stop] = np.fromiter(map(hash, keys), np.int64, len(keys))
        self._seqs[self.count : stop] = np.arange(seq, seq + len(keys))
        self.count = stop


_KEYS = msgspec.json.Decoder(list[str | None])
#: Connections that are kept for the next who reads.
_IDLE = 4


class Observed(NamedTuple):
    """One observation, its number in the stream, and when it was appended."""

    seq: int
    at_us: int
    observation: Observation


class Reading:
    """Lets observations be read: connections stay open between readers, and what is known of tails is shared."""

    def __init__(self, connect: Callable[[], Connection], segments: Callable[[], Segments]) -> None:
        self._connect, self._segments = connect, segments
        self._tails = TailKeys()
        self._idle: list[Connection] = []
        self._closed = False

    @contextmanager
    def opened(self, stream: Stream, head: Head) -> Iterator[Observations]:
        """The observations of a stream up to a head."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield Observations(connection, self._segments, stream, head, self._tails)
        finally:
            if self._closed or len(self._idle) >= _IDLE:
                connection.close()
            else:
                self._idle.append(connection)

    def close(self) -> None:
        """Close the connections that nobody uses; the others are closed by who does."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class Observations:
    """The observations of one stream up to a head, through one connection."""

    def __init__(
        self,
        connection: Connection,
        segments: Callable[[], Segments],
        stream: Stream,
        head: Head,
        tails: TailKeys | None = None,
    ) -> None:
        self._connection, self._segments, self._stream, self._head = connection, segments, stream, head
        self._wal, self._tails = Wal(connection), tails

    def of(self, entity_id: str, start: int = 0, stop: int | None = None) -> Iterator[Observed]:
        """The observations with an entity's key in a range, in order."""
        start, stop = self._range(start, stop)
        placed, rows = self._look(entity_id, start, stop)
        for entry in placed:
            yield from self._sealed(entry, entity_id, start, stop)
        for row in rows:
            yield from _of_row(row, entity_id, start, stop)

    def newest_of(self, entity_id: str, start: int = 0, stop: int | None = None) -> Iterator[Observed]:
        """The same, the newest first."""
        start, stop = self._range(start, stop)
        placed, rows = self._look(entity_id, start, stop)
        for row in reversed(rows):
            yield from reversed(list(_of_row(row, entity_id, start, stop)))
        for entry in reversed(placed):
            yield from reversed(list(self._sealed(entry, entity_id, start, stop)))

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        head = self._head
        return max(start, head.first_seq), head.next_seq if stop is None else min(stop, head.next_seq)

    def _look(self, key: str, start: int, stop: int) -> tuple[list[SegmentObject], list[Entries]]:
        """The segments that may hold a key, and the rows of the log after them, as of one moment."""
        self._connection.execute("BEGIN")
        try:
            placed = Published(self._connection).following(self._stream.id, start, stop)
            since = max(start, placed[-1].segment.end_seq if placed else start)
            return placed, self._logged(key, since, stop) if since < stop else []
        finally:
            self._connection.execute("COMMIT")

    def _logged(self, key: str, start: int, stop: int) -> list[Entries]:
        """The rows of the log that may hold a key."""
        owner, entries = self._stream.id, None
        if self._tails is not None:
            entries = self._tails.of(self._connection, self._stream, key, self._head.published_seq, start, stop)
        if entries is None:
            return list(self._wal.scan_key(owner, key, start, stop))
        rows: list[Entries] = []
        for seq in entries:
            if not rows or seq >= rows[-1].seq + rows[-1].count:
                row = self._wal.holding(owner, seq)
                rows += [] if row is None else [row]
        return rows

    def _sealed(self, placed: SegmentObject, key: str, start: int, stop: int) -> Iterator[Observed]:
        with self._segments().open(placed.key, placed.segment) as reader:
            for seq, at_us, payload in reader.having(start, stop, key):
                observation = decode(payload)
                if observation.entity_id == key:  # others may have the hash of the key
                    yield Observed(seq, at_us, observation)


def _of_row(row: Entries, key: str, start: int, stop: int) -> Iterator[Observed]:
    keys = [row.key] * row.count if row.keys is None else _KEYS.decode(row.keys)
    for index, body in enumerate(entries_of(row.body)):
        if keys[index] == key and start <= row.seq + index < stop:
            yield Observed(row.seq + index, row.append_us, decode(bytes(body)))


_EVER = 1 << 62


class EntityGroup(NamedTuple):
    """An entity that is told of by itself, the ids whose observations it has, and observations that were moved."""

    row: EntityRow
    members: tuple[str, ...]
    moved: tuple[SplitRow, ...] = ()
    #: Members whose observations before a number are being erased, and do not count.
    since: tuple[tuple[str, int], ...] = ()

    def observations(
        self, observations: Observations, start: int = 0, stop: int | None = None, *, newest_first: bool = False
    ) -> Iterator[Observed]:
        """Its observations in a range, in the order of the stream or the newest first."""
        away = {(row.entity_id, row.observation_id) for row in self.moved if row.into_id not in self.members}
        here = {(row.entity_id, row.observation_id): row.into_id for row in self.moved if row.into_id in self.members}
        since = dict(self.since)
        others = sorted({entity for entity, _ in here}.difference(self.members))
        read = observations.newest_of if newest_first else observations.of
        parts = [read(id, start, stop) for id in (*self.members, *others)]
        merged = parts[0] if len(parts) == 1 else heapq.merge(*parts, key=_seq, reverse=newest_first)
        for observed in merged:
            mark = observed.observation.entity_id, observed.observation.id
            if since and observed.seq < since.get(here.get(mark, mark[0]), 0):
                continue
            if mark in here or (mark[0] in self.members and mark not in away):
                yield observed


class EntityGroups:
    """Finds groups through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._entities, self._aliases, self._erasures = Entities(connection), Aliases(connection), Erasures(connection)

    def has(self, entity_id: str, user_id: str) -> bool:
        """Whether a user has an entity of this id."""
        row = self._entities.find(entity_id)
        return row is not None and row.user_id == user_id

    def row(self, entity_id: str, user_id: str) -> EntityRow:
        """An entity of a user; those of others are not there."""
        row = self._entities.find(entity_id)
        if row is None or row.user_id != user_id:
            raise EntityNotFound("there is no such entity", entity_id=entity_id)
        return row

    def of(self, row: EntityRow, until_us: int = _EVER) -> EntityGroup:
        """What an entity is told of with, by what was merged and moved until a moment."""
        relations = self._aliases.relations(row.entity_id)
        if not any(relations):
            return EntityGroup(row, (row.entity_id,))
        if relations.is_merged:
            root = self._aliases.root(row.entity_id, until_us)
            row = row if root == row.entity_id else self.row(root, row.user_id)
        members = tuple(self._aliases.with_merged(row.entity_id, until_us))
        return EntityGroup(row, members, self._moved(members, until_us), self._since(members))

    def _since(self, members: Iterable[str]) -> tuple[tuple[str, int], ...]:
        return tuple((member, since) for member in members if (since := self._erasures.since(member)))

    def _moved(self, members: Iterable[str], until_us: int) -> tuple[SplitRow, ...]:
        return tuple(sorted(move for move in self._aliases.moved(members) if move.at_us <= until_us))


def _seq(observed: Observed) -> int:
    return observed.seq
