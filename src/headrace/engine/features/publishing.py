"""The feature registry goes to the object store, version by version, before any stream that follows it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import Chore
from headrace.format import feature_registry as format_
from headrace.storage.database import Connection
from headrace.storage.feature_registry import FeatureRegistry, FeatureRegistryRow
from headrace.storage.node import Node
from headrace.storage.objects import Objects

log = logging.getLogger("headrace.features")

_PAGE = 100


class Published(Chore):
    """Notes that the store has every version up to one."""

    def __init__(self, until: int, done: Callable[[Any], None]) -> None:
        super().__init__(done, size=100)
        self.until = until

    def perform(self, batch: Batch) -> None:
        """Set the mark."""
        FeatureRegistry(batch.connection).note_published(self.until)


def publish(objects: Objects, node: Node, connection: Connection) -> int:
    """Create the objects of versions that the store lacks; answers the newest of them, 0 where there is none.

    Raises Fenced where another node has taken over meanwhile: what it has written stays.
    """
    newest = 0
    for row in FeatureRegistry(connection).unpublished(_PAGE):
        key, data = format_.key(row.version), format_.encode(stored(row))
        if not objects.create(key, data):
            node.check()
            log.error("%s is there already and says something else; it is written again", key)
            objects.put(key, data)
        newest = row.version
    if newest:
        node.check()
    return newest


def stored(row: FeatureRegistryRow) -> format_.StoredVersion:
    """A row as the store has it."""
    document = msgspec.Raw(row.document.encode())
    return format_.StoredVersion(row.version, row.at_us, row.who, row.app, document)


def row(found: format_.StoredVersion) -> FeatureRegistryRow:
    """What the store has, as a row."""
    return FeatureRegistryRow(found.version, found.at_us, found.who, found.app, bytes(found.document).decode())
