"""The changes of entity types as a journal: published in runs; a recovery takes them over and does all of them again.

The journal in the store is at least as new as any stream there, so no observation comes back without its version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING

from headrace.engine.entities import entity_hook
from headrace.engine.entities.entity_type import ENTITIES, EntityRules, dedupe_key
from headrace.engine.entities.types.document import registry_of
from headrace.engine.entities.types.journal import load, replay
from headrace.engine.entities.write import relations
from headrace.engine.history.journal import Journal, ReadRuns, ReportProblem
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import create_managed
from headrace.engine.log.stream import Stream
from headrace.errors import CorruptData
from headrace.extract.erasure import Targets
from headrace.extract.erasure import load as load_targets
from headrace.format import journal
from headrace.schema.entity.observation import decode
from headrace.schema.entries import entries_of
from headrace.storage.background_requests import Erasures
from headrace.storage.database import Connection
from headrace.storage.dedupe import Dedupe
from headrace.storage.enhancements import Enhancements
from headrace.storage.entity_types import SchemaRegistry
from headrace.storage.journals import EntityChangeRow, EntityChanges
from headrace.storage.streams import DELETED

if TYPE_CHECKING:
    from headrace.reduce.states.definition import EventRun

#: Observations that are about entities themselves; they are not stored once, but decided anew each time.
_RELATIONS = ("merge", "split", "undo")


class EntityJournal(Journal[EntityChangeRow]):
    """Everything that was done to entity types; every change counts."""

    name = "entity_changes"
    format = journal.ENTITIES
    stream_prefix = ENTITIES
    reread_key = "entities_due"
    rows = EntityChanges
    needs_all = True

    def restore(self, batch: Batch, new_epoch: Callable[[], int], report: ReportProblem) -> None:
        """Replay every change, and create the streams of types that are missing."""
        changes, registry = self.rows(batch.connection), SchemaRegistry(batch.connection)
        for first, last in self.gaps(row.number for row in changes.all()):
            report(f"changes {first} to {last} of entity types are missing in the object store")
        registry.clear()
        Enhancements(batch.connection).clear()
        for change in changes.all():
            try:
                replay(registry, change.entity_type, change.user_id, load(change))
            except CorruptData as reason:
                report(reason.message)
        types = registry.types()
        for entity_type in types:
            _follow(batch, entity_type, new_epoch, report)
        for row in self.streams(batch):
            if row.name.removeprefix(ENTITIES) not in types:
                report(f"{row.name!r} is the stream of an entity type that the changes in the store do not have")
        if types:
            batch.streams.set_meta(self.reread_key, 1)

    def reread_stream(self, batch: Batch, stream: Stream, runs: ReadRuns) -> None:
        """Read entities, their sources and aliases, and what is stored once, from all observations."""
        batch.streams.forget_entities(stream.id)
        erasures = Erasures(batch.connection)
        running = [load_targets(erasure.targets) for erasure in erasures.running(stream.id)]
        erased = {
            entity_id: erasure.before_seq
            for erasure in erasures.of_stream(stream.id)
            for entity_id in load_targets(erasure.targets).ids
        }
        for run in runs(stream.head.first_seq):
            _note(batch.connection, stream.id, run, running, erased)


def _follow(batch: Batch, entity_type: str, new_epoch: Callable[[], int], report: ReportProblem) -> None:
    """Create the stream of a type, where it was never published."""
    row = batch.streams.by_name(ENTITIES + entity_type)
    if row is None or row.state == DELETED:
        create_managed(batch, registry_of(entity_type), EntityRules(entity_type).dump(), new_epoch())
    elif not row.managed:
        report(f"{row.name!r} is the stream of an entity type, and somebody else's")


def _note(
    connection: Connection, stream: int, run: EventRun, running: list[Targets], erased: Mapping[str, int]
) -> None:
    """What a run of observations says, without those that are being erased, and without entities that were."""
    observations = map(decode, map(bytes, entries_of(run.body)))
    numbered = zip(count(run.first_seq), run.times_us, observations, strict=False)
    counting = [event for event in numbered if event[2].kind != "erased"]
    events = [event for event in counting if not any(target.take(event[0], event[2]) for target in running)]
    statements = [event for event in events if event[2].kind not in _RELATIONS]
    Dedupe(connection).save(
        (stream, dedupe_key(observation.id, observation.source_id), seq, at_us)
        for seq, at_us, observation in statements
    )
    entity_hook.note_observations(connection, stream, events, erased)
    for seq, at_us, observation in events:
        if observation.kind in _RELATIONS:
            relations.apply_relation(connection, stream, seq, at_us, observation)
