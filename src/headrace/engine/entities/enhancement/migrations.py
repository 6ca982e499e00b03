"""Migrations: runs that move values into fields that were added after the values were stored.

A run continues where it was when the server stopped, and stores a value that it finds twice once. When a run is undone,
its observations are not folded any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.engine.entities.enhancement.candidates import FragmentCandidates
from headrace.engine.entities.enhancement.fragment_moves import FragmentMove, FragmentSlice, FragmentValue, read_values
from headrace.engine.entities.entity_store import EntityStore
from headrace.engine.entities.types.entity_types import EntityTypes
from headrace.engine.entities.types.journal import TypeChange
from headrace.engine.entities.write.store_observations import TypesOutdated
from headrace.engine.history.stored_events import EventsMoved
from headrace.engine.log.stream import Stream
from headrace.errors import BadRequest, Conflict, NotFound
from headrace.schema.entity.plan import unknown
from headrace.schema.entity.registration import ChangeRequest
from headrace.storage.database import Connection
from headrace.storage.enhancements import EnhancementRuns, Enhancements, Run
from headrace.storage.entity_types import EVERYBODY
from headrace.types import Clock

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

_MAX_ATTEMPTS = 5
_MAX_LISTED = 100
_USER: Callable[[FragmentValue], Any] = attrgetter("origin.user_id")

Save = Callable[[Run], Awaitable[None]]


class Migrations:
    """Begins, performs and undoes migrations on the event loop; observations are read in threads."""

    def __init__(
        self,
        *,
        types: EntityTypes,
        entity_store: EntityStore,
        candidates: FragmentCandidates,
        reader: Connection,
        connect: Callable[[], Connection],
        segments: Callable[[], Segments],
        clock: Clock,
    ) -> None:
        self._types, self._entity_store, self._candidates = types, entity_store, candidates
        self._runs, self._enhancements = EnhancementRuns(reader), Enhancements(reader)
        self._connect, self._segments, self._clock = connect, segments, clock
        #: Called when a run begins.
        self.on_begin: Callable[[], None] = lambda: None

    def find(self, entity_type: str, run_id: str, owners: Iterable[str]) -> Run:
        """A migration of a type that belongs to one of the owners."""
        run = self._runs.find(run_id)
        if run is None or run.job != "migrate" or run.entity_type != entity_type or run.user_id not in owners:
            raise NotFound("there is no such migration", entity_type=entity_type, run_id=run_id)
        return run

    def runs(self, entity_type: str, owners: Sequence[str]) -> list[Run]:
        """Migrations of a type, the newest first."""
        return self._runs.of_type(entity_type, "migrate", owners, _MAX_LISTED)

    def undone(self, entity_type: str) -> Mapping[str, Sequence[str]]:
        """The fields of migrations that were undone, by run."""
        return self._enhancements.undone(entity_type)

    async def count_values(self, entity_type: str, owner: str, fields: Sequence[str]) -> dict[str, int]:
        """How many values of each key were stored without a field."""
        stats = (await self._candidates.count(entity_type, owner)).fragments.stats
        return {name: stats[name].frequency + stats[name].nulls if name in stats else 0 for name in fields}

    async def begin(self, entity_type: str, owner: str, fields: Sequence[str], who: str) -> Run:
        """Queue a run that moves the values of some fields, of a user or of all users.

        An equal run that is queued already is returned instead.
        """
        existing_fields = self._candidates.schema(entity_type, owner).schema_definition.fields
        absent = [name for name in fields if name not in existing_fields]
        if absent or not fields:
            raise BadRequest(f"no such fields: {', '.join(absent) or 'none given'}", field="fields", unknown=absent)
        run = migration(entity_type, owner, fields, who, self._clock.now_us())
        wanted = entity_type, owner, run.fields
        for other in self._runs.open():
            if other.until is None and (other.entity_type, other.user_id, other.fields) == wanted:
                return other
        await self._types.record(entity_type, owner, TypeChange("migrate", run=run), who)
        self.on_begin()
        return run

    async def of_update(
        self, entity_type: str, owner: str, who: str, request: ChangeRequest
    ) -> Run | Mapping[str, Any]:
        """Begin the migration that an update asks for; of a dry run, count the values that it would move."""
        update = request.update
        names = {addition.name for addition in update.fields_to_add} | {
            converter.field for converter in update.converters_to_add
        }
        user = request.migrate_user_id or owner
        if owner not in (user, EVERYBODY):
            raise BadRequest("only an operator moves the values of others", field="migrate_user_id")
        if request.dry_run or not names:
            return {"dry_run": True, "fragments": await self.count_values(entity_type, user, sorted(names))}
        return await self.begin(entity_type, user, sorted(names), who)

    async def undo(self, entity_type: str, run_id: str, owners: Sequence[str], who: str) -> Run:
        """Undo a migration; its observations do not count any more."""
        run = self.find(entity_type, run_id, owners)
        if run.ended_us is None:
            raise Conflict("the migration goes on: it can be undone once it has ended", run_id=run_id)
        if run_id not in self.undone(entity_type):
            gone = msgspec.structs.replace(run, outcome={**run.outcome, "undone_us": self._clock.now_us()})
            await self._types.record(entity_type, run.user_id, TypeChange("undo", run=gone), who)
        return self.find(entity_type, run_id, owners)

    async def perform(self, run: Run, save: Save) -> Run:
        """Perform the rest of a run; returns how it ended."""
        stream = self._stream(run.entity_type)
        until = stream.head.next_seq if run.until is None else run.until
        run = msgspec.structs.replace(run, until=until)
        while run.through < until:
            run = await self._step(stream, run)
            await save(run)
        ended = msgspec.structs.replace(run, state="completed", ended_us=self._clock.now_us(), reason=None)
        await self._types.record(run.entity_type, run.user_id, TypeChange("migrate", run=ended), run.who)
        return ended

    async def _step(self, stream: Stream, run: Run) -> Run:
        """Move the values of one step; they are read again where data was erased meanwhile."""
        for _ in range(_MAX_ATTEMPTS):
            with contextlib.suppress(TypesOutdated):
                return await self._store(run, await self._read_slice(stream, run))
        raise Conflict(f"observations of {stream.name} keep being erased", stream=stream.name)

    async def _read_slice(self, stream: Stream, run: Run) -> FragmentSlice:
        for _ in range(_MAX_ATTEMPTS):
            try:
                return await asyncio.to_thread(self._read, stream, run)
            except EventsMoved:
                continue  # retention has moved on, or events from the log into segments
        raise Conflict(f"the events of {stream.name} keep moving", stream=stream.name)

    def _read(self, stream: Stream, run: Run) -> FragmentSlice:
        connection = self._connect()
        try:
            user = run.user_id or None
            until = stream.head.next_seq if run.until is None else run.until
            return read_values(stream, connection, self._segments, run.through, until, run.fields, user)
        finally:
            connection.close()

    async def _store(self, run: Run, fragments: FragmentSlice) -> Run:
        """Store the values of one step."""
        rounds = self._rounds(run)
        for user, group in groupby(sorted(fragments.values, key=_USER), key=_USER):
            if self._types.effective(run.entity_type, user) is None:
                continue  # the user has no schema that would show the values
            move = FragmentMove(run.entity_type, list(group), run.id, rounds, fragments.erasures)
            store = await self._entity_store.store(
                move, partial(self._entity_store.require_type, run.entity_type, user)
            )
            stored = sum(append.count for append in store.written)
            run = msgspec.structs.replace(
                run,
                migrated=run.migrated + stored,
                repeated=run.repeated + len(store.prepared.outcomes) - stored,
                unfit=run.unfit + move.unfit,
            )
        return msgspec.structs.replace(run, through=fragments.through)

    def _rounds(self, run: Run) -> dict[str, int]:
        """How often migrations of each field were undone."""
        undone = self.undone(run.entity_type).values()
        return {name: sum(name in fields for fields in undone) for name in run.fields}

    def _stream(self, entity_type: str) -> Stream:
        stream = self._types.stream(entity_type)
        if stream is None:
            raise unknown(entity_type)
        return stream


def migration(entity_type: str, owner: str, fields: Sequence[str], who: str, now_us: int) -> Run:
    """A new run that moves values of some fields."""
    return Run(
        id=f"mig_{token_hex(12)}",
        entity_type=entity_type,
        user_id=owner,
        state="pending",
        begun_us=now_us,
        job="migrate",
        who=who,
        fields=tuple(sorted(set(fields))),
    )


def run_document(run: Run) -> dict[str, Any]:
    """A migration as it is answered."""
    return {
        "run_id": run.id,
        "entity_type": run.entity_type,
        "scope": "user" if run.user_id else "global",
        "user_id": run.user_id or None,
        "state": run.state,
        "fields": list(run.fields),
        "through": run.through,
        "until": run.until,
        "migrated": run.migrated,
        "repeated": run.repeated,
        "unfit": run.unfit,
        "attempts": run.attempts,
        "reason": run.reason,
        "undone": "undone_us" in run.outcome,
    }
