"""Reconciliation: fields that users have added for themselves, and agree on, become everyone's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from headrace.engine.entities.enhancement import settings
from headrace.engine.entities.entity_hook import EntityHook, schema_of
from headrace.engine.entities.types import proposing
from headrace.engine.entities.types.verbs import EntityTypes, Outcome
from headrace.errors import NoSchemaForEntityType
from headrace.reduce.fragments.agreement import Adoption, Agreement, agreements
from headrace.schema.entity.plan import unknown
from headrace.schema.entity.registration import ChangeRequest
from headrace.schema.entity.update import TypeUpdate
from headrace.storage.database import Connection
from headrace.storage.enhancements import Enhancements
from headrace.storage.entities import Entities
from headrace.storage.entity_types import EVERYBODY


class Reconciled(NamedTuple):
    """What users agree on, and the change of the global schema that it made."""

    agreements: list[Agreement]
    outcome: Outcome


class Reconciling:
    """The verb, on the event loop; entities are counted in a thread."""

    def __init__(self, types: EntityTypes, enhancements: Enhancements, connect: Callable[[], Connection]) -> None:
        self._types, self._enhancements, self._connect = types, enhancements, connect

    async def reconcile(self, entity_type: str, who: str, *, dry_run: bool) -> Reconciled:
        """Add what users agree on to the global schema; users' own schemas follow it."""
        stream, kind = self._types.stream(entity_type), self._types.kind(entity_type)
        if stream is None or kind is None:
            raise unknown(entity_type)
        common = kind.rows.get(EVERYBODY)
        if common is None:
            raise NoSchemaForEntityType(f"{entity_type} has no global schema", entity_type=entity_type)
        adoptions = await asyncio.to_thread(self._adoptions, stream.id, kind)
        held = settings.load(self._enhancements, entity_type, EVERYBODY)
        found = agreements(adoptions, schema_of(common), held.common.banned)
        update = TypeUpdate(fields_to_add=tuple(one.addition for one in found if one.promotable))
        request = ChangeRequest(update=update, dry_run=dry_run)
        outcome = await self._types.change(entity_type, EVERYBODY, proposing.update(request), who, dry_run)
        return Reconciled(found, outcome)

    def _adoptions(self, stream: int, kind: EntityHook) -> list[Adoption]:
        """Users with schemas of their own, and how many entities each has."""
        connection = self._connect()
        try:
            entities = Entities(connection)
            rows = [row for user, row in sorted(kind.rows.items()) if user != EVERYBODY]
            return [Adoption(row.user_id, schema_of(row), entities.count(stream, row.user_id)) for row in rows]
        finally:
            connection.close()
