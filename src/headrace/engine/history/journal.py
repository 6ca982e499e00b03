"""Journals: numbered records that are published beside streams, and taken over from the store by a recovery.

The feature registry and the changes of entity types are journals. The store has a record before any stream that
follows it, so no stream comes back from there without what it refers to. The publisher, recovery and verification know
the table of journals, and none of them by name.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from headrace.engine.history.stored_events import Events
from headrace.engine.log.batch import Batch
from headrace.engine.log.stream import Stream
from headrace.errors import CorruptData
from headrace.format.decoded_columns import LruCache
from headrace.format.journal import JournalFormat
from headrace.storage.database import Connection
from headrace.storage.journals import JournalRows
from headrace.storage.node import Node
from headrace.storage.objects import ObjectMissing, Objects
from headrace.storage.streams import StreamRow

if TYPE_CHECKING:
    from headrace.reduce.states.definition import EventRun
    from headrace.storage.segments import Segments

log = logging.getLogger("headrace.sealing")

Row = TypeVar("Row", bound=msgspec.Struct)
#: Gets the problems that a recovery could not solve.
ReportProblem = Callable[[str], None]
#: Reads the stored events of a stream from one on, in runs.
ReadRuns = Callable[[int], Iterator["EventRun"]]

_MAX_OBJECT_BYTES = 4 * 1024 * 1024
_MAX_RUN_BYTES = 1024 * 1024
_PAGE = 500


class JournalContents(NamedTuple):
    """What the object store has of a journal: its newest number, how many records and bytes, and what is damaged."""

    newest: int
    records: int
    bytes: int
    damage: list[CorruptData]


class Journal(ABC, Generic[Row]):
    """One journal: the format of its objects, its rows in the database, and what follows from its records.

    An object holds consecutive records, and is named by the number of the first of them.
    """

    #: What reports call it.
    name: str
    format: JournalFormat[Any]
    #: What the names of the streams that follow it begin with.
    stream_prefix: str
    #: The entry of the database's metadata that is set while :meth:`reread` is due.
    reread_key: str
    #: Its records in the database, through a connection.
    rows: type[JournalRows[Row]]
    #: Whether every record counts, so that one that the store lacks is missed.
    needs_all = False

    def encode(self, rows: list[Row]) -> bytes:
        """Consecutive records as an object."""
        values = (msgspec.structs.astuple(row) for row in rows)
        record_type = self.format.record_type
        return self.format.encode(
            [record_type(*fields, msgspec.Raw(document.encode())) for *fields, document in values]
        )

    def decode(self, data: bytes, key: str) -> list[Row]:
        """The records of an object; raises CorruptData, naming its key."""
        values = map(msgspec.structs.astuple, self.format.decode(data, key))
        return [self.rows.row_type(*fields, bytes(document).decode()) for *fields, document in values]

    def gaps(self, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        """The first and the last of each run of records that are missing, where ``numbers`` are there, ascending."""
        expected = 1
        for number in numbers if self.needs_all else ():
            if number > expected:
                yield expected, number - 1
            expected = number + 1

    @abstractmethod
    def restore(self, batch: Batch, new_epoch: Callable[[], int], report: ReportProblem) -> None:
        """Bring everything that follows from the records up to date, once they and all streams are recovered."""

    @abstractmethod
    def reread_stream(self, batch: Batch, stream: Stream, runs: ReadRuns) -> None:
        """Read the stored events of a stream again for what neither records nor manifests have."""

    def reread(
        self,
        batch: Batch,
        find: Callable[[str], Stream | None],
        connection: Connection,
        segments: Callable[[], Segments],
    ) -> None:
        """Read the stored events of all streams again; clears :attr:`reread_key`."""
        for row in self.streams(batch):
            stream = find(row.name)
            if stream is not None:
                self.reread_stream(batch, stream, partial(_read_runs, connection, segments, stream))
        batch.streams.set_meta(self.reread_key, 0)

    def streams(self, batch: Batch) -> Iterator[StreamRow]:
        """The streams that follow it."""
        after = 0
        while rows := batch.streams.with_retention(after, _PAGE):
            yield from (row for row in rows if row.managed and row.name.startswith(self.stream_prefix))
            after = rows[-1].id

    def is_due(self, connection: Connection) -> bool:
        """Whether the object store lacks a record."""
        return bool(self.rows(connection).unpublished(0, 1))

    def publish(self, objects: Objects, node: Node, connection: Connection) -> int:
        """Put every record into the store that it lacks; returns the number of the last, 0 where there is none.

        Raises Fenced where another node has taken over meanwhile: what that has written stays.
        """
        newest = 0
        for run in self._runs(self.rows(connection)):
            if not newest:
                node.check()
            key, data = self.format.key(self.rows.number(run[0])), self.encode(run)
            if not objects.create(key, data):
                node.check()
                if self.format.max_records == 1:
                    log.error("%s is there already and says something else; it is written again", key)
                # Otherwise it is ours from before a crash, and has fewer records.
                objects.put(key, data)
            newest = self.rows.number(run[-1])
        if newest:
            node.check()
        return newest

    def _runs(self, rows: JournalRows[Row]) -> Iterator[list[Row]]:
        """Unpublished records, the oldest first, as many consecutive ones together as fit into an object."""
        after = 0
        while page := rows.unpublished(after, self.format.max_records):
            run: list[Row] = []
            size = 0
            for row in page:
                is_next = bool(run) and self.rows.number(row) == self.rows.number(run[-1]) + 1
                if run and (not is_next or size + self.rows.size(row) > _MAX_OBJECT_BYTES):
                    break
                run.append(row)
                size += self.rows.size(row)
            yield run
            after = self.rows.number(run[-1])

    def recover(self, objects: Objects, batch: Batch, new_epoch: Callable[[], int], report: ReportProblem) -> None:
        """Take every record over that the store has, and restore what follows from them."""
        rows = self.rows(batch.connection)
        firsts = sorted(
            n
            for object_info in objects.list(self.format.prefix)
            if (n := self.format.number_of(object_info.key)) is not None
        )
        newest = max((self._take_object(objects, first, rows, report) for first in firsts), default=0)
        last = max(newest, *firsts[-1:], 0)
        while objects.has(self.format.key(last + 1)):  # a listing may lack the newest objects
            newest = max(newest, self._take_object(objects, last + 1, rows, report))
            last = max(newest, last + 1)
        rows.note_published(newest)
        self.restore(batch, new_epoch, report)

    def _take_object(self, objects: Objects, first: int, rows: JournalRows[Row], report: ReportProblem) -> int:
        """Take the records of an object over; returns the number of the last, 0 where the object is damaged.

        Every record in the store counts. One that is in the database alone stays only where it follows them.
        """
        key = self.format.key(first)
        try:
            stored = self.decode(objects.get(key), key)
        except CorruptData as reason:
            report(reason.message)
            return 0
        for row in stored:
            number = self.rows.number(row)
            own = rows.get(number)
            if own is not None and own != row:
                rows.drop_from(number)
            if own != row:
                rows.save(row, published=True)
        return max(map(self.rows.number, stored), default=0)

    def verify(self, objects: Objects) -> JournalContents:
        """Read every object of the store; returns which are damaged or missing."""
        numbers, size, damage = set[int](), 0, list[CorruptData]()
        for object_info in objects.list(self.format.prefix):
            if self.format.number_of(object_info.key) is None:
                continue
            size += object_info.bytes
            try:
                numbers.update(map(self.rows.number, self.decode(objects.get(object_info.key), object_info.key)))
            except ObjectMissing:
                pass  # swept since; what must not be swept is missed below
            except CorruptData as reason:
                damage.append(reason)
        damage += (self._missing(first, last) for first, last in self.gaps(sorted(numbers)))
        return JournalContents(max(numbers, default=0), len(numbers), size, damage)

    def _missing(self, first: int, last: int) -> CorruptData:
        key = self.format.key(first)
        return ObjectMissing(f"the object {key} is missing, with changes up to {last}", object=key, check="present")


def _read_runs(
    connection: Connection, segments: Callable[[], Segments], stream: Stream, start: int
) -> Iterator[EventRun]:
    head = stream.head
    return Events(connection, segments, LruCache(0), stream, head).runs(start, head.next_seq, _MAX_RUN_BYTES)
