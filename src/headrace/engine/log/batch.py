"""One commit in the making, the operations that it is made of, and the names of streams that it gives entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import HeadraceError, Unavailable
from headrace.storage.database import Connection
from headrace.storage.dedupe import Dedupe, FirstEvent
from headrace.storage.node import EPOCH_BLOCK
from headrace.storage.notes import Notes
from headrace.storage.published import Published
from headrace.storage.registries import Registries
from headrace.storage.streams import Streams
from headrace.storage.wal import AT_ONCE, Row, Wal
from headrace.types import Clock, rfc3339

if TYPE_CHECKING:
    from headrace.engine.log.stream import Head, Stream

_CACHED_PRODUCERS = 4096
# A byte for each slot, as threads that set bits of one byte would undo each other's.
_SLOTS = 1 << 22


class WalNameFilter:
    """Names every stream that has entries in the log, and few others; in the beginning it names all.

    Other streams are looked up without the log. The writer adds names, and each count of the backlog rebuilds the
    filter, as entries leave the log.
    """

    def __init__(self) -> None:
        self._slots = bytearray(b"\1") * _SLOTS
        self._anew: bytearray | None = None

    def __contains__(self, name: str) -> bool:
        return self._slots[hash(name) % _SLOTS] != 0

    def add(self, name: str) -> None:
        """Add the name of a stream once its entries are on disk, before the commit is answered."""
        slot = hash(name) % _SLOTS
        anew = self._anew
        # First the ones that are to come: they may become the others in between.
        if anew is not None:
            anew[slot] = 1
        self._slots[slot] = 1

    def begin(self) -> None:
        """Begin to rebuild the filter from streams that are counted now."""
        self._anew = bytearray(_SLOTS)

    def add_counted(self, names: Iterable[str]) -> None:
        """Add the names of streams that were counted."""
        assert self._anew is not None
        for name in names:
            self._anew[hash(name) % _SLOTS] = 1

    def end(self) -> None:
        """End the rebuild: only streams that were counted, or added since it began, have entries."""
        assert self._anew is not None
        self._slots = self._anew
        self._anew = None


class Operation:
    """Something the writer does inside a commit."""

    # Defaults live on the class: most operations never set them, and the hot ones are made 30,000 times a second.
    #: Whether it waits for entries to be on disk, which has a shorter timeout than other work.
    appends = False
    #: Whether it leads to free space, so that a full disk must let it through; it may be performed twice then.
    frees = False
    #: Whether no client has asked for it: a full queue takes it, as nobody could retry, and it takes no client's place.
    is_chore = False
    size = 0
    #: The one stream that it adds entries to, where it does nothing else.
    only: Stream | None = None
    #: The one stream that it adds entries to, whatever else it does for them.
    appends_to: Stream | None = None
    #: The other streams that it reads or changes, which stay in memory until it is settled.
    pinned: tuple[Stream, ...] = ()
    error: HeadraceError | None = None
    submitted = 0.0
    expired = False
    settled = False

    def perform(self, batch: Batch) -> None:
        """Check and draft; raise a HeadraceError before the first write to refuse."""
        raise NotImplementedError

    def answer(self) -> None:
        """Answer, on the event loop: ``error`` says whether it failed, ``expired`` that the caller's time ran out.

        Called when the operation is settled, and before that if its time ran out.
        """
        raise NotImplementedError


class Batch:
    """One commit in the making."""

    def __init__(self, connection: Connection, streams: Streams, wal: Wal, now_us: int) -> None:
        self._connection = connection
        self._streams = streams
        self._wal = wal
        self.now_us = now_us
        self.rows: list[Row] = []
        self._written: set[str] = set()
        self.heads: dict[Stream, Head] = {}
        self.producers: dict[tuple[Stream, str], tuple[int, int]] = {}
        #: Keys of events that are stored once, by stream and key.
        self.firsts: dict[tuple[int, str], FirstEvent] = {}
        #: What else becomes visible once it is on disk.
        self.afterwards: list[Callable[[], None]] = []
        #: Notes on what was done, for the account; None where no account is kept.
        self.notes: list[str] | None = None
        self.noted = False
        self._next_epoch: int | None = None

    @property
    def connection(self) -> Connection:
        """The database, inside the transaction."""
        self._begin()
        return self._connection

    @property
    def streams(self) -> Streams:
        """The rows of streams and producers, inside the transaction."""
        self._begin()
        return self._streams

    @property
    def wal(self) -> Wal:
        """The rows of entries, inside the transaction."""
        self._begin()
        return self._wal

    def _begin(self) -> None:
        """Begin the transaction, unless someone has."""
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    def draft(self, stream: Stream) -> Head:
        """The head this batch is about to publish for a stream."""
        head = self.heads.get(stream)
        if head is None:
            head = self.heads[stream] = stream.head.copy()
        return head

    def write(self, name: str, row: Row) -> None:
        """Append entries to the log; the only way to add rows."""
        self.rows.append(row)
        self._written.add(name)

    def save_head(self, stream: Stream, **more: object) -> None:
        """Store the head of a stream in its row, and more, as its newest row of the log may go."""
        head = self.draft(stream)
        self.streams.update(
            stream.id,
            next_seq=head.next_seq,
            last_us=head.last_us,
            bytes=head.bytes,
            stream_seq=head.stream_seq,
            **more,
        )

    def producer(self, stream: Stream, producer: str) -> tuple[int, int] | None:
        """The epoch and last sequence number of a producer, this batch included."""
        state = self.producers.get((stream, producer)) or (stream.producers or {}).get(producer)
        return state or self.streams.producer(stream.id, producer)

    @property
    def registries(self) -> Registries:
        """The registry documents of all streams."""
        return Registries(self.connection)

    @property
    def published(self) -> Published:
        """What is known of published objects."""
        return Published(self.connection)

    def new_epoch(self) -> int:
        """An epoch that no stream has ever had, on this node or another."""
        if self._next_epoch is None:
            self._next_epoch = self.streams.meta("next_epoch")
        if self._next_epoch >= self.streams.meta("epoch_end"):
            spare = self.streams.meta("spare_epoch", -1)
            if spare < 0:
                raise Unavailable("the object store has not reserved more epochs yet", retry_after=5)
            self._next_epoch = spare
            self.streams.set_meta("epoch_end", spare + EPOCH_BLOCK)
            self.streams.set_meta("spare_epoch", -1)
        self._next_epoch += 1
        return self._next_epoch - 1

    def new_system_epoch(self) -> int:
        """The same for a stream of the server itself, from the far end: those of clients follow each other."""
        end = self.streams.meta("epoch_end")
        if end - 1 <= (self.streams.meta("next_epoch") if self._next_epoch is None else self._next_epoch):
            return self.new_epoch()
        self.streams.set_meta("epoch_end", end - 1)
        return end - 1

    def note(self, what: str, who: str, **facts: object) -> None:
        """Keep account of what this commit does; called once nothing can refuse it any more."""
        if self.notes is not None:
            note = {"at": rfc3339(self.now_us), "who": who, "what": what, **facts}
            self.notes.append(msgspec.json.encode(note).decode())

    def flush(self) -> None:
        """Hand what was drafted to SQLite, so that the rest of the batch can query it."""
        if self.rows:
            self.wal.insert(self.rows)
            self.rows = []
        if self.producers:
            self.streams.save_producers((s.id, p, epoch, seq) for (s, p), (epoch, seq) in self.producers.items())
        if self.firsts:
            Dedupe(self.connection).save((s, key, first.seq, first.at_us) for (s, key), first in self.firsts.items())
            self.firsts = {}
        if self.notes:
            Notes(self.connection).add(self.notes)
            self.notes = []
            self.noted = True
        if self._next_epoch is not None:
            self.streams.set_meta("next_epoch", self._next_epoch)

    def commit(self) -> None:
        """Put it on disk. A few appends and nothing else are one statement, which is a transaction by itself."""
        more = self.producers or self.firsts or self.notes or self._next_epoch is not None
        if more or self._connection.in_transaction or not 0 < len(self.rows) <= AT_ONCE:
            self.flush()
            self.connection.execute("COMMIT")
        else:
            self._wal.insert(self.rows)

    def publish(self, wal_names: WalNameFilter) -> None:
        """Make the drafts visible to readers; called once they are on disk."""
        for announce in self.afterwards:  # first: who sees the events after a change must see the change
            announce()
        for name in self._written:
            wal_names.add(name)
        for stream, head in self.heads.items():
            stream.head = head
        for (stream, producer), state in self.producers.items():
            if stream.producers is None or len(stream.producers) >= _CACHED_PRODUCERS:
                stream.producers = {}
            stream.producers[producer] = state


def commit_alone(connection: Connection, clock: Clock, perform: Callable[[Batch], None]) -> None:
    """Run a function in a commit of its own, where no writer is at work."""
    batch = Batch(connection, Streams(connection), Wal(connection), clock.now_us())
    with connection:
        perform(batch)
        batch.flush()
