"""How entity types grow: what fragments speak for, promotion, migration, reconciliation, and what goes on by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.engine.derive.lease_scheduler import LeaseScheduler
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.derive.state_job import StateJob
from headrace.engine.entities.enhancement.candidates import Candidates
from headrace.engine.entities.enhancement.enhancing import Enhancing
from headrace.engine.entities.enhancement.migrating import Migrating, told
from headrace.engine.entities.enhancement.queue import WAIT_S, Queue
from headrace.engine.entities.enhancement.reconciling import Reconciling
from headrace.engine.entities.entity_store import EntityStore
from headrace.engine.entities.types.verbs import EntityTypes
from headrace.engine.log.log import Log
from headrace.schema.entity.registration import ChangeRequest
from headrace.storage.database import Connection
from headrace.storage.enhancements import Enhancements, Run
from headrace.types import Clock

if TYPE_CHECKING:
    from headrace.storage.segments import Segments


class Enhancement:
    """Its parts, which begin and end together."""

    def __init__(
        self,
        *,
        types: EntityTypes,
        stores: EntityStore,
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
        self.candidates = Candidates(
            types=types, log=log, work=work, reader=reader, bench=state_builder, apply=apply, fold_rows=fold_rows
        )
        self.enhancing = Enhancing(types=types, candidates=self.candidates, enhancements=enhancements, clock=clock)
        self.migrating = Migrating(
            types=types,
            stores=stores,
            candidates=self.candidates,
            reader=reader,
            connect=connect,
            segments=segments,
            clock=clock,
        )
        self.reconciling = Reconciling(types=types, enhancements=enhancements, connect=connect)
        self.queue = Queue(
            types=types,
            enhancing=self.enhancing,
            migrating=self.migrating,
            log=log,
            reader=reader,
            apply=apply,
            clock=clock,
        )
        types.migrate = self._update_moves
        state_job.listeners.append(self.candidates.serving.states_changed)

    def start(self) -> None:
        """Go on with what was not done."""
        self.queue.start()

    async def stop(self) -> None:
        """Leave what is not done for the next time."""
        await self.queue.stop()
        await self.candidates.serving.stop()

    async def _update_moves(self, entity_type: str, owner: str, who: str, request: ChangeRequest) -> Mapping[str, Any]:
        """What became of values that an update is to move, once that is done or takes longer."""
        outcome = await self.migrating.of_update(entity_type, owner, who, request)
        if isinstance(outcome, Run):
            return {"dry_run": False, **told(await self.queue.ended(outcome, WAIT_S))}
        return outcome
