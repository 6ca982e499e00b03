"""The commits of an erasure: it is noted, rows of the log are rewritten, and unused pages are overwritten."""

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
    refuse_forked,
    targets_of,
)
from headrace.engine.entities.read.observations import Observed
from headrace.engine.entities.types.journal import Action, TypeChange
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import StreamChange
from headrace.engine.log.stream import Stream
from headrace.errors import Conflict, EntityNotFound
from headrace.extract.erasure import Targets
from headrace.schema.entity.observation import decode, tombstone
from headrace.schema.entity.request import ADDRESSED
from headrace.schema.entries import entries_of
from headrace.storage.background_requests import RUNNING, ErasureRow, Erasures
from headrace.storage.database import Connection
from headrace.storage.dedupe import Dedupe, Idempotency
from headrace.storage.derived import Companions, States
from headrace.storage.entities import Aliases, Entities, Sources
from headrace.storage.journals import EntityChangeRow, EntityChanges
from headrace.storage.streams import LIVE
from headrace.storage.wal import Entries, Wal

#: Rows of the log in one commit, and pages.
SLICE_ROWS, SLICE_PAGES = 64, 512
_KEYS = msgspec.json.Decoder(list[str | None])
_ROW_BYTES = 1024 * 1024
#: No commit takes so long: whatever was stored after a moment has a time later than so much before it.
_OVERLAP_US = 60_000_000


class EntityOutdated(Conflict):
    """The entity has changed since the erasure was planned: it has to be planned again."""


@contextmanager
def secure(connection: Connection) -> Iterator[None]:
    """What is deleted or replaced meanwhile is overwritten on the disk."""
    before = connection.pragma("secure_delete")
    connection.pragma("secure_delete", "ON")
    try:
        yield
    finally:
        connection.pragma("secure_delete", "FAST" if int(before) == 2 else int(before))


class Begin(StreamChange):
    """An erasure from now on: the entity is gone for everybody, and what comes later is another."""

    def __init__(
        self, id: str, stream: Stream, user_id: str, planned: PlannedErasure, done: Callable[[Any], None]
    ) -> None:
        super().__init__(done, pinned=(stream,), size=2_000)
        self.id, self.stream, self.user_id, self.planned = id, stream, user_id, planned
        self.who = user_id

    def perform(self, batch: Batch) -> None:
        """Note it, and remove what is known of the entity besides its observations."""
        batch.flush()
        connection, stream, planned = batch.connection, self.stream, self.planned
        head, entity_id = batch.draft(stream), planned.targets.ids[0]
        entity = Entities(connection).find(entity_id)
        if head.state != LIVE or entity is None or entity.user_id != self.user_id:
            raise EntityNotFound("there is no such entity", entity_id=entity_id)
        refuse_forked(batch.streams, stream.id, entity_id)
        now = targets_of(connection, entity_id, planned.targets.entity_type)
        if msgspec.structs.replace(planned.targets, before_seq=0) != now:
            raise EntityOutdated("the entity was merged or split meanwhile", entity_id=entity_id)
        targets = msgspec.structs.replace(now, before_seq=head.next_seq)
        since = [
            observed
            for key in targets.keys
            for observed in _since(batch.wal, stream, key, planned.head.next_seq, targets)
        ]
        with secure(connection):
            self._forget(batch, targets, since)
        retire(batch, stream.id, [*planned.seqs, *(observed.seq for observed in since)])
        # The plan is kept when all is over: of sources only those are named whose names are made by the server.
        kept = [source for source in planned.plan.sources if source.startswith(ADDRESSED)]
        plan = msgspec.structs.replace(planned.plan, sources=kept)
        row = ErasureRow(
            id=self.id, entity_id=entity_id, user_id=self.user_id, stream=stream.id, before_seq=head.next_seq,
            state=RUNNING, step="log", begun_us=batch.now_us, ended_us=None, targets=targets.dump(),
            plan=msgspec.json.encode(plan).decode(), report="{}",
        )  # fmt: skip
        Erasures(connection).add(row, targets.ids)
        write_down(batch, stream, "erase", row)
        batch.note("entity_erased", self.who, entity_type=targets.entity_type, erasure=self.id)

    def _forget(self, batch: Batch, targets: Targets, since: list[Observed]) -> None:
        connection, planned, stream, user_id = batch.connection, self.planned, self.stream, self.user_id
        seqs = [*planned.seqs, *(observed.seq for observed in since)]
        Entities(connection).drop(targets.ids)
        Aliases(connection).drop(targets.ids)
        Dedupe(connection).drop(stream.id, seqs)
        observation_ids = planned.observation_ids.union(observed.observation.id.encode() for observed in since)
        later = Idempotency(connection).mentioning(
            user_id, [id.encode() for id in targets.ids], observation_ids, planned.at_us - _OVERLAP_US
        )
        Idempotency(connection).drop(user_id, {*planned.answers, *later})
        brought = {source for observed in since if (source := observed.observation.source_id) is not None}
        emptied = planned.emptied | emptied_sources(connection, user_id, brought, stream, set(seqs))
        for source_id, ranges in emptied.items():
            Sources(connection).drop(user_id, source_id, ranges)


def retire(batch: Batch, stream: int, seqs: Sequence[int]) -> None:
    """Answer from nothing any more that was derived from some observations."""
    companions = Companions(batch.connection)
    listed = companions.listed(stream)
    companions.retire(
        stream,
        [companion.name for companion in listed if any(companion.first_seq <= seq < companion.end_seq for seq in seqs)],
    )
    States(batch.connection).retire_all(stream)
    batch.published.mark(stream, batch.now_us)


def _since(wal: Wal, stream: Stream, key: str, start: int, targets: Targets) -> Iterator[Observed]:
    """The observations of a key in the log that go, from one on."""
    for row in wal.scan_key(stream.id, key, start, targets.before_seq):
        for index, body in enumerate(entries_of(row.body)):
            observation = decode(bytes(body))
            if row.seq + index >= start and targets.take(row.seq + index, observation):
                yield Observed(row.seq + index, row.append_us, observation)


def write_down(batch: Batch, stream: Stream, action: Action, row: ErasureRow) -> None:
    """Let the journal of entity types tell of an erasure, so that a recovery knows of it; sources have other names."""
    changes, head = EntityChanges(batch.connection), batch.draft(stream)
    kind = None if head.registry is None else head.registry.hook
    if head.state != LIVE or head.registry is None or not isinstance(kind, EntityType):
        return
    plan = msgspec.structs.replace(decoding.decode(row.plan, ErasurePlan), sources=[])
    stored_row = msgspec.structs.replace(row, plan=msgspec.json.encode(plan).decode())
    number, document = changes.newest() + 1, TypeChange(action, erasure=stored_row)
    facts = kind.entity_type, row.user_id, batch.now_us, row.user_id, document.dump()
    changes.save(EntityChangeRow(number, *facts))
    again = EntityHook(kind.entity_type, number, kind.rows.values(), kind.undone)
    head.registry = head.registry.with_hook(again)
    batch.published.mark(stream.id, batch.now_us)


class RewriteRows(StreamChange):
    """Puts tombstones in the place of observations in the log, some rows of one key at a time."""

    frees = True

    def __init__(self, stream: Stream, targets: Targets, key: str, start: int, done: Callable[[Any], None]) -> None:
        super().__init__(done, pinned=(stream,), size=_ROW_BYTES)
        self.stream, self.targets, self.key, self.start = stream, targets, key, start
        #: Where to go on; None where nothing is left of the key.
        self.next: int | None = None
        self.rows = 0

    def perform(self, batch: Batch) -> None:
        """Rewrite one slice."""
        batch.flush()
        wal, before = batch.wal, self.targets.before_seq
        rows = wal.scan_key(self.stream.id, self.key, self.start, before)
        some = list(islice((row for row in rows if row.seq >= self.start), SLICE_ROWS))
        rows.close()
        self.next = some[-1].seq + some[-1].count if len(some) == SLICE_ROWS else None
        self.rows = 0
        with secure(batch.connection):
            for row in some:
                self._rewrite(wal, row)

    def _rewrite(self, wal: Wal, row: Entries) -> None:
        rewritten_row = rewritten(row, self.targets)
        if rewritten_row is not None:
            wal.rewrite(self.stream.id, row.seq, rewritten_row.key, rewritten_row.keys, rewritten_row.body)
            self.rows += 1


class Rewritten(NamedTuple):
    """A row of the log with tombstones in it."""

    key: str | None
    keys: str | None
    body: bytes


def rewritten(row: Entries, targets: Targets) -> Rewritten | None:
    """A row without the observations that go; None where it has none."""
    entries: list[bytes] = [bytes(entry) for entry in entries_of(row.body)]
    gone = [at for at, body in enumerate(entries) if targets.take(row.seq + at, decode(body))]
    if not gone:
        return None
    keys = [row.key] * row.count if row.keys is None else _KEYS.decode(row.keys)
    for at in gone:
        entries[at], keys[at] = tombstone(targets.entity_type, len(entries[at])), None
    if all(key is None for key in keys):
        return Rewritten(None, None, b",".join(entries))
    if row.keys is None and len(set(keys)) == 1:
        return Rewritten(row.key, None, b",".join(entries))
    return Rewritten(None, msgspec.json.encode(keys).decode(), b",".join(entries))


class Fill(StreamChange):
    """Takes unused pages of the database, so that they can be given back overwritten."""

    frees = True
    left = 0

    def perform(self, batch: Batch) -> None:
        """Take as many as a commit may."""
        connection = batch.connection
        pages = min(SLICE_PAGES, int(connection.pragma("freelist_count")))
        room = int(connection.pragma("page_size")) // 2
        # Each row has a page of its own, and no other is needed for it.
        connection.execute(_FILL, (room, pages))
        self.left = int(connection.pragma("freelist_count"))


class Unfill(StreamChange):
    """Gives pages back, overwritten."""

    frees = True
    removed = 0

    def perform(self, batch: Batch) -> None:
        """Give some back."""
        with secure(batch.connection):
            batch.connection.execute(
                "DELETE FROM filler WHERE rowid IN (SELECT rowid FROM filler LIMIT ?)", (SLICE_PAGES,)
            )
            self.removed = int(batch.connection.changes())


_FILL = """WITH RECURSIVE each (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM each WHERE number < ?2)
           INSERT INTO filler SELECT zeroblob(?1) FROM each WHERE ?2 > 0"""
