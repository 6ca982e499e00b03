"""Operations that create, delete and change streams, each one step of a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from headrace.engine.log.append import PLAIN, Terms, check_ahead
from headrace.engine.log.batch import Batch, Operation
from headrace.engine.log.forks import Fork
from headrace.engine.log.stream import Stream, deleted
from headrace.engine.log.stream_registry import StreamRegistry
from headrace.engine.log.writer import Writer
from headrace.errors import Conflict, OffsetGone
from headrace.profiles import table
from headrace.schema.registry import Registry
from headrace.storage.background_requests import Verifications
from headrace.storage.derived import Companions, States
from headrace.storage.registries import RegistryRow
from headrace.storage.streams import DELETED, LIVE, SOFT_DELETED, StreamRow
from headrace.storage.wal import pack_body
from headrace.storage.work import Work
from headrace.types import JSON

#: The user of what the server does by itself.
SERVER = "server"


class StreamChange(Operation):
    """An operation that answers by calling ``done`` with itself."""

    #: The user who asked for it.
    who = SERVER

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
        """Unpin the streams once settled, and answer the caller."""
        if self.settled:
            for stream in self.pinned:
                stream.pins -= 1
        self.done(self)


ChangeType = TypeVar("ChangeType", bound=StreamChange)


def make_done_callback(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    """A ``done`` that ends a wait with the settled operation, if anybody still waits."""
    waits = [future]

    def done(operation: Operation) -> None:
        # The wait holds the operation from here on, which must not hold the wait: the collector comes rarely.
        if operation.settled and not (waiting := waits.pop()).done():
            waiting.set_result(operation)

    return done


async def run_change(writer: Writer, make_change: Callable[..., ChangeType], *arguments: Any) -> ChangeType:
    """Make a change, queue it and wait until it is settled; raises what refused it."""
    future: asyncio.Future[ChangeType] = asyncio.get_running_loop().create_future()
    change = make_change(*arguments, make_done_callback(future))
    change.submit(writer)
    await future
    if change.error is not None:
        raise change.error
    return change


class Call(StreamChange):
    """A function to run inside a commit."""

    def __init__(
        self,
        function: Callable[[Batch], Any],
        done: Callable[[Any], None],
        *,
        is_chore: bool = False,
        frees: bool = False,
        pinned: tuple[Stream, ...] = (),
    ) -> None:
        super().__init__(done, size=200, pinned=pinned)
        self.function, self.is_chore, self.frees = function, is_chore, frees
        self.returned: Any = None

    def perform(self, batch: Batch) -> None:
        """Run it."""
        batch.flush()
        self.returned = self.function(batch)


async def apply(
    writer: Writer,
    perform: Callable[[Batch], Any],
    *,
    is_chore: bool = False,
    frees: bool = False,
    pinned: tuple[Stream, ...] = (),
) -> Any:
    """Run a function inside a commit, on the writer's thread, and return what it returned.

    A chore is accepted even when the queue is full, and what ``frees`` space even when the disk is.
    """
    return (await run_change(writer, partial(Call, is_chore=is_chore, frees=frees, pinned=pinned), perform)).returned


class Create(StreamChange):
    """A new stream, with its first entries and its closing mark, or nothing at all."""

    registry: StreamRegistry | None = None
    validated_by: StreamRegistry | None = None
    version = 0
    keys: str | None = None
    dedupe_keys: list[str | None] | None = None
    original: bytes | None = None

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
            self.dropped += delete(batch, self.replaces, expired=True)
            batch.note("stream_expired", SERVER, stream=self.replaces.name)
        existing = batch.streams.by_name(self.row.name)
        if existing is not None and existing.state == SOFT_DELETED:
            raise Conflict("the name belongs to a deleted stream that forks still need", stream=existing.name)
        if existing is not None and existing.state == LIVE:
            self.exists = True
            return
        if self.fork is not None:
            self._inherit(batch, self.fork)
        if self.registry is not None and self.count:
            self.registry.admit(self)
        if existing is not None:
            batch.streams.remove(existing.id)
        self._start_epoch(batch)
        first = self._first_entries(batch.now_us)
        self.row.id = batch.streams.insert(self.row)
        batch.published.mark(self.row.id, batch.now_us)
        if self.registry is not None and self.registry.revision:
            save_registry(batch, self.row.id, self.registry)
        for facts in first:
            batch.write(self.row.name, (self.row.id, *facts))
        batch.note(
            "stream_created", self.who, stream=self.row.name, content_type=self.row.content_type, **self._origin()
        )
        if self.row.closed:
            batch.note("stream_closed", self.who, stream=self.row.name)

    def _origin(self) -> dict[str, object]:
        if self.fork is None:
            return {}
        return {"forked_from": self.fork.source.name, "profile": table.load(self.row.profile).document}

    def _inherit(self, batch: Batch, fork: Fork) -> None:
        """Set the row's head to the fork point."""
        source, position, row = fork.source, fork.position, self.row
        head = batch.draft(source)
        if head.state != LIVE:
            raise Conflict("the source of the fork was deleted", stream=source.name)
        if position < head.first_seq:
            raise OffsetGone(
                "the fork offset lies before the first retained entry",
                earliest_offset=source.offset_at(head.first_seq),
            )
        row.parent, row.fork_seq = source.id, position
        row.next_seq = row.published_seq = position
        # What has expired, and is not removed yet, does not come along.
        first = max((head.first_seq, head.first_bytes), (fork.first_seq, fork.first_bytes))
        row.first_seq, row.first_bytes = min(first[0], position), first[1]
        row.last_us, row.bytes = fork.last_us, fork.bytes
        row.profile = source.profile
        if head.registry is not None:
            self.registry = inherit_registry(batch, source, head.registry, row.name, position)

    def _start_epoch(self, batch: Batch) -> None:
        inherited = self.fork.source.epochs if self.fork is not None else ()
        epochs = [[epoch, first] for epoch, first in inherited if first < self.row.next_seq]
        own = batch.new_epoch()
        epochs.append([own, self.row.next_seq])
        self.row.epochs = msgspec.json.encode(epochs).decode()
        self.row.incarnation = str(own)

    def _first_entries(self, now_us: int) -> list[Any]:
        """Rows of the log without their stream; the stream's own row, which others may see first, tells of them too."""
        rows = []
        if self.fork is not None and self.fork.part is not None:
            append_us, key, payload = self.fork.part
            rows.append(self._advance(payload, 1, append_us, key))
        if self.count:
            at_us = now_us if self.terms.timestamp_us is None else self.terms.timestamp_us
            rows.append(self._advance(self.body, self.count, at_us, self.key))
        return rows

    def _advance(self, body: bytes, count: int, at_us: int, key: str | None) -> Any:
        row, seq = self.row, self.row.next_seq
        row.next_seq = seq + count
        row.last_us = max(at_us, row.last_us)
        row.bytes += len(body)
        return seq, count, row.last_us, self.version, key, self.keys, None, row.bytes, *pack_body(body)


def inherit_registry(
    batch: Batch, source: Stream, compiled: StreamRegistry, name: str, position: int
) -> StreamRegistry:
    """The registry of a fork: what its source's was when the entry before the fork point came, and its profile."""
    registry = compiled.registry
    version = registry.version_at(position)
    if version != registry.current_version:
        # A fork knows its own changes only; what came before them is its ancestors'.
        owners = (source.id, *(owner for owner, _ in reversed(source.lineage)))
        rows = (row for owner in owners for row in reversed(batch.registries.history(owner)))
        revisions = (Registry.load(msgspec.json.decode(row.document)) for row in rows)
        registry = next(old for old in revisions if old.current_version == version)
    lenses = {version: {**lens, "schema": name} for version, lens in registry.lenses.items()}
    renamed = msgspec.structs.replace(registry, schema=name, lenses=lenses)
    return StreamRegistry(renamed, 1 if compiled.revision else 0, table.load(source.profile).hook)


def save_registry(batch: Batch, stream: int, compiled: StreamRegistry) -> None:
    """Store a registry as part of a commit."""
    store_registry(batch, stream, compiled.registry, compiled.revision)


def store_registry(batch: Batch, stream: int, registry: Registry, revision: int) -> None:
    """Store a registry that is not compiled, as part of a commit."""
    document = msgspec.json.encode(registry.dump()).decode()
    batch.registries.save(stream, RegistryRow(revision, batch.now_us, document))
    batch.published.mark(stream, batch.now_us)
    work = Work(batch.connection)
    work.forget_failures(stream)
    work.mark(stream, batch.now_us)
    Verifications(batch.connection).outdate(stream, registry.current_version, batch.now_us)


def require_free_name(batch: Batch, name: str) -> StreamRow | None:
    """The deleted stream of this name, if there is one; refuses a name that another stream has."""
    existing = batch.streams.by_name(name)
    if existing is not None and existing.state != DELETED:
        raise Conflict(f"the stream {name} exists already and is somebody else's: delete or rename it", stream=name)
    return existing


def create_managed(
    batch: Batch,
    registry: Registry,
    managed: str,
    epoch: int,
    retention_age_us: int | None = None,
    profile: str = "generic",
) -> int:
    """The stream of something that manages it, or of the server itself; refuses a name that is taken."""
    name = registry.schema
    existing = require_free_name(batch, name)
    if existing is not None:
        batch.streams.remove(existing.id)
    row = StreamRow(
        name=name,
        content_type=JSON,
        created_us=batch.now_us,
        epochs=msgspec.json.encode([[epoch, 0]]).decode(),
        incarnation=str(epoch),
        retention_age_us=retention_age_us,
        managed=managed,
        profile=profile,
    )
    row.id = batch.streams.insert(row)
    store_registry(batch, row.id, registry, 1)
    return row.id


class Delete(StreamChange):
    """The end of a stream; it stays readable through forks that need it."""

    frees = True
    #: Whether a sweep found the stream deleted already.
    repeated = False

    def __init__(self, stream: Stream, done: Callable[[Delete], None], *, deadline_us: int | None = None) -> None:
        super().__init__(done, pinned=(stream,), size=100)
        self.stream = stream
        self.deadline_us = deadline_us

    def perform(self, batch: Batch) -> None:
        """Delete the stream, and the soft-deleted ancestors that only it kept."""
        state, expired = batch.draft(self.stream).state, self.deadline_us is not None
        self.repeated = expired and state == DELETED
        if self.repeated or (expired and self.stream.deadline_us != self.deadline_us):
            return  # or an access came between the sweep and the commit
        if state != LIVE:
            raise deleted(self.stream, state)
        batch.flush()
        self.dropped = delete(batch, self.stream, expired=expired)
        batch.note("stream_expired" if expired else "stream_deleted", self.who, stream=self.stream.name)


def delete(batch: Batch, stream: Stream, *, expired: bool = False) -> list[tuple[str, int]]:
    """Delete a stream, softly if forks need it; returns the names and ids that are deleted for good.

    One that has ``expired`` is not remembered as deleted: it is as if it had never been.
    """
    if batch.streams.forks(stream.id):
        batch.draft(stream).state = SOFT_DELETED
        batch.streams.update(stream.id, state=SOFT_DELETED, deadline_us=stream.deadline_us if expired else None)
        batch.published.mark(stream.id, batch.now_us)
        Work(batch.connection).drop(stream.id)
        Companions(batch.connection).retire_all(stream.id)
        States(batch.connection).retire_all(stream.id)
        return []
    batch.draft(stream).state = DELETED
    dropped = [(stream.name, stream.id)]
    _bury(batch, stream.id)
    if expired:
        batch.streams.remove(stream.id)
    parent = stream.parent
    if parent is not None:
        batch.published.mark(parent, batch.now_us)  # it may have kept segments for this fork alone
    return dropped + release(batch, parent)


def release(batch: Batch, stream: int | None) -> list[tuple[str, int]]:
    """Delete a soft-deleted stream that no fork needs, and then its ancestors; returns their names and ids."""
    dropped: list[tuple[str, int]] = []
    while stream is not None:
        row = batch.streams.by_id(stream)
        if row is None or row.state != SOFT_DELETED or batch.streams.forks(stream):
            break
        _bury(batch, stream)
        dropped.append((row.name, row.id))
        stream = row.parent
    return dropped


def _bury(batch: Batch, stream: int) -> None:
    batch.streams.update(stream, state=DELETED, deadline_us=batch.now_us)
    batch.streams.discard(stream)
    batch.published.mark_stream_deleted(stream)
    Work(batch.connection).drop(stream)
    Companions(batch.connection).drop(stream)
    States(batch.connection).drop(stream)


class SetRetention(StreamChange):
    """A new retention rule for a stream."""

    frees = True

    def __init__(
        self, stream: Stream, done: Callable[[SetRetention], None], *, age_us: int | None, size: int | None
    ) -> None:
        super().__init__(done, pinned=(stream,), size=100)
        self.stream, self.age_us, self.bytes = stream, age_us, size

    def perform(self, batch: Batch) -> None:
        """Store the rule."""
        state = batch.draft(self.stream).state
        if state != LIVE:
            raise deleted(self.stream, state)
        batch.streams.update(self.stream.id, retention_age_us=self.age_us, retention_bytes=self.bytes)
        batch.published.mark(self.stream.id, batch.now_us)
        rule = {"age_us": self.age_us, "bytes": self.bytes}
        batch.note("retention_changed", self.who, stream=self.stream.name, retention=rule)
