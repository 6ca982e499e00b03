"""The observations of entities, by key, in segments and in the log; for threads.

An entity has its own observations, those of entities merged into it, and those moved to it by splits.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from headrace.engine.log.stream import Head, Stream
from headrace.engine.runtime.background import ConnectionPool
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

#: Entries of the log that are indexed, of all streams together: 16 bytes each.
MAX_INDEXED_ENTRIES = 2_000_000
_MIN_CAPACITY = 1024
_KEYS = msgspec.json.Decoder(list[str | None])
_MAX_IDLE_CONNECTIONS = 4
_EVER = 1 << 62


class TailKeyIndex:
    """Which entries of the log have a key: an index in memory of the streams that were read last; for threads."""

    def __init__(self, max_entries: int = MAX_INDEXED_ENTRIES) -> None:
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._tails: OrderedDict[str, _TailKeys] = OrderedDict()

    def find(
        self, connection: Connection, stream: Stream, key: str, floor: int, start: int, stop: int
    ) -> list[int] | None:
        """The entries of [start, stop) that may have a key; None where they are not indexed.

        Keys with the same hash are not distinguished. No reader needs entries before ``floor`` any more.
        """
        with self._lock:
            tail = self._tails.get(stream.incarnation)
            if tail is None or start < tail.start:
                tail = self._tails[stream.incarnation] = _TailKeys(start)
            self._tails.move_to_end(stream.incarnation)
            tail.trim(floor)
            tail.fill(WalKeys(connection), stream.id, stop)
            self._evict()
            return None if start < tail.start or stop > tail.end else tail.find(key, start, stop)

    def _evict(self) -> None:
        while self._tails and sum(tail.count for tail in self._tails.values()) > self._max_entries:
            self._tails.popitem(last=False)[1].clear()


class _TailKeys:
    """The hashes of the keys of entries from ``start`` to ``end``, in their order."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.count = 0
        self._hashes: Any = np.empty(_MIN_CAPACITY, np.int64)
        self._seqs: Any = np.empty(_MIN_CAPACITY, np.int64)

    def find(self, key: str, start: int, stop: int) -> list[int]:
        seqs = self._seqs[: self.count][self._hashes[: self.count] == hash(key)]
        matching_seqs: list[int] = seqs[(seqs >= start) & (seqs < stop)].tolist()
        return matching_seqs

    def fill(self, rows: WalKeys, stream: int, stop: int) -> None:
        """Index the rows up to an entry. Where rows were removed before they were indexed, begin after them."""
        if stop <= self.end:
            return
        for row in rows.every(stream, self.end, stop):
            if row.seq > self.end:
                self.start, self.count = row.seq, 0
            self._add(row.seq, row.keys)
            self.end = row.seq + row.entries

    def trim(self, floor: int) -> None:
        """Drop entries before one once they are half of all; until then it costs less to skip them."""
        if floor <= self.start or not self.count:
            return
        kept = self._seqs[: self.count] >= floor
        left = int(np.count_nonzero(kept))
        if 2 * left <= self.count:
            self._hashes, self._seqs = self._hashes[: self.count][kept], self._seqs[: self.count][kept]
            self.start, self.count = floor, left

    def clear(self) -> None:
        """Answer for no entry that is indexed."""
        self.start = self.end + 1

    def _add(self, seq: int, keys: list[str | None]) -> None:
        stop = self.count + len(keys)
        if stop > len(self._hashes):
            capacity = max(2 * stop, _MIN_CAPACITY)
            self._hashes = np.resize(self._hashes, capacity)
            self._seqs = np.resize(self._seqs, capacity)
        self._hashes[self.count : stop] = np.fromiter(map(hash, keys), np.int64, len(keys))
        self._seqs[self.count : stop] = np.arange(seq, seq + len(keys))
        self.count = stop


class StoredObservation(NamedTuple):
    """An observation, its number in the stream, and when it was appended."""

    seq: int
    at_us: int
    observation: Observation


def decode_unless_erased(body: bytes) -> Observation | None:
    """An observation; None where an erasure has replaced it."""
    try:
        return decode(body)
    except msgspec.ValidationError:
        return None


class ObservationReader:
    """Opens observations: pools connections, and shares the index of keys in the log."""

    def __init__(self, connect: Callable[[], Connection], segments: Callable[[], Segments]) -> None:
        self._connections = ConnectionPool(connect, max_idle=_MAX_IDLE_CONNECTIONS)
        self._segments = segments
        self._tail_keys = TailKeyIndex()

    @contextmanager
    def open(self, stream: Stream, head: Head) -> Iterator[Observations]:
        """The observations of a stream up to a head."""
        with self._connections.borrow() as connection:
            yield Observations(connection, self._segments, stream, head, self._tail_keys)

    def close(self) -> None:
        """Close the connections; those in use are closed when they are given back."""
        self._connections.close()


class Observations:
    """The observations of one stream up to a head, through one connection."""

    def __init__(
        self,
        connection: Connection,
        segments: Callable[[], Segments],
        stream: Stream,
        head: Head,
        tail_keys: TailKeyIndex | None = None,
    ) -> None:
        self._connection, self._segments, self._stream, self._head = connection, segments, stream, head
        self._wal, self._tail_keys = Wal(connection), tail_keys

    def read(
        self, entity_id: str, start: int = 0, stop: int | None = None, *, newest_first: bool = False
    ) -> Iterator[StoredObservation]:
        """The observations with an entity's key in a range, in order or the newest first."""
        head = self._head
        start, stop = max(start, head.first_seq), head.next_seq if stop is None else min(stop, head.next_seq)
        placed, rows = self._find(entity_id, start, stop)
        if newest_first:
            for row in reversed(rows):
                yield from reversed(list(_of_row(row, entity_id, start, stop)))
            for entry in reversed(placed):
                yield from reversed(list(self._of_segment(entry, entity_id, start, stop)))
            return
        for entry in placed:
            yield from self._of_segment(entry, entity_id, start, stop)
        for row in rows:
            yield from _of_row(row, entity_id, start, stop)

    def _find(self, key: str, start: int, stop: int) -> tuple[list[SegmentObject], list[Entries]]:
        """The segments that may hold a key, and the rows of the log after them, in one transaction."""
        self._connection.execute("BEGIN")
        try:
            placed = Published(self._connection).following(self._stream.id, start, stop)
            since = max(start, placed[-1].segment.end_seq if placed else start)
            return placed, self._rows(key, since, stop) if since < stop else []
        finally:
            self._connection.execute("COMMIT")

    def _rows(self, key: str, start: int, stop: int) -> list[Entries]:
        """The rows of the log that may hold a key."""
        owner, seqs = self._stream.id, None
        if self._tail_keys is not None:
            seqs = self._tail_keys.find(self._connection, self._stream, key, self._head.published_seq, start, stop)
        if seqs is None:
            return list(self._wal.scan_key(owner, key, start, stop))
        rows: list[Entries] = []
        for seq in seqs:
            if not rows or seq >= rows[-1].seq + rows[-1].count:
                row = self._wal.holding(owner, seq)
                rows += [] if row is None else [row]
        return rows

    def _of_segment(self, placed: SegmentObject, key: str, start: int, stop: int) -> Iterator[StoredObservation]:
        with self._segments().open(placed.key, placed.segment) as reader:
            for seq, at_us, payload in reader.having(start, stop, key):
                observation = decode(payload)
                if observation.entity_id == key:  # others may have the hash of the key
                    yield StoredObservation(seq, at_us, observation)


def _of_row(row: Entries, key: str, start: int, stop: int) -> Iterator[StoredObservation]:
    keys = [row.key] * row.count if row.keys is None else _KEYS.decode(row.keys)
    for index, body in enumerate(entries_of(row.body)):
        if keys[index] == key and start <= row.seq + index < stop:
            yield StoredObservation(row.seq + index, row.append_us, decode(bytes(body)))


class EntityGroup(NamedTuple):
    """An entity that is not merged into another, the ids whose observations it has, and moved observations."""

    row: EntityRow
    members: tuple[str, ...]
    moved: tuple[SplitRow, ...] = ()
    #: Members whose observations before a number are being erased, and do not count.
    since: tuple[tuple[str, int], ...] = ()

    def observations(
        self, observations: Observations, start: int = 0, stop: int | None = None, *, newest_first: bool = False
    ) -> Iterator[StoredObservation]:
        """Its observations in a range, in the order of the stream or the newest first."""
        into = {(row.entity_id, row.observation_id): row.into_id for row in self.moved}
        since = dict(self.since)
        sources = {entity for (entity, _), target in into.items() if target in self.members}
        parts = [
            observations.read(id, start, stop, newest_first=newest_first)
            for id in (*self.members, *sorted(sources.difference(self.members)))
        ]
        merged = parts[0] if len(parts) == 1 else heapq.merge(*parts, key=attrgetter("seq"), reverse=newest_first)
        for stored in merged:
            stored_for = stored.observation.entity_id
            entity_id = into.get((stored_for, stored.observation.id), stored_for)
            if entity_id in self.members and stored.seq >= since.get(entity_id, 0):
                yield stored


def owned_entity(entities: Entities, entity_id: str, user_id: str) -> EntityRow:
    """An entity of a user; raises EntityNotFound, for entities of other users too."""
    row = entities.find(entity_id)
    if row is None or row.user_id != user_id:
        raise EntityNotFound("there is no such entity", entity_id=entity_id)
    return row


class EntityGroups:
    """Finds the groups of entities through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._entities, self._aliases, self._erasures = Entities(connection), Aliases(connection), Erasures(connection)

    def has(self, entity_id: str, user_id: str) -> bool:
        """Whether a user has an entity of this id."""
        row = self._entities.find(entity_id)
        return row is not None and row.user_id == user_id

    def row(self, entity_id: str, user_id: str) -> EntityRow:
        """An entity of a user; raises EntityNotFound, for entities of other users too."""
        return owned_entity(self._entities, entity_id, user_id)

    def group(self, row: EntityRow, until_us: int = _EVER) -> EntityGroup:
        """The group of an entity, by the merges and splits until a moment."""
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
