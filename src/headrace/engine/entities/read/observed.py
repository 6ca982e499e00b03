"""The observations of an entity, by its key, wherever they lie; for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.engine.entities.read.tail_keys import TailKeys
from headrace.engine.log.stream import Head, Stream
from headrace.schema.entity.observation import Observation, decode
from headrace.schema.entries import entries_of
from headrace.storage.database import Connection
from headrace.storage.published import Placed, Published
from headrace.storage.wal import Entries, Wal

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

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

    def _look(self, key: str, start: int, stop: int) -> tuple[list[Placed], list[Entries]]:
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

    def _sealed(self, placed: Placed, key: str, start: int, stop: int) -> Iterator[Observed]:
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
