"""How entity types grow: what fragments speak for, promotion, migration, reconciliation, and what goes on by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.engine.derive.lease_scheduler import LeaseScheduler
from headrace.engine.derive.state_builder import StateBuilder
from headrace.engine.derive.state_job import StateJob
from headrace.engine.entities.enhancement.candidates import Candidates
from headrace.engine.entities.enhancement.enhancing import Enhancing
from headrace.engine.entities.enhancement.migrating import Migrating, told
from headrace.engine.entities.enhancement.queue import WAIT_S, Queue
from headrace.engine.entities.enhancement.reconciling import Reconciling
from headrace.engine.entities.types.verbs import EntityTypes
from headrace.engine.entities.write.stores import Stores
from headrace.engine.log.log import Log
from headrace.schema.entity.registration import ChangeRequest
from headrace.storage.database import Connection
from headrace.storage.enhancements import Enhancements, Run
from headrace.types import Clock

if TYPE_CHECKING:
    from headrace.storage.segments import Segments


class Ground(NamedTuple):
    """What it stands on."""

    types: EntityTypes
    stores: Stores
    log: Log
    work: LeaseScheduler
    states: StateJob
    reader: Connection
    connect: Callable[[], Connection]
    segments: Callable[[], Segments]
    bench: StateBuilder
    apply: Callable[[Callable[[Any], Any]], Awaitable[Any]]
    clock: Clock


class Enhancement:
    """Its parts, which begin and end together."""

    def __init__(self, ground: Ground, fold_rows: int) -> None:
        types, stores, log, work, states, reader, connect, segments, bench, apply, clock = ground
        enhancements = Enhancements(reader)
        self.candidates = Candidates(types, log, work, reader, bench, apply, fold_rows=fold_rows)
        self.enhancing = Enhancing(types, self.candidates, enhancements, clock)
        self.migrating = Migrating(types, stores, self.candidates, reader, connect, segments, clock)
        self.reconciling = Reconciling(types, enhancements, connect)
        self.queue = Queue(types, self.enhancing, self.migrating, log, reader, apply, clock)
        types.migrate = self._update_moves
        states.listeners.append(self.candidates.serving.states_changed)

    def start(self) -> None:
        """Go on with what was not done."""
        self.queue.start()

    async def stop(self) -> None:
        """Leave what is not done for the next time."""
        await self.queue.stop()
        await self.candidates.serving.stop()

    async def _update_moves(self, entity_type: str, owner: str, who: str, request: ChangeRequest) -> Mapping[str, Any]:
        """What became of values that an update is to move, once that is done or takes longer."""
        found = await self.migrating.of_update(entity_type, owner, who, request)
        if isinstance(found, Run):
            return {"dry_run": False, **told(await self.queue.ended(found, WAIT_S))}
        return found
