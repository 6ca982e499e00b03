"""A recovery takes the journal of entity types over from the object store, and does all of it again.

The journal in the store is at least as new as any stream there, so no observation comes back without its version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.engine.entities.kind import ENTITIES, Rules
from headrace.engine.entities.types import publishing
from headrace.engine.entities.types.document import registry_of
from headrace.engine.entities.types.journal import load, replay
from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import create_managed
from headrace.errors import CorruptData
from headrace.format import entity_registry as format_
from headrace.storage.enhancements import Enhancements
from headrace.storage.entity_types import EntityChangeRow, EntityChanges, SchemaRegistry
from headrace.storage.objects import Objects
from headrace.storage.streams import DELETED, StreamRow

#: Set while what is known of entities has to be read from their observations again.
ENTITIES_DUE = "entities_due"
_PAGE = 500

Complain = Callable[[str], None]


def recover(objects: Objects, batch: Batch, new_epoch: Callable[[], int], complain: Complain) -> None:
    """Bring entity types up to what the store has, after their streams."""
    changes, registry = EntityChanges(batch.connection), SchemaRegistry(batch.connection)
    _take_changes(objects, changes, complain)
    for first, last in format_.gaps(row.number for row in _every(changes)):
        complain(f"changes {first} to {last} of entity types are missing in the object store")
    registry.clear()
    Enhancements(batch.connection).clear()
    for change in _every(changes):
        try:
            replay(registry, change.entity_type, change.user_id, load(change))
        except CorruptData as reason:
            complain(reason.message)
    types = registry.types()
    for entity_type in types:
        _follow(batch, entity_type, new_epoch, complain)
    for row in managed(batch):
        if row.name.removeprefix(ENTITIES) not in types:
            complain(f"{row.name!r} is the stream of an entity type that the changes in the store do not have")
    if types:
        batch.streams.set_meta(ENTITIES_DUE, 1)


def _take_changes(objects: Objects, changes: EntityChanges, complain: Complain) -> None:
    """Every change in the store counts; what is here alone stays only where it follows them."""
    found = sorted(n for info in objects.list(format_.ENTITIES) if (n := format_.number_of(info.key)) is not None)
    newest = max((_take_run(objects, first, changes, complain) for first in found), default=0)
    while objects.has(format_.key(newest + 1)):  # a listing does not show it yet
        last = _take_run(objects, newest + 1, changes, complain)
        if not last:
            break
        newest = last
    changes.note_published(newest)


def _take_run(objects: Objects, first: int, changes: EntityChanges, complain: Complain) -> int:
    """The number of the last change of an object, which counts; 0 where the object is damaged."""
    key = format_.key(first)
    try:
        theirs = [publishing.row(one) for one in format_.decode(objects.get(key), key)]
    except CorruptData as reason:
        complain(reason.message)
        return 0
    for row in theirs:
        known = changes.one(row.number)
        if known is not None and known != row:
            changes.drop_from(row.number)
        if known != row:
            changes.save(row, published=True)
    return max((row.number for row in theirs), default=0)


def _every(changes: EntityChanges) -> Iterator[EntityChangeRow]:
    after = 0
    while rows := changes.every(after, _PAGE):
        yield from rows
        after = rows[-1].number


def _follow(batch: Batch, entity_type: str, new_epoch: Callable[[], int], complain: Complain) -> None:
    """Let a type have its stream, where that was never published."""
    row = batch.streams.by_name(ENTITIES + entity_type)
    if row is None or row.state == DELETED:
        create_managed(batch, registry_of(entity_type), Rules(entity_type).dump(), new_epoch())
    elif not row.managed:
        complain(f"{row.name!r} is the stream of an entity type, and somebody else's")


def managed(batch: Batch) -> Iterator[StreamRow]:
    """The streams of entity types."""
    after = 0
    while rows := batch.streams.retained(after, _PAGE):
        yield from (row for row in rows if row.managed and row.name.startswith(ENTITIES))
        after = rows[-1].id
