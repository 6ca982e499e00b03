"""The journal of entity types goes to the object store before any stream that follows it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import Chore
from headrace.format import entity_registry as format_
from headrace.storage.database import Connection
from headrace.storage.entity_types import EntityChangeRow, EntityChanges
from headrace.storage.node import Node
from headrace.storage.objects import Objects

log = logging.getLogger("headrace.entities")

_PAGE = 500
_OBJECT_BYTES = 4 * 1024 * 1024


class Published(Chore):
    """Notes that the store has every change up to one."""

    def __init__(self, until: int, done: Callable[[Any], None]) -> None:
        super().__init__(done, size=100)
        self.until = until

    def perform(self, batch: Batch) -> None:
        """Set the mark."""
        EntityChanges(batch.connection).note_published(self.until)


def publish(objects: Objects, node: Node, connection: Connection) -> int:
    """Create the objects of all changes that the store lacks; answers the newest of them, 0 where there is none.

    Raises Fenced where another node has taken over meanwhile: what it has written stays.
    """
    newest = 0
    for run in _runs(EntityChanges(connection)):
        key, data = format_.key(run[0].number), format_.encode([stored(row) for row in run])
        if not objects.create(key, data):
            node.check()
            # Ours from before a crash, and shorter.
            objects.put(key, data)
        newest = run[-1].number
    if newest:
        node.check()
    return newest


def _runs(changes: EntityChanges) -> Iterator[list[EntityChangeRow]]:
    """Changes that are not published, the oldest first, as many together as fit into an object."""
    after = 0
    while rows := changes.unpublished(after, _PAGE):
        run: list[EntityChangeRow] = []
        size = 0
        for row in rows:
            if run and (size + len(row.document) > _OBJECT_BYTES or row.number != run[-1].number + 1):
                break
            run.append(row)
            size += len(row.document)
        yield run
        after = run[-1].number


def stored(row: EntityChangeRow) -> format_.StoredChange:
    """A row as the store has it."""
    document = msgspec.Raw(row.document.encode())
    return format_.StoredChange(row.number, row.entity_type, row.user_id, row.at_us, row.who, document)


def row(found: format_.StoredChange) -> EntityChangeRow:
    """What the store has, as a row."""
    text = bytes(found.document).decode()
    return EntityChangeRow(found.number, found.entity_type, found.user_id, found.at_us, found.who, text)
