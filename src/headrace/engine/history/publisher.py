"""Objects of streams are written and removed: segments first, then the manifest that makes them count.

Objects of deleted streams are removed, and those that nothing refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from headrace.config import StorageConfig
from headrace.engine.history.journal import Journal
from headrace.engine.history.publication import (
    Built,
    MakeRewriter,
    Publication,
    Snapshot,
    Swaps,
    make_manifest,
    take_snapshot,
)
from headrace.engine.history.seal_watch import SealPace
from headrace.engine.history.segment_builder import SegmentBuilder
from headrace.errors import Unavailable
from headrace.format import manifest as manifests
from headrace.format import object_names
from headrace.format.manifest import Manifest
from headrace.format.object_names import COMPANIONS, MANIFESTS, STATES, parse_companion_key, parse_state_key
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, States
from headrace.storage.derived import companion_object_keys as companion_keys
from headrace.storage.derived import state_object_keys as state_keys
from headrace.storage.files import make_directories
from headrace.storage.node import Node
from headrace.storage.objects import Objects
from headrace.storage.published import DeletedStream, Published, SegmentObject
from headrace.storage.segments import Segments
from headrace.storage.streams import Streams
from headrace.storage.wal import Wal
from headrace.types import Clock

#: What holds entries, or what was derived from them.
_HOLDING = (object_names.SEGMENTS, COMPANIONS, STATES)
#: How often a segment is uploaded after others of the same publication were, which would all be uploaded again.
_UPLOAD_TRIES = 3


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
        """Upload the entries of a stream that the store lacks; None where the stream is deleted."""
        pace.begin()
        snapshot = take_snapshot(self._connection, stream, self._clock.now_us())
        if snapshot is None:
            return None
        try:
            rewrite = self._rewriter.pending(stream)
            # What is to be rewritten is not copied into another segment first.
            built, replaced = self._builder.build(snapshot, pace, alone=rewrite is not None)
            swaps = Swaps([], [], 0) if rewrite is None else rewrite(snapshot)
            for uploads, built_segment in enumerate((*built, *swaps.built)):
                self._upload(snapshot, built_segment, tries=_UPLOAD_TRIES if uploads else 1)
            if snapshot.row.managed:
                for journal in self._journals:
                    self.publish_journal(journal)  # a stream in the store never knows more than its registry there
            announced = self._announce(snapshot, built, replaced, swaps)
            return Publication(snapshot, *announced, built, replaced, swaps)
        finally:
            for left in self._directory.iterdir():
                left.unlink()

    def publish_journal(self, journal: Journal[Any]) -> int:
        """Upload the records of a journal that the store lacks; returns the number of the last, 0 for none."""
        return journal.publish(self._objects, self._node, self._connection)

    def _upload(self, snapshot: Snapshot, built: Built, tries: int) -> None:
        key = object_names.segment_key(snapshot.row.name, snapshot.row.incarnation, built.segment.name)
        for left in reversed(range(tries)):
            try:
                self._objects.upload(key, built.path)
                break
            except Unavailable:
                if not left:
                    raise
                self._node.check()
        self._segments.adopt(built.path, built.segment)

    def _announce(
        self, snapshot: Snapshot, built: list[Built], replaced: SegmentObject | None, swaps: Swaps
    ) -> tuple[int, int]:
        """Create the next manifest; returns its generation and its size.

        Raises Fenced where another node may have looked for manifests before this one was there: it does not count.
        """
        swapped = {old.key: new for old, new in swaps.made}
        kept = [swapped.get(placed.key, placed.segment) for placed in snapshot.segments if placed != replaced]
        segments = [*kept, *(built_segment.segment for built_segment in built)]
        generation = snapshot.row.generation
        while True:
            generation += 1
            self._node.check()
            data = manifests.encode(make_manifest(snapshot, segments, generation, self._node.identity))
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
        for object_info in self._objects.list(object_names.SEGMENTS):
            located = object_names.parse_segment_key(object_info.key)
            if (
                located is not None
                and object_info.modified_us < before_us
                and published.is_orphan(located[0][1], located[1])
            ):
                keys.append(object_info.key)
        for object_info in self._objects.list(object_names.MANIFESTS):
            for (_, incarnation), [generation] in object_names.generations([object_info.key]).items():
                row = streams.by_incarnation(incarnation) if object_info.modified_us < before_us else None
                if row is not None and generation < row.generation:
                    keys.append(object_info.key)
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
        stored_keys = (object_info.key for kind in _HOLDING for object_info in self._objects.list(f"{kind}/{location}"))
        return [key for key in stored_keys if key not in listed_keys]


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
        data_keys = [object_info.key for prefix in below for object_info in self._objects.list(prefix)]
        manifest_keys = [
            object_info.key for object_info in self._objects.list(f"{object_names.MANIFESTS}/{'/'.join(location)}")
        ]
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
    for prefix, parse_key, is_orphan in kinds:
        for object_info in objects.list(prefix):
            named = parse_key(object_info.key)
            if named is None or object_info.modified_us >= before_us:
                continue
            (name_hash, incarnation), name = named
            has_row = streams.by_incarnation(incarnation) is not None
            if is_orphan(incarnation, name) if has_row else is_gone((name_hash, incarnation)):
                yield object_info.key
