"""The verbs of entity types: register, update, activate, deactivate, look up. All run on the event loop, except the
thinking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from headrace.engine.entities.entity_type import ENTITIES, Effective, EntityType, compiled, schema_of
from headrace.engine.entities.types.journal import TypeChange
from headrace.engine.entities.types.proposals import (
    Propose,
    TypeProposal,
    propose_activation,
    propose_deactivation,
    propose_inferred,
    propose_record,
    propose_registration,
    propose_update,
)
from headrace.engine.entities.types.type_base import load, name_refusals, parsed
from headrace.engine.entities.types.type_stages import PlannedTypeChange, SaveTypeChanges
from headrace.engine.entities.write.store_request import infer_first_schema
from headrace.engine.log.log import Log
from headrace.engine.log.stream import Stream
from headrace.engine.registry.registry_change import RegistryChanges
from headrace.errors import BadRequest, UnknownEntityType
from headrace.schema.entity import names
from headrace.schema.entity.nodes import Schema
from headrace.schema.entity.plan import NAME_TAKEN, refusal, unknown
from headrace.schema.entity.registration import ChangeRequest, TypeRegistration
from headrace.schema.plan import Plan, Refusal
from headrace.storage.database import Connection
from headrace.storage.entities import Entities
from headrace.storage.entity_types import EVERYBODY, SchemaRegistry, SchemaRow
from headrace.storage.journals import EntityChangeRow, EntityChanges
from headrace.storage.streams import LIVE
from headrace.types import Clock

Migrate = Callable[[str, str, str, ChangeRequest], Awaitable[Mapping[str, Any]]]


class Outcome(NamedTuple):
    """A change as it was proposed, and its number in the journal if it was made."""

    proposal: TypeProposal
    number: int | None = None
    #: The migration of values that were stored before they had a field, where one was requested.
    migration: Mapping[str, Any] | None = None

    @property
    def plan(self) -> Plan[Schema]:
        """The plan of the change."""
        return self.proposal.plan


class EntityTypes:
    """The entity types of this node."""

    def __init__(
        self,
        *,
        registry_changes: RegistryChanges,
        log: Log,
        reader: Connection,
        connect: Callable[[], Connection],
        clock: Clock,
    ) -> None:
        self._changes = registry_changes
        self._log = log
        self._registry = SchemaRegistry(reader)
        self._journal = EntityChanges(reader)
        #: Everything that was ever observed.
        self.entities = Entities(reader)
        self._connect = connect
        self._clock = clock
        #: Moves fragments of the fields that an update names to where they belong, or says how many that would be.
        self.migrate: Migrate | None = None
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # -- look up

    @property
    def number(self) -> int:
        """The number of the last change of any type."""
        return self._journal.newest()

    def stream(self, entity_type: str) -> Stream | None:
        """The stream of a type; None where the type has no version yet."""
        stream = self._log.catalog.find(ENTITIES + entity_type)
        return stream if stream is not None and stream.head.state == LIVE and stream.managed else None

    def find(self, entity_type: str) -> EntityType | None:
        """A type as it is now; None where it has no version yet."""
        stream = self.stream(entity_type)
        kind = None if stream is None or stream.head.registry is None else stream.head.registry.hook
        return kind if isinstance(kind, EntityType) else None

    def effective(self, entity_type: str, user_id: str) -> Effective | None:
        """The schema of a type that holds for a user."""
        kind = self.find(entity_type)
        return None if kind is None else kind.effective(user_id)

    def resolve(self, name: str, user_id: str) -> str:
        """The type of a name: one that holds for the user, else one with this alias, else the name itself."""
        entity_type = names.normalise_type_name(name)
        if self.effective(entity_type, user_id) is not None:
            return entity_type
        return self._registry.aliased(entity_type, user_id) or entity_type

    def sees(self, entity_type: str, user_id: str) -> bool:
        """Whether a type has any version that a user sees."""
        return any(self._registry.taken(entity_type, owner) for owner in {user_id, EVERYBODY})

    def active(self, entity_type: str, user_id: str) -> SchemaRow | None:
        """The active version that holds for a user: their own, else the global one."""
        kind = self.find(entity_type)
        return None if kind is None else kind.rows.get(user_id) or kind.rows.get(EVERYBODY)

    def version(self, entity_type: str, owner: str, schema_version: str) -> SchemaRow:
        """One version of an owner."""
        row = self._registry.version(entity_type, owner, schema_version)
        if row is None:
            raise UnknownEntityType(
                f"there is no version {schema_version} of {entity_type} here",
                entity_type=entity_type,
                schema_version=schema_version,
            )
        return row

    def versions(self, entity_type: str, user_id: str) -> list[SchemaRow]:
        """The versions that a user sees, the newest first; of equal ones the user's own."""
        rows = [row for owner in {user_id, EVERYBODY} for row in self._registry.versions(entity_type, owner)]
        if not rows:
            raise unknown(entity_type)
        return sorted(rows, key=lambda row: (parsed(row.schema_version), row.user_id), reverse=True)

    def page(self, user_id: str, after: str, limit: int, keyword: str = "") -> list[SchemaRow]:
        """The active versions that a user sees of the types after a name: the global one, and their own."""
        rows = self._registry.seen_by(user_id, after, 2 * limit, keyword)
        kept = sorted({row.entity_type for row in rows})[:limit]
        return [row for row in rows if row.entity_type in kept]

    def history(self, entity_type: str, user_id: str, after: int, limit: int) -> list[EntityChangeRow]:
        """Changes of a type that concern a user, in order."""
        return self._journal.page_of(entity_type, user_id, after, limit)

    # -- change

    async def register(self, registration: TypeRegistration, owner: str, who: str) -> Outcome:
        """Store a version, and activate it where that is requested."""
        propose = partial(propose_registration, registration=registration)
        return await self.change(registration.schema.entity_type, owner, propose, who, registration.dry_run)

    async def update(self, entity_type: str, request: ChangeRequest, owner: str, who: str) -> Outcome:
        """Make the next version of what holds for the owner; one that changes nothing makes none."""
        self._require(entity_type, owner)
        if request.migrate_existing and self.migrate is None:
            raise BadRequest("stored fragments cannot be migrated here", field="migrate_existing")
        propose = partial(propose_update, request=request)
        outcome = await self.change(entity_type, owner, propose, who, request.dry_run)
        if not request.migrate_existing or self.migrate is None or outcome.plan.refusals:
            return outcome
        return outcome._replace(migration=await self.migrate(entity_type, owner, who, request))

    async def activate(self, entity_type: str, version: str, owner: str, who: str, *, dry_run: bool = False) -> Outcome:
        """Make a version of the owner's the active one; of an earlier one, that is a rollback."""
        row = self.version(entity_type, owner, version)
        return await self.change(entity_type, owner, partial(propose_activation, row=row), who, dry_run)

    async def deactivate(
        self, entity_type: str, version: str, owner: str, who: str, *, dry_run: bool = False
    ) -> Outcome:
        """Deactivate a version of the owner."""
        row = self.version(entity_type, owner, version)
        return await self.change(entity_type, owner, partial(propose_deactivation, row=row), who, dry_run)

    def infer(self, entity_type: str, entities: Sequence[Mapping[str, Any]]) -> Effective:
        """The schema that would be inferred from entities of an unregistered type; nothing is stored."""
        return compiled(infer_first_schema(entity_type, entities))

    async def check_inferred(self, entity_type: str, entities: Sequence[Mapping[str, Any]], user_id: str) -> None:
        """Raise the reason why no schema can be inferred from entities; nothing where the user has a schema."""
        await self._infer(entity_type, entities, user_id, dry_run=True)

    async def ensure(self, entity_type: str, entities: Sequence[Mapping[str, Any]], user_id: str) -> Stream:
        """The stream of a type, with a schema for the user, which is inferred from entities where there is none."""
        await self._infer(entity_type, entities, user_id, dry_run=False)
        stream = self.stream(entity_type)
        assert stream is not None
        return stream

    async def _infer(
        self, entity_type: str, entities: Sequence[Mapping[str, Any]], user_id: str, *, dry_run: bool
    ) -> None:
        if self.effective(entity_type, user_id) is None:
            propose = partial(propose_inferred, schema=infer_first_schema(entity_type, entities))
            outcome = await self.change(entity_type, user_id, propose, user_id, dry_run)
            if outcome.plan.refusals:
                raise refusal(outcome.plan.refusals)

    async def record(self, entity_type: str, owner: str, document: TypeChange, who: str) -> None:
        """Add a document to the journal, with no change of the schema."""
        await self.change(entity_type, owner, partial(propose_record, document=document), who, False)

    async def change(self, entity_type: str, owner: str, propose: Propose, who: str, dry_run: bool) -> Outcome:
        """Make a change, or only plan it."""
        plan = partial(self.prepare, entity_type, owner, propose)
        lock = self._locks.setdefault(entity_type, asyncio.Lock())
        async with lock:  # so that those who come together do not outdate each other
            change = await self._changes.run(plan, who, dry_run=dry_run, subject="type", entity_type=entity_type)
        numbers = (stage.first_number for stage in change.stages if isinstance(stage, SaveTypeChanges))
        return Outcome(change.planned.proposal, next(numbers, None) if change.is_applied else None)

    async def prepare(self, entity_type: str, owner: str, propose: Propose) -> PlannedTypeChange:
        """A change, planned from what the type is now."""
        base = load(self._registry, self.find(entity_type) or EntityType(entity_type, 0, ()), owner)
        base = base._replace(counts=await self._counts(entity_type, owner), now_us=self._clock.now_us())
        proposal = await self._changes.compute(partial(propose, base))
        if proposal.owner_changes and proposal.row is not None:
            refusals = name_refusals(self._registry, schema_of(proposal.row), owner) if proposal.activates else []
            proposal = proposal.refused([*refusals, *self._taken(entity_type)])
        return PlannedTypeChange(proposal, self.stream(entity_type))

    def _taken(self, entity_type: str) -> list[Refusal]:
        """That somebody has a stream where that of the type is to be."""
        name = ENTITIES + entity_type
        if self._log.catalog.find(name) is None or self.stream(entity_type) is not None:
            return []
        return [Refusal(NAME_TAKEN, "/entity_type", f"the stream {name} exists already: delete or rename it")]

    async def _counts(self, entity_type: str, owner: str) -> Mapping[str, int]:
        """How many entities a change concerns, and where it concerns everybody how many observations."""
        stream = self.stream(entity_type)
        if stream is None or not stream.head.next_seq:
            return {"entities": 0, "observations": 0}
        entities = {"entities": await asyncio.to_thread(self._count, stream.id, owner or None)}
        return entities if owner else {**entities, "observations": stream.head.next_seq - stream.head.first_seq}

    def _count(self, stream: int, user_id: str | None) -> int:
        connection = self._connect()
        try:
            return Entities(connection).count(stream, user_id)
        finally:
            connection.close()

    def _require(self, entity_type: str, owner: str) -> None:
        """Refuse a type that the owner cannot see."""
        if not self.sees(entity_type, owner):
            raise unknown(entity_type)
