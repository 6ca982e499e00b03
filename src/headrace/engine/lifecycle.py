"""Operations that make, unmake and change streams, each one step of a commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headrace.engine import read as reading
from headrace.engine.append import PLAIN, Terms, check_ahead
from headrace.engine.registry import StreamRegistry
from headrace.engine.stream import Stream
from headrace.engine.writer import Batch, Operation, Writer
from headrace.errors import BadRequest, Conflict, NotFound, OffsetGone
from headrace.schema.registry import Registry
from headrace.storage.registries import RegistryRow
from headrace.storage.streams import DELETED, LIVE, SOFT_DELETED, StreamRow
from headrace.storage.wal import Entries


class Fork(msgspec.Struct, frozen=True):
    """Where a fork leaves its source: after ``position`` entries and ``sub`` bytes or messages of the next append."""

    source: Stream
    position: int
    sub: int


class Change(Operation):
    """An operation that answers by calling ``done`` with itself."""

    def __init__(self, done: Callable[[Any], None], *, pinned: tuple[Stream, ...] = (), size: int = 0) -> None:
        self.size = size
        self.done = done
        self.pinned = pinned
        self.dropped: list[tuple[str, int]] = []

    def submit(self, writer: Writer) -> None:
        """Queue it, and hold its streams until it is settled; one that is refused holds nothing."""
        writer.submit(self)
        for stream in self.pinned:
            stream.pins += 1

    def answer(self) -> None:
        """Let go of the streams once settled, and answer the caller."""
        if self.settled:
            for stream in self.pinned:
                stream.pins -= 1
        self.done(self)


class Create(Change):
    """A new stream, with its first entries and its closing mark, or nothing at all."""

    registry: StreamRegistry | None = None
    version = 0
    keys: str | None = None

    def __init__(
        self,
        row: StreamRow,
        done: Callable[[Create], None],
        *,
        body: bytes = b"",
        count: int = 0,
        terms: Terms = PLAIN,
        fork: Fork | None = None,
        replaces: Stream | None = None,
    ) -> None:
        pinned = tuple(s for s in (replaces, fork.source if fork else None) if s is not None)
        super().__init__(done, pinned=pinned, size=len(body) + 500)
        self.row, self.body, self.count = row, body, count
        self.terms = terms
        self.key = terms.key
        self.fork = fork
        self.replaces = replaces
        self.exists = False
        self.appends = bool(count or row.closed)

    def perform(self, batch: Batch) -> None:
        """Take the name, unless someone else has it by now."""
        check_ahead(self.terms.timestamp_us, batch.now_us)
        if self.replaces is not None and batch.draft(self.replaces).state == LIVE:
            batch.flush()
            self.dropped += delete(batch, self.replaces)
        found = batch.streams.by_name(self.row.name)
        if found is not None and found.state == SOFT_DELETED:
            raise Conflict("the name belongs to a deleted stream that forks still need", stream=found.name)
        if found is not None and found.state == LIVE:
            self.exists = True
            return
        part = self._inherit(batch) if self.fork is not None else None
        if self.registry is not None and self.count:
            self.registry.admit(self)
        if found is not None:
            batch.streams.remove(found.id)
        self._start_epoch(batch)
        self.row.id = batch.streams.insert(self.row)
        if self.registry is not None:
            save_registry(batch, self.row.id, self.registry)
        if part is not None:
            self._write(batch, part.body, 1, part.append_us, part.key)
        if self.count:
            at_us = batch.now_us if self.terms.timestamp_us is None else self.terms.timestamp_us
            self._write(batch, self.body, self.count, at_us, self.key)

    def _inherit(self, batch: Batch) -> Entries | None:
        """Set the row's head to the fork point; answers the part of an entry that a byte stream copies."""
        assert self.fork is not None
        source, row = self.fork.source, self.row
        head = batch.draft(source)
        if head.state != LIVE:
            raise Conflict("the source of the fork was deleted", stream=source.name)
        if self.fork.position < head.first_seq:
            raise OffsetGone(
                "the fork offset lies before the first retained entry",
                earliest_offset=source.offset_at(head.first_seq),
            )
        batch.flush()
        position, part = self.fork.position, None
        if self.fork.sub:
            position, part = sub_offset(batch, source, position, self.fork.sub)
        row.parent, row.fork_seq = source.id, position
        row.next_seq = position
        row.first_seq, row.first_bytes = min(head.first_seq, position), head.first_bytes
        row.last_us = reading.time_before(batch.wal, source, head, position)
        row.bytes = reading.bytes_before(batch.wal, source, head, position)
        if head.registry is not None:
            self.registry = inherited(batch, source, head.registry.registry, row.name, position)
        return part

    def _start_epoch(self, batch: Batch) -> None:
        inherited = self.fork.source.epochs if self.fork is not None else ()
        epochs = [[epoch, first] for epoch, first in inherited if first < self.row.next_seq]
        epochs.append([batch.new_epoch(), self.row.next_seq])
        self.row.epochs = msgspec.json.encode(epochs).decode()

    def _write(self, batch: Batch, body: bytes, count: int, at_us: int, key: str | None) -> None:
        row = self.row
        row.last_us = max(at_us, row.last_us)
        row.bytes += len(body)
        batch.rows.append(
            (row.id, row.next_seq, count, row.last_us, self.version, key, self.keys, None, row.bytes, body)
        )
        row.next_seq += count


def inherited(batch: Batch, source: Stream, registry: Registry, name: str, position: int) -> StreamRegistry:
    """The registry of a fork: what its source's was when the entry before the fork point came."""
    version = registry.version_at(position)
    if version != registry.current_version:
        # A fork knows its own changes only; what came before them is its ancestors'.
        owners = (source.id, *(owner for owner, _ in reversed(source.lineage)))
        rows = (row for owner in owners for row in reversed(batch.registries.history(owner)))
        revisions = (Registry.load(msgspec.json.decode(row.document)) for row in rows)
        registry = next(old for old in revisions if old.current_version == version)
    lenses = {version: {**lens, "schema": name} for version, lens in registry.lenses.items()}
    return StreamRegistry(msgspec.structs.replace(registry, schema=name, lenses=lenses), 1)


def save_registry(batch: Batch, stream: int, compiled: StreamRegistry) -> None:
    """Store a registry as part of a commit."""
    document = msgspec.json.encode(compiled.registry.dump()).decode()
    batch.registries.save(stream, RegistryRow(compiled.revision, batch.now_us, document))


def sub_offset(batch: Batch, source: Stream, position: int, sub: int) -> tuple[int, Entries | None]:
    """Go ``sub`` messages, or bytes, into the append that follows a position; a part of an entry is to be copied."""
    head = batch.draft(source)
    found = reading.holding(batch.wal, source, position) if position < head.next_seq else None
    left = 0 if found is None else found[1] - position if source.is_json else len(found[0].body)
    if found is None or sub > left:
        raise BadRequest(
            f"Stream-Fork-Sub-Offset {sub} overshoots the next append, which has {left}",
            field="Stream-Fork-Sub-Offset",
        )
    if source.is_json:
        return position + sub, None
    return (
        (position + 1, None) if sub == left else (position, msgspec.structs.replace(found[0], body=found[0].body[:sub]))
    )


class Delete(Change):
    """The end of a stream; it stays readable through forks that need it."""

    def __init__(self, stream: Stream, done: Callable[[Delete], None], *, deadline_us: int | None = None) -> None:
        super().__init__(done, pinned=(stream,), size=100)
        self.stream = stream
        self.deadline_us = deadline_us

    def perform(self, batch: Batch) -> None:
        """Delete the stream, and the soft-deleted ancestors that only it kept."""
        if batch.draft(self.stream).state != LIVE:
            raise NotFound("the stream was deleted", stream=self.stream.name)
        if self.deadline_us is not None and self.stream.deadline_us != self.deadline_us:
            return  # an access came between the sweep and the commit
        batch.flush()
        self.dropped += delete(batch, self.stream)


def delete(batch: Batch, stream: Stream) -> list[tuple[str, int]]:
    """Mark a stream deleted, for its forks' sake softly; answers the names and ids that are gone for good."""
    if batch.streams.forks(stream.id):
        batch.draft(stream).state = SOFT_DELETED
        batch.streams.update(stream.id, state=SOFT_DELETED, deadline_us=None)
        return []
    batch.draft(stream).state = DELETED
    dropped = [(stream.name, stream.id)]
    _bury(batch, stream.id)
    parent = stream.parent
    while parent is not None:
        row = batch.streams.by_id(parent)
        if row is None or row.state != SOFT_DELETED or batch.streams.forks(parent):
            break
        _bury(batch, parent)
        dropped.append((row.name, row.id))
        parent = row.parent
    return dropped


def _bury(batch: Batch, stream: int) -> None:
    batch.streams.update(stream, state=DELETED, deadline_us=batch.now_us)
    batch.streams.discard(stream)


class SetRetention(Change):
    """A new retention rule for a stream."""

    def __init__(
        self, stream: Stream, done: Callable[[SetRetention], None], *, age_us: int | None, size: int | None
    ) -> None:
        super().__init__(done, pinned=(stream,), size=100)
        self.stream, self.age_us, self.bytes = stream, age_us, size

    def perform(self, batch: Batch) -> None:
        """Store the rule."""
        if batch.draft(self.stream).state != LIVE:
            raise NotFound("the stream was deleted", stream=self.stream.name)
        batch.streams.update(self.stream.id, retention_age_us=self.age_us, retention_bytes=self.bytes)
