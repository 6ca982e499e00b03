"""Publishing a stream: its segments first, then the manifest that makes them count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.config import StorageConfig
from headrace.engine.history.journal import Journal
from headrace.engine.history.object_removal import orphans
from headrace.engine.history.publication import Built, MakeRewriter, Publication, Swaps
from headrace.engine.history.seal_pace import SealPace
from headrace.engine.history.segment_builder import SegmentBuilder
from headrace.engine.history.snapshot import Snapshot, manifest, take
from headrace.format import manifest as manifests
from headrace.format import object_names
from headrace.format.object_names import COMPANIONS, STATES
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, States
from headrace.storage.derived import companion_object_keys as companion_keys
from headrace.storage.derived import state_object_keys as state_keys
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
        *,
        connection: Connection,
        objects: Objects,
        segments: Segments,
        node: Node,
        clock: Clock,
        directory: Path,
        config: StorageConfig,
        journals: Sequence[Journal[Any]],
        make_rewriter: MakeRewriter,
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
        self._builder = SegmentBuilder(Wal(connection), segments, directory, config)
        self._journals = journals
        self._rewriter = make_rewriter(connection, segments, directory)

    def publish(self, stream: int, pace: SealPace) -> Publication | None:
        """Put into the store what it lacks of a stream; None where the stream is gone."""
        pace.begin()
        snapshot = take(self._connection, stream, self._clock.now_us())
        if snapshot is None:
            return None
        try:
            rewrite = self._rewriter.pending(stream)
            # What is to be rewritten is not copied into another segment first.
            built, replaced = self._builder.build(snapshot, pace, alone=rewrite is not None)
            swaps = Swaps([], [], 0) if rewrite is None else rewrite(snapshot)
            for built_segment in (*built, *swaps.built):
                self._upload(snapshot, built_segment)
            if snapshot.row.managed:
                for journal in self._journals:
                    self.publish_journal(journal)  # a stream in the store never knows more than its registry there
            announced = self._announce(snapshot, built, replaced, swaps)
            return Publication(snapshot, *announced, built, replaced, swaps)
        finally:
            for left in self._directory.iterdir():
                left.unlink()

    def publish_journal(self, journal: Journal[Any]) -> int:
        """Put records of a journal into the store that it lacks; returns the number of the last, 0 for none."""
        return journal.publish(self._objects, self._node, self._connection)

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
        segments = [*kept, *(built_segment.segment for built_segment in built)]
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
        published, streams, keys = Published(self._connection), Streams(self._connection), list[str]()
        for info in self._objects.list(object_names.SEGMENTS):
            located = object_names.parse_segment_key(info.key)
            if located is not None and info.modified_us < before_us and published.is_orphan(located[0][1], located[1]):
                keys.append(info.key)
        for info in self._objects.list(object_names.MANIFESTS):
            for (_, incarnation), [generation] in object_names.generations([info.key]).items():
                row = streams.of(incarnation) if info.modified_us < before_us else None
                if row is not None and generation < row.generation:
                    keys.append(info.key)
        return [*keys, *orphans(self._objects, self._connection, before_us)]

    def unlisted_keys(self, stream: int) -> list[str]:
        """Objects of a stream that hold entries, or what was derived from them, and are on none of its lists."""
        row = Streams(self._connection).by_id(stream)
        if row is None:
            return []
        companions, states = Companions(self._connection), States(self._connection)
        listed_keys = {placed.key for placed in Published(self._connection).following(stream, 0, row.next_seq)}
        derived = *companions.listed(stream), *companions.retired(stream)
        listed_keys |= set(companion_keys(row.name, row.incarnation, derived))
        folded = *states.listed(stream), *states.retired(stream)
        listed_keys |= set(state_keys(row.name, row.incarnation, folded))
        location = f"{object_names.name_hash(row.name)}/{row.incarnation}"
        stored_keys = (info.key for kind in _HOLDING for info in self._objects.list(f"{kind}/{location}"))
        return [key for key in stored_keys if key not in listed_keys]
