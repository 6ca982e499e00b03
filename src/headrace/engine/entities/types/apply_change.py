"""Carrying a change of an entity type out: one step of a commit, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.engine.entities.entity_hook import EntityHook
from headrace.engine.entities.entity_type import ENTITIES, EntityRules, schema_of
from headrace.engine.entities.types.document import registry_of
from headrace.engine.entities.types.journal import replay
from headrace.engine.entities.types.proposals import TypeProposal
from headrace.engine.entities.types.type_base import name_refusals
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import StreamChange, create_managed
from headrace.engine.log.stream import Stream
from headrace.errors import AliasTaken, Conflict
from headrace.storage.enhancements import Enhancements
from headrace.storage.entity_types import EntityChangeRow, EntityChanges, SchemaRegistry
from headrace.storage.streams import DELETED, LIVE
from headrace.types import JSON


class ApplyTypeChange(StreamChange):
    """What a proposal does, unless its type has moved on since."""

    def __init__(self, proposal: TypeProposal, stream: Stream | None, who: str, done: Callable[[Any], None]) -> None:
        """``stream`` is that of the type, where it has one."""
        super().__init__(done, pinned=() if stream is None else (stream,), size=2_000)
        self.proposal, self.stream, self.who = proposal, stream, who
        self.outdated = False
        self.number = 0

    def perform(self, batch: Batch) -> None:
        """Write everything; the stream begins with the first version of its type."""
        base = self.proposal.base
        changes, registry = EntityChanges(batch.connection), SchemaRegistry(batch.connection)
        if changes.newest_of(base.entity_type) != base.number:
            self.outdated = True
            return
        self._check(batch, registry)
        epoch = batch.new_epoch() if self.stream is None else None
        self._record(batch, changes, registry)
        if epoch is not None:
            create_managed(batch, registry_of(base.entity_type), EntityRules(base.entity_type).dump(), epoch)
            batch.note("stream_created", self.who, stream=ENTITIES + base.entity_type, content_type=JSON)
        elif self.stream is not None:
            self._replace_kind(batch, self.stream)
        document = self.proposal.steps[0].document
        facts = {"entity_type": base.entity_type, "action": document.action, "user_id": base.owner or None}
        batch.note("entity_type_changed", self.who, change=self.number, version=document.to_version or None, **facts)

    def _check(self, batch: Batch, registry: SchemaRegistry) -> None:
        """Refuse before anything is written."""
        base = self.proposal.base
        if self.stream is None:
            row = batch.streams.by_name(ENTITIES + base.entity_type)
            if row is not None and row.state != DELETED:
                raise Conflict(f"the stream {row.name} is no entity type's: delete or rename it", stream=row.name)
        elif batch.draft(self.stream).state != LIVE:
            raise Conflict("the stream of this entity type was deleted", stream=self.stream.name)
        if self.proposal.activates and self.proposal.row is not None:
            for refusal in name_refusals(registry, schema_of(self.proposal.row), base.owner):
                raise AliasTaken(refusal.message, field=refusal.pointer, **refusal.facts)

    def _record(self, batch: Batch, changes: EntityChanges, registry: SchemaRegistry) -> None:
        entity_type = self.proposal.base.entity_type
        self.number = changes.newest()
        for owner, document in self.proposal.steps:
            self.number += 1
            changes.save(EntityChangeRow(self.number, entity_type, owner, batch.now_us, self.who, document.dump()))
            replay(registry, entity_type, owner, document)

    def _replace_kind(self, batch: Batch, stream: Stream) -> None:
        """Whatever was admitted before is admitted again."""
        head, base, registry = batch.draft(stream), self.proposal.base, SchemaRegistry(batch.connection)
        assert head.registry is not None
        rows = dict(base.rows)
        for owner, document in self.proposal.steps:
            if document.active is not None:
                rows.pop(owner, None)
                row = registry.version(base.entity_type, owner, document.active)
                rows |= {} if row is None else {owner: row}
        undone = Enhancements(batch.connection).undone(base.entity_type)
        head.registry = head.registry.with_hook(EntityHook(base.entity_type, self.number, rows.values(), undone))
        batch.published.mark(stream.id, batch.now_us)
