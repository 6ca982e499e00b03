"""The commits of an erasure: it is stored, rows of the log are rewritten, and free pages are overwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from headrace import decoding
from headrace.engine.entities.entity_hook import EntityHook
from headrace.engine.entities.entity_type import EntityType
from headrace.engine.entities.erasure.erasure_plan import (
    ErasurePlan,
    PlannedErasure,
    emptied_sources,
    find_targets,
    refuse_forked,
)
from headrace.engine.entities.read.observations import StoredObservation
from headrace.engine.entities.types.journal import Action, TypeChange
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import StreamChange
from headrace.engine.log.stream import Stream
from headrace.errors import Conflict, EntityNotFound
from headrace.extract.erasure import Targets
from headrace.schema.entity.observation import decode, tombstone
from headrace.schema.entity.sources import CONTENT_PREFIX
from headrace.schema.entries import entries_of
from headrace.storage.background_requests import RUNNING, ErasureRow, Erasures
from headrace.storage.database import Connection
from headrace.storage.dedupe import Dedupe, Idempotency
from headrace.storage.derived import Companions, States
from headrace.storage.entities import Aliases, Entities, Sources
from headrace.storage.journals import EntityChangeRow, EntityChanges
from headrace.storage.streams import LIVE
from headrace.storage.wal import Entries, Wal

#: The rows of the log that one commit rewrites, and the pages that it overwrites.
SLICE_ROWS, SLICE_PAGES = 64, 512
_KEYS = msgspec.json.Decoder(list[str | None])
_ROW_BYTES = 1024 * 1024
#: No commit takes longer: data that was stored after a moment has a time later than this much before it.
_OVERLAP_US = 60_000_000


class EntityOutdated(Conflict):
    """The entity has changed since the erasure was planned: it has to be planned again."""


@contextmanager
def secure(connection: Connection) -> Iterator[None]:
    """Overwrite on the disk what the block deletes or replaces."""
    before = connection.pragma("secure_delete")
    connection.pragma("secure_delete", "ON")
    try:
        yield
    finally:
        connection.pragma("secure_delete", "FAST" if int(before) == 2 else int(before))


class BeginErasure(StreamChange):
    """Begins an erasure: the entity is gone, and later observations of its id belong to a new one."""

    def __init__(
        self, id: str, stream: Stream, user_id: str, planned: PlannedErasure, done: Callable[[Any], None]
    ) -> None:
        super().__init__(done, pinned=(stream,), size=2_000)
        self.id, self.stream, self.user_id, self.planned = id, stream, user_id, planned
        self.who = user_id

    def perform(self, batch: Batch) -> None:
        """Store the erasure, and remove all data of the entity but its observations."""
        batch.flush()
        connection, stream, planned = batch.connection, self.stream, self.planned
        head, entity_id = batch.draft(stream), planned.targets.ids[0]
        entity = Entities(connection).find(entity_id)
        if head.state != LIVE or entity is None or entity.user_id != self.user_id:
            raise EntityNotFound("there is no such entity", entity_id=entity_id)
        refuse_forked(batch.streams, stream.id, entity_id)
        current = find_targets(connection, entity_id, planned.targets.entity_type)
        if msgspec.structs.replace(planned.targets, before_seq=0) != current:
            raise EntityOutdated("the entity was merged or split meanwhile", entity_id=entity_id)
        targets = msgspec.structs.replace(current, before_seq=head.next_seq)
        newer = [
            stored
            for key in targets.keys
            for stored in _read_since(batch.wal, stream, key, planned.head.next_seq, targets)
        ]
        with secure(connection):
            self._remove_rows(batch, targets, newer)
        retire_derived(batch, stream.id, [*planned.seqs, *(stored.seq for stored in newer)])
        # The plan is kept after the erasure, so it names only sources whose ids were made by the server.
        kept = [source for source in planned.plan.sources if source.startswith(CONTENT_PREFIX)]
        plan = msgspec.structs.replace(planned.plan, sources=kept)
        row = ErasureRow(
            id=self.id, entity_id=entity_id, user_id=self.user_id, stream=stream.id, before_seq=head.next_seq,
            state=RUNNING, step="log", begun_us=batch.now_us, ended_us=None, targets=targets.dump(),
            plan=msgspec.json.encode(plan).decode(), report="{}",
        )  # fmt: skip
        Erasures(connection).add(row, targets.ids)
        append_to_journal(batch, stream, "erase", row)
        batch.note("entity_erased", self.who, entity_type=targets.entity_type, erasure=self.id)

    def _remove_rows(self, batch: Batch, targets: Targets, newer: list[StoredObservation]) -> None:
        connection, planned, stream, user_id = batch.connection, self.planned, self.stream, self.user_id
        seqs = [*planned.seqs, *(stored.seq for stored in newer)]
        Entities(connection).drop(targets.ids)
        Aliases(connection).drop(targets.ids)
        Dedupe(connection).drop(stream.id, seqs)
        observation_ids = planned.observation_ids.union(stored.observation.id.encode() for stored in newer)
        later = Idempotency(connection).mentioning(
            user_id, [id.encode() for id in targets.ids], observation_ids, planned.at_us - _OVERLAP_US
        )
        Idempotency(connection).drop(user_id, {*planned.answers, *later})
        sources = {source for stored in newer if (source := stored.observation.source_id) is not None}
        emptied = planned.emptied | emptied_sources(connection, user_id, sources, stream, set(seqs))
        for source_id, ranges in emptied.items():
            Sources(connection).drop(user_id, source_id, ranges)


def retire_derived(batch: Batch, stream: int, seqs: Sequence[int]) -> None:
    """Retire the companions and states that were derived from some observations."""
    companions = Companions(batch.connection)
    listed = companions.listed(stream)
    companions.retire(
        stream,
        [companion.name for companion in listed if any(companion.first_seq <= seq < companion.end_seq for seq in seqs)],
    )
    States(batch.connection).retire_all(stream)
    batch.published.mark(stream, batch.now_us)


def _read_since(wal: Wal, stream: Stream, key: str, start: int, targets: Targets) -> Iterator[StoredObservation]:
    """The observations of a key in the log that are to be erased, from one on."""
    for row in wal.scan_key(stream.id, key, start, targets.before_seq):
        for index, body in enumerate(entries_of(row.body)):
            observation = decode(bytes(body))
            if row.seq + index >= start and targets.take(row.seq + index, observation):
                yield StoredObservation(row.seq + index, row.append_us, observation)


def append_to_journal(batch: Batch, stream: Stream, action: Action, row: ErasureRow) -> None:
    """Record an erasure in the journal of entity types, for recoveries."""
    changes, head = EntityChanges(batch.connection), batch.draft(stream)
    kind = None if head.registry is None else head.registry.hook
    if head.state != LIVE or head.registry is None or not isinstance(kind, EntityType):
        return
    plan = msgspec.structs.replace(decoding.decode(row.plan, ErasurePlan), sources=[])
    stored_row = msgspec.structs.replace(row, plan=msgspec.json.encode(plan).decode())
    number, document = changes.newest() + 1, TypeChange(action, erasure=stored_row)
    facts = kind.entity_type, row.user_id, batch.now_us, row.user_id, document.dump()
    changes.save(EntityChangeRow(number, *facts))
    hook = EntityHook(kind.entity_type, number, kind.rows.values(), kind.undone)
    head.registry = head.registry.with_hook(hook)
    batch.published.mark(stream.id, batch.now_us)


class RewriteRows(StreamChange):
    """Replaces observations in the log by tombstones, some rows of one key at a time."""

    frees = True

    def __init__(self, stream: Stream, targets: Targets, key: str, start: int, done: Callable[[Any], None]) -> None:
        super().__init__(done, pinned=(stream,), size=_ROW_BYTES)
        self.stream, self.targets, self.key, self.start = stream, targets, key, start
        #: Where the next slice begins; None after the last.
        self.next: int | None = None
        self.rows = 0

    def perform(self, batch: Batch) -> None:
        """Rewrite one slice."""
        batch.flush()
        wal, before = batch.wal, self.targets.before_seq
        rows = wal.scan_key(self.stream.id, self.key, self.start, before)
        slice_rows = list(islice((row for row in rows if row.seq >= self.start), SLICE_ROWS))
        rows.close()
        self.next = slice_rows[-1].seq + slice_rows[-1].count if len(slice_rows) == SLICE_ROWS else None
        self.rows = 0
        with secure(batch.connection):
            for row in slice_rows:
                self._rewrite(wal, row)

    def _rewrite(self, wal: Wal, row: Entries) -> None:
        rewritten = erase_from_row(row, self.targets)
        if rewritten is not None:
            wal.rewrite(self.stream.id, row.seq, rewritten.key, rewritten.keys, rewritten.body)
            self.rows += 1


class RewrittenRow(NamedTuple):
    """A row of the log with tombstones in it."""

    key: str | None
    keys: str | None
    body: bytes


def erase_from_row(row: Entries, targets: Targets) -> RewrittenRow | None:
    """A row without the observations to be erased; None where it has none."""
    entries: list[bytes] = [bytes(entry) for entry in entries_of(row.body)]
    erased = [at for at, body in enumerate(entries) if targets.take(row.seq + at, decode(body))]
    if not erased:
        return None
    keys = [row.key] * row.count if row.keys is None else _KEYS.decode(row.keys)
    for at in erased:
        entries[at], keys[at] = tombstone(targets.entity_type, len(entries[at])), None
    if all(key is None for key in keys):
        return RewrittenRow(None, None, b",".join(entries))
    if row.keys is None and len(set(keys)) == 1:
        return RewrittenRow(row.key, None, b",".join(entries))
    return RewrittenRow(None, msgspec.json.encode(keys).decode(), b",".join(entries))


class FillFreePages(StreamChange):
    """Allocates free pages of the database, so that they are overwritten when they are freed again."""

    frees = True
    left = 0

    def perform(self, batch: Batch) -> None:
        """Allocate as many as a commit may."""
        connection = batch.connection
        pages = min(SLICE_PAGES, int(connection.pragma("freelist_count")))
        room = int(connection.pragma("page_size")) // 2
        # Each row has a page of its own, and no other is needed for it.
        connection.execute(_FILL, (room, pages))
        self.left = int(connection.pragma("freelist_count"))


class ReleaseFilledPages(StreamChange):
    """Frees the allocated pages, overwritten."""

    frees = True
    removed = 0

    def perform(self, batch: Batch) -> None:
        """Free some of them."""
        with secure(batch.connection):
            batch.connection.execute(
                "DELETE FROM filler WHERE rowid IN (SELECT rowid FROM filler LIMIT ?)", (SLICE_PAGES,)
            )
            self.removed = int(batch.connection.changes())


_FILL = """WITH RECURSIVE each (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM each WHERE number < ?2)
           INSERT INTO filler SELECT zeroblob(?1) FROM each WHERE ?2 > 0"""
