"""The stages of a change of an entity type: its stream, what is written down, and the hook that takes new entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.engine.entities.entity_hook import EntityHook
from headrace.engine.entities.entity_type import ENTITIES, EntityRules, schema_of
from headrace.engine.entities.types.document import registry_of
from headrace.engine.entities.types.journal import replay
from headrace.engine.entities.types.proposals import OwnerChange, TypeProposal
from headrace.engine.entities.types.type_base import name_refusals
from headrace.engine.log.batch import Batch
from headrace.engine.log.stream import Stream
from headrace.engine.registry.registry_change import (
    CommitChange,
    CreateStream,
    PlannedChange,
    RegistrySnapshot,
    Stage,
    StageNote,
)
from headrace.errors import AliasTaken, Conflict
from headrace.storage.enhancements import Enhancements
from headrace.storage.entity_types import SchemaRegistry, SchemaRow
from headrace.storage.journals import EntityChangeRow, EntityChanges
from headrace.storage.streams import DELETED, LIVE
from headrace.types import JSON


class CreateTypeStream(CreateStream, frozen=True):
    """The stream of a type that had none."""

    def check(self, batch: Batch) -> None:
        """Refuse a name that another stream has."""
        row = batch.streams.by_name(self.registry.schema)
        if row is not None and row.state != DELETED:
            raise Conflict(f"the stream {row.name} is no entity type's: delete or rename it", stream=row.name)


class SaveTypeChanges(Stage, frozen=True):
    """What is written down, for the owner and for the users who follow; and done, as a recovery does it again."""

    entity_type: str
    first_number: int
    owner_changes: tuple[OwnerChange, ...]
    #: The version that becomes active, where its names have to be free.
    activated: SchemaRow | None

    @property
    def last_number(self) -> int:
        """The number of the last change."""
        return self.first_number + len(self.owner_changes) - 1

    def describe(self) -> StageNote:
        """The change of the owner, under the number of the last one."""
        owner, document = self.owner_changes[0]
        facts = {"entity_type": self.entity_type, "action": document.action, "user_id": owner or None}
        return StageNote(
            "entity_type_changed", {"change": self.last_number, "version": document.to_version or None, **facts}
        )

    def check(self, batch: Batch) -> None:
        """Refuse names that another type has taken meanwhile."""
        if self.activated is not None:
            registry = SchemaRegistry(batch.connection)
            for refusal in name_refusals(registry, schema_of(self.activated), self.owner_changes[0].owner):
                raise AliasTaken(refusal.message, field=refusal.pointer, **refusal.facts)

    def perform(self, batch: Batch, commit: CommitChange) -> None:
        """Save and apply each change."""
        changes, registry = EntityChanges(batch.connection), SchemaRegistry(batch.connection)
        for number, (owner, document) in enumerate(self.owner_changes, start=self.first_number):
            row = EntityChangeRow(number, self.entity_type, owner, batch.now_us, commit.who, document.dump())
            changes.save(row)
            replay(registry, self.entity_type, owner, document)


class ReplaceHook(Stage, frozen=True):
    """Entries are taken by the changed type from now on; those that are queued already are admitted again."""

    stream: Stream
    base_rows: Mapping[str, SchemaRow]
    saved: SaveTypeChanges

    def perform(self, batch: Batch, commit: CommitChange) -> None:
        """Give the stream a hook with the versions that are active now."""
        head, registry, saved = batch.draft(self.stream), SchemaRegistry(batch.connection), self.saved
        assert head.registry is not None
        rows = dict(self.base_rows)
        for owner, document in saved.owner_changes:
            if document.active is not None:
                rows.pop(owner, None)
                row = registry.version(saved.entity_type, owner, document.active)
                rows |= {} if row is None else {owner: row}
        undone = Enhancements(batch.connection).undone(saved.entity_type)
        head.registry = head.registry.with_hook(EntityHook(saved.entity_type, saved.last_number, rows.values(), undone))
        batch.published.mark(self.stream.id, batch.now_us)


class PlannedTypeChange(PlannedChange):
    """A proposal for an entity type, and the stream of the type, where it has one."""

    size = 2_000

    def __init__(self, proposal: TypeProposal, stream: Stream | None) -> None:
        self.proposal, self.stream = proposal, stream
        self.streams = () if stream is None else (stream,)

    @property
    def has_effect(self) -> bool:
        """Whether there is anything to write down."""
        return bool(self.proposal.owner_changes)

    def is_outdated(self, batch: Batch) -> bool:
        """Whether the type has changed since."""
        base = self.proposal.base
        return EntityChanges(batch.connection).newest_of(base.entity_type) != base.number

    def make_stages(self, snapshot: RegistrySnapshot) -> Sequence[Stage]:
        """The stream begins with the first version of its type; later ones replace its hook."""
        if not self.has_effect:
            return ()
        proposal, base, stream = self.proposal, self.proposal.base, self.stream
        activated = proposal.row if proposal.activates else None
        first_number = EntityChanges(snapshot.connection).newest() + 1
        save = SaveTypeChanges(base.entity_type, first_number, proposal.owner_changes, activated)
        if stream is None:
            rules, facts = EntityRules(base.entity_type).dump(), {"content_type": JSON}
            return CreateTypeStream(registry_of(base.entity_type), rules, snapshot.new_epoch(), facts), save
        if snapshot.draft(stream).state != LIVE:
            raise Conflict("the stream of this entity type was deleted", stream=ENTITIES + base.entity_type)
        return save, ReplaceHook(stream, base.rows, save)
