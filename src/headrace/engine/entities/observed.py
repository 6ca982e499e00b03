"""The observations of an entity, by its key, wherever they lie; for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.engine.stream import Head, Stream
from headrace.schema.entity.observation import Observation, decode
from headrace.schema.entries import entries_of
from headrace.storage.database import Connection
from headrace.storage.published import Placed, Published
from headrace.storage.wal import Entries, Wal

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

_KEYS = msgspec.json.Decoder(list[str | None])


class Observed(NamedTuple):
    """One observation, its number in the stream, and when it was appended."""

    seq: int
    at_us: int
    observation: Observation


class Observations:
    """The observations of one stream up to a head, through one connection."""

    def __init__(self, connection: Connection, segments: Callable[[], Segments], stream: Stream, head: Head) -> None:
        self._connection, self._segments, self._stream, self._head = connection, segments, stream, head

    def of(self, entity_id: str, start: int = 0, stop: int | None = None) -> Iterator[Observed]:
        """The observations with an entity's key in a range, in order."""
        start, stop = self._range(start, stop)
        placed, rows = self._look(entity_id, start, stop)
        for one in placed:
            yield from self._sealed(one, entity_id, start, stop)
        for row in rows:
            yield from _of_row(row, entity_id, start, stop)

    def newest_of(self, entity_id: str, start: int = 0, stop: int | None = None) -> Iterator[Observed]:
        """The same, the newest first."""
        start, stop = self._range(start, stop)
        placed, rows = self._look(entity_id, start, stop)
        for row in reversed(rows):
            yield from reversed(list(_of_row(row, entity_id, start, stop)))
        for one in reversed(placed):
            yield from reversed(list(self._sealed(one, entity_id, start, stop)))

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        head = self._head
        return max(start, head.first_seq), head.next_seq if stop is None else min(stop, head.next_seq)

    def _look(self, key: str, start: int, stop: int) -> tuple[list[Placed], list[Entries]]:
        """The segments that may hold a key, and the rows of the log after them, as of one moment."""
        published, wal, owner = Published(self._connection), Wal(self._connection), self._stream.id
        self._connection.execute("BEGIN")
        try:
            placed = published.following(owner, start, stop)
            since = max(start, placed[-1].segment.end_seq if placed else start)
            return placed, list(wal.scan_key(owner, key, since, stop)) if since < stop else []
        finally:
            self._connection.execute("COMMIT")

    def _sealed(self, placed: Placed, key: str, start: int, stop: int) -> Iterator[Observed]:
        from headrace.format.segment import layout

        with self._segments().open(placed.key, placed.segment) as reader:
            for batch in reader.keyed(start, stop, key):
                seqs = batch.column(layout.SEQ).to_pylist()
                times = batch.column(layout.APPEND_TIME).cast("int64").to_pylist()
                for seq, at_us, payload in zip(seqs, times, batch.column(layout.PAYLOAD).to_pylist(), strict=True):
                    yield Observed(seq, at_us, decode(payload))


def _of_row(row: Entries, key: str, start: int, stop: int) -> Iterator[Observed]:
    keys = [row.key] * row.count if row.keys is None else _KEYS.decode(row.keys)
    for place, body in enumerate(entries_of(row.body)):
        if keys[place] == key and start <= row.seq + place < stop:
            yield Observed(row.seq + place, row.append_us, decode(bytes(body)))
