"""Enhancement of entity types: candidates, promotion, migration, reconciliation, and the queue of automatic runs.

Reconciliation adds fields to the global schema that users have added to their own and agree on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.engine.derive.lease_scheduler import LeaseScheduler
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.derive.state_job import StateJob
from headrace.engine.entities.enhancement import settings
from headrace.engine.entities.enhancement.candidates import FragmentCandidates
from headrace.engine.entities.enhancement.migrations import Migrations, run_document
from headrace.engine.entities.enhancement.promotions import Promotions
from headrace.engine.entities.enhancement.queue import WAIT_S, EnhancementQueue
from headrace.engine.entities.entity_store import EntityStore
from headrace.engine.entities.entity_type import EntityType, schema_of
from headrace.engine.entities.types.entity_types import EntityTypes, Outcome
from headrace.engine.entities.types.proposals import propose_update
from headrace.engine.log.log import Log
from headrace.errors import NoSchemaForEntityType
from headrace.reduce.fragments.agreement import Adoption, Agreement, agreements
from headrace.schema.entity.plan import unknown
from headrace.schema.entity.registration import ChangeRequest
from headrace.schema.entity.update import TypeUpdate
from headrace.storage.database import Connection
from headrace.storage.enhancements import Enhancements, Run
from headrace.storage.entities import Entities
from headrace.storage.entity_types import EVERYBODY
from headrace.types import Clock

if TYPE_CHECKING:
    from headrace.storage.segments import Segments


class ReconciliationOutcome(NamedTuple):
    """What users agree on, and the change of the global schema."""

    agreements: list[Agreement]
    outcome: Outcome


class Reconciliation:
    """Reconciles schemas on the event loop; entities are counted in a thread."""

    def __init__(self, *, types: EntityTypes, enhancements: Enhancements, connect: Callable[[], Connection]) -> None:
        self._types, self._enhancements, self._connect = types, enhancements, connect

    async def reconcile(self, entity_type: str, who: str, *, dry_run: bool) -> ReconciliationOutcome:
        """Add what users agree on to the global schema; users' own schemas follow it."""
        stream, kind = self._types.stream(entity_type), self._types.find(entity_type)
        if stream is None or kind is None:
            raise unknown(entity_type)
        common = kind.rows.get(EVERYBODY)
        if common is None:
            raise NoSchemaForEntityType(f"{entity_type} has no global schema", entity_type=entity_type)
        adoptions = await asyncio.to_thread(self._adoptions, stream.id, kind)
        effective = settings.load(self._enhancements, entity_type, EVERYBODY)
        agreed = agreements(adoptions, schema_of(common), effective.common.banned)
        update = TypeUpdate(fields_to_add=tuple(agreement.addition for agreement in agreed if agreement.promotable))
        request = ChangeRequest(update=update, dry_run=dry_run)
        propose = partial(propose_update, request=request)
        outcome = await self._types.change(entity_type, EVERYBODY, propose, who, dry_run)
        return ReconciliationOutcome(agreed, outcome)

    def _adoptions(self, stream: int, kind: EntityType) -> list[Adoption]:
        """Users with schemas of their own, and how many entities each has."""
        connection = self._connect()
        try:
            entities = Entities(connection)
            rows = [row for user, row in sorted(kind.rows.items()) if user != EVERYBODY]
            return [Adoption(row.user_id, schema_of(row), entities.count(stream, row.user_id)) for row in rows]
        finally:
            connection.close()


class Enhancement:
    """The parts of enhancement, which start and stop together."""

    def __init__(
        self,
        *,
        types: EntityTypes,
        entity_store: EntityStore,
        log: Log,
        work: LeaseScheduler,
        state_job: StateJob,
        reader: Connection,
        connect: Callable[[], Connection],
        segments: Callable[[], Segments],
        state_builder: StateBuilder,
        apply: Callable[[Callable[[Any], Any]], Awaitable[Any]],
        clock: Clock,
        fold_rows: int,
    ) -> None:
        enhancements = Enhancements(reader)
        self.candidates = FragmentCandidates(
            types=types,
            log=log,
            work=work,
            reader=reader,
            state_builder=state_builder,
            apply=apply,
            fold_rows=fold_rows,
        )
        self.promotions = Promotions(types=types, candidates=self.candidates, enhancements=enhancements, clock=clock)
        self.migrations = Migrations(
            types=types,
            entity_store=entity_store,
            candidates=self.candidates,
            reader=reader,
            connect=connect,
            segments=segments,
            clock=clock,
        )
        self.reconciliation = Reconciliation(types=types, enhancements=enhancements, connect=connect)
        self.queue = EnhancementQueue(
            types=types,
            promotions=self.promotions,
            migrations=self.migrations,
            log=log,
            reader=reader,
            apply=apply,
            clock=clock,
        )
        types.migrate = self._migrate_update
        state_job.listeners.append(self.candidates.state_reader.states_changed)

    def start(self) -> None:
        """Start, with runs that were not finished."""
        self.queue.start()

    async def stop(self) -> None:
        """Stop, and leave unfinished runs to the next start."""
        await self.queue.stop()
        await self.candidates.state_reader.stop()

    async def _migrate_update(
        self, entity_type: str, owner: str, who: str, request: ChangeRequest
    ) -> Mapping[str, Any]:
        """Migrate the values of an update; returns its outcome, or its progress after a timeout."""
        outcome = await self.migrations.of_update(entity_type, owner, who, request)
        if isinstance(outcome, Run):
            return {"dry_run": False, **run_document(await self.queue.wait(outcome, WAIT_S))}
        return outcome
