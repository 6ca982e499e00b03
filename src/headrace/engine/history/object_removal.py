"""Clearing away objects that nothing refers to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from headrace.engine.log.batch import Batch
from headrace.engine.log.lifecycle import Chore
from headrace.format import manifest as manifests
from headrace.format import object_names
from headrace.format.manifest import Manifest
from headrace.format.object_names import COMPANIONS, STATES
from headrace.storage.node import Node
from headrace.storage.objects import Objects
from headrace.storage.published import Grave
from headrace.types import Clock


class Cleaner:
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

    def bury(self, grave: Grave) -> list[str]:
        """Remove everything of a deleted stream; a last manifest says that it is deleted until all else is gone."""
        self._node.check()
        place = object_names.name_hash(grave.name), grave.incarnation
        below = (f"{kind}/{'/'.join(place)}" for kind in (object_names.SEGMENTS, COMPANIONS, STATES))
        data = [found.key for prefix in below for found in self._objects.list(prefix)]
        manifested = [found.key for found in self._objects.list(f"{object_names.MANIFESTS}/{'/'.join(place)}")]
        if manifested:
            last = self._tombstone(grave, max(object_names.generations(manifested).get(place, [0])))
            self._delete(data)
            self._objects.delete(manifested)
            self._objects.delete([last])
        else:
            self._delete(data)
        return [*data, *manifested]

    def _tombstone(self, grave: Grave, generation: int) -> str:
        while True:
            generation += 1
            tombstone = Manifest(
                stream=grave.name,
                incarnation=grave.incarnation,
                generation=generation,
                writer=self._node.identity,
                written_us=self._clock.now_us(),
                state="deleted",
                content_type="",
                created_us=0,
                epochs=((0, 0),),
                published_seq=0,
            )
            key = object_names.manifest_key(grave.name, grave.incarnation, generation)
            if self._objects.create(key, manifests.encode(tombstone)):
                return key


class Forget(Chore):
    """Objects, and a grave, that are gone."""

    frees = True

    def __init__(self, keys: list[str], grave: Grave | None, done: Callable[[Any], None]) -> None:
        super().__init__(done, size=100)
        self.keys, self.grave = keys, grave

    def perform(self, batch: Batch) -> None:
        """Take them off the lists."""
        batch.published.forget(self.keys)
        if self.grave is not None:
            batch.published.fill(self.grave)
