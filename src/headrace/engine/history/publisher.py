"""Publishing a stream: its segments first, then the manifest that makes them count."""

from __future__ import annotations

from pathlib import Path

from headrace.config import StorageConfig
from headrace.engine.entities.erasure.segments import SegmentEraser
from headrace.engine.entities.types import publishing as entities
from headrace.engine.features import publishing as features
from headrace.engine.history.orphans import orphans
from headrace.engine.history.publication import Built, Publication, Swaps
from headrace.engine.history.seal_pace import Pace
from headrace.engine.history.segment_builder import Builder
from headrace.engine.history.snapshot import Snapshot, manifest, take
from headrace.format import manifest as manifests
from headrace.format import object_names
from headrace.format.object_names import COMPANIONS, STATES
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, States
from headrace.storage.derived import companion_object_keys as companion_keys
from headrace.storage.derived import state_object_keys as state_keys
from headrace.storage.entity_types import EntityChanges
from headrace.storage.files import make_directories
from headrace.storage.node import Node
from headrace.storage.objects import Objects
from headrace.storage.published import Placed, Published
from headrace.storage.segments import Segments
from headrace.storage.streams import Streams
from headrace.storage.wal import Wal
from headrace.types import Clock

#: What holds entries, or what was derived from them.
_HOLDING = (object_names.SEGMENTS, COMPANIONS, STATES)


class Publisher:
    """Writes the objects of one stream at a time; for a thread of its own."""

    def __init__(
        self,
        connection: Connection,
        objects: Objects,
        segments: Segments,
        node: Node,
        clock: Clock,
        directory: Path,
        config: StorageConfig,
    ) -> None:
        self._connection = connection
        self._objects = objects
        self._segments = segments
        self._node = node
        self._clock = clock
        self._directory = directory
        make_directories(directory)
        for left in directory.iterdir():
            left.unlink()
        self._builder = Builder(Wal(connection), segments, directory, config)
        self._eraser = SegmentEraser(connection, segments, directory)

    def publish(self, stream: int, pace: Pace) -> Publication | None:
        """Put into the store what it lacks of a stream; None where the stream is gone."""
        pace.begin()
        snapshot = take(self._connection, stream, self._clock.now_us())
        if snapshot is None:
            return None
        try:
            targets = self._eraser.targets(stream)
            # What is erased is not copied into another segment first.
            built, replaced = self._builder.build(snapshot, pace, alone=bool(targets))
            swaps = self._eraser.swaps(snapshot, targets)
            for one in (*built, *swaps.built):
                self._upload(snapshot, one)
            if snapshot.row.managed:
                self.publish_features()
                self.publish_entities()  # a stream in the store never knows more than its registry there
            announced = self._announce(snapshot, built, replaced, swaps)
            return Publication(snapshot, *announced, built, replaced, swaps)
        finally:
            for left in self._directory.iterdir():
                left.unlink()

    def publish_features(self) -> int:
        """Put versions of the feature registry into the store that it lacks; answers the newest of them."""
        self._node.check()
        return features.publish(self._objects, self._node, self._connection)

    def publish_entities(self) -> int:
        """Put changes of entity types into the store that it lacks; answers the newest of them."""
        if not EntityChanges(self._connection).waits():
            return 0
        self._node.check()
        return entities.publish(self._objects, self._node, self._connection)

    def _upload(self, snapshot: Snapshot, built: Built) -> None:
        key = object_names.segment_key(snapshot.row.name, snapshot.row.incarnation, built.segment.name)
        self._objects.upload(key, built.path)
        self._segments.adopt(built.path, built.segment)

    def _announce(
        self, snapshot: Snapshot, built: list[Built], replaced: Placed | None, swaps: Swaps
    ) -> tuple[int, int]:
        """Create the next manifest; answers its generation and its size.

        Raises Fenced where another node may have looked for manifests before this one was there: it does not count.
        """
        swapped = {old.key: new for old, new in swaps.made}
        kept = [swapped.get(placed.key, placed.segment) for placed in snapshot.segments if placed != replaced]
        segments = [*kept, *(one.segment for one in built)]
        generation = snapshot.row.generation
        while True:
            generation += 1
            self._node.check()
            data = manifests.encode(manifest(snapshot, segments, generation, self._node.identity))
            key = object_names.manifest_key(snapshot.row.name, snapshot.row.incarnation, generation)
            if self._objects.create(key, data):
                self._node.check()
                return generation, len(data)
            # A generation of ours that was never committed, unless someone else has taken over.

    def orphans(self, before_us: int) -> list[str]:
        """What a crash before a moment left behind of living streams: segments and companions that we do not list, and
        manifests that newer ones have replaced.

        Segments of streams we do not know are not ours to judge.
        """
        published, streams, found = Published(self._connection), Streams(self._connection), list[str]()
        for info in self._objects.list(object_names.SEGMENTS):
            place = object_names.parse_segment_key(info.key)
            if place is not None and info.modified_us < before_us and published.is_orphan(place[0][1], place[1]):
                found.append(info.key)
        for info in self._objects.list(object_names.MANIFESTS):
            for (_, incarnation), [generation] in object_names.generations([info.key]).items():
                row = streams.of(incarnation) if info.modified_us < before_us else None
                if row is not None and generation < row.generation:
                    found.append(info.key)
        return [*found, *orphans(self._objects, self._connection, before_us)]

    def unlisted(self, stream: int) -> list[str]:
        """Objects of a stream that hold entries, or what was derived from them, and are on none of its lists."""
        row = Streams(self._connection).by_id(stream)
        if row is None:
            return []
        companions, states = Companions(self._connection), States(self._connection)
        known = {placed.key for placed in Published(self._connection).following(stream, 0, row.next_seq)}
        derived = *companions.listed(stream), *companions.retired(stream)
        known |= set(companion_keys(row.name, row.incarnation, derived))
        folded = *states.listed(stream), *states.retired(stream)
        known |= set(state_keys(row.name, row.incarnation, folded))
        place = f"{object_names.name_hash(row.name)}/{row.incarnation}"
        found = (info.key for kind in _HOLDING for info in self._objects.list(f"{kind}/{place}"))
        return [key for key in found if key not in known]
