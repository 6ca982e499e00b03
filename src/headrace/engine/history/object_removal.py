"""Removal of objects of deleted streams, and of objects that nothing refers to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any

from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import Chore
from headrace.format import manifest as manifests
from headrace.format import object_names
from headrace.format.manifest import Manifest
from headrace.format.object_names import COMPANIONS, MANIFESTS, STATES, parse_companion_key, parse_state_key
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, States
from headrace.storage.node import Node
from headrace.storage.objects import Objects
from headrace.storage.published import DeletedStream
from headrace.storage.streams import Streams
from headrace.types import Clock


class ObjectRemover:
    """Removes objects; for a thread of its own."""

    def __init__(self, objects: Objects, node: Node, clock: Clock, close: Callable[[Collection[str]], None]) -> None:
        """``close`` closes the files of objects that were removed."""
        self._objects = objects
        self._node = node
        self._clock = clock
        self._close = close

    def remove(self, keys: list[str]) -> None:
        """Remove these, unless another node has taken over and may need them."""
        self._node.check()
        self._delete(keys)

    def _delete(self, keys: list[str]) -> None:
        """Remove objects whose files may be open."""
        self._objects.delete(keys)
        self._close(frozenset(keys))

    def remove_stream(self, deleted_stream: DeletedStream) -> list[str]:
        """Remove everything of a deleted stream; a last manifest says that it is deleted until all else is gone."""
        self._node.check()
        location = object_names.name_hash(deleted_stream.name), deleted_stream.incarnation
        below = (f"{kind}/{'/'.join(location)}" for kind in (object_names.SEGMENTS, COMPANIONS, STATES))
        data_keys = [info.key for prefix in below for info in self._objects.list(prefix)]
        manifest_keys = [info.key for info in self._objects.list(f"{object_names.MANIFESTS}/{'/'.join(location)}")]
        if manifest_keys:
            last = self._tombstone(deleted_stream, max(object_names.generations(manifest_keys).get(location, [0])))
            self._delete(data_keys)
            self._objects.delete(manifest_keys)
            self._objects.delete([last])
        else:
            self._delete(data_keys)
        return [*data_keys, *manifest_keys]

    def _tombstone(self, deleted_stream: DeletedStream, generation: int) -> str:
        while True:
            generation += 1
            tombstone = Manifest(
                stream=deleted_stream.name,
                incarnation=deleted_stream.incarnation,
                generation=generation,
                writer=self._node.identity,
                written_us=self._clock.now_us(),
                state="deleted",
                content_type="",
                created_us=0,
                epochs=((0, 0),),
                published_seq=0,
            )
            key = object_names.manifest_key(deleted_stream.name, deleted_stream.incarnation, generation)
            if self._objects.create(key, manifests.encode(tombstone)):
                return key


class Forget(Chore):
    """Forgets objects, and perhaps a deleted stream, that were removed."""

    frees = True

    def __init__(self, keys: list[str], deleted_stream: DeletedStream | None, done: Callable[[Any], None]) -> None:
        super().__init__(done, size=100)
        self.keys, self.deleted_stream = keys, deleted_stream

    def perform(self, batch: Batch) -> None:
        """Take them off the lists."""
        batch.published.forget(self.keys)
        if self.deleted_stream is not None:
            batch.published.unmark_deleted(self.deleted_stream)


def orphans(objects: Objects, connection: Connection, before_us: int) -> Iterator[str]:
    """Keys that were written before a moment: of living streams that do not list them, and of streams that are gone.

    A stream that we do not know is gone where it has no manifest.
    """
    streams = Streams(connection)

    @cache
    def is_gone(location: tuple[str, str]) -> bool:
        return next(iter(objects.list(f"{MANIFESTS}/{'/'.join(location)}")), None) is None

    kinds = (
        (COMPANIONS, parse_companion_key, Companions(connection).is_orphan),
        (STATES, parse_state_key, States(connection).is_orphan),
    )
    for prefix, place_of, is_orphan in kinds:
        for info in objects.list(prefix):
            named = place_of(info.key)
            if named is None or info.modified_us >= before_us:
                continue
            (name_hash, incarnation), name = named
            is_known = streams.of(incarnation) is not None
            if is_orphan(incarnation, name) if is_known else is_gone((name_hash, incarnation)):
                yield info.key
