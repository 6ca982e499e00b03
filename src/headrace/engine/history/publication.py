"""Commits that follow a publication: they list segments, remove their rows, or discard what was written in vain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace.engine.history.snapshot import Snapshot
from headrace.engine.log.batch import Batch
from headrace.engine.log.forks import forks_beyond
from headrace.engine.log.lifecycle import Chore
from headrace.engine.log.stream import Stream
from headrace.format import object_names
from headrace.format.manifest import Segment
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, States, companion_object_keys
from headrace.storage.derived import state_object_keys as state_keys
from headrace.storage.published import DeletedStream, Placed
from headrace.storage.streams import DELETED
from headrace.storage.work import Work

if TYPE_CHECKING:
    from headrace.storage.segments import Segments

TRIM_ROWS = 2_000


class Built(NamedTuple):
    """A segment in a file of its own."""

    path: Path
    segment: Segment


class Swaps(NamedTuple):
    """Segments that were written anew, with those whose place they take, and how many more there are to rewrite."""

    made: list[tuple[Placed, Segment]]
    #: Those of them that are not in the store yet.
    built: list[Built]
    left: int


class SegmentRewriter(Protocol):
    """Writes segments anew of which something has to go; for the thread that publishes."""

    def pending(self, stream: int) -> Callable[[Snapshot], Swaps] | None:
        """Rewrites the next segments of a stream, given a snapshot of it; None where nothing has to go."""


#: Makes a rewriter, given the database, the segments, and a directory for new files.
MakeRewriter = Callable[[Connection, "Segments", Path], SegmentRewriter]


class Publication(NamedTuple):
    """A manifest that is in the store, and the segments that came with it."""

    snapshot: Snapshot
    generation: int
    manifest_bytes: int
    built: list[Built]
    replaced: Placed | None
    swaps: Swaps = Swaps([], [], 0)


class Attempt(Chore):
    """Notes that a stream may have objects from now on, whether or not anybody hears of them."""

    def __init__(self, stream: int, done: Callable[[Any], None]) -> None:
        super().__init__(done, size=100)
        self.stream = stream

    def perform(self, batch: Batch) -> None:
        """Set the mark."""
        batch.streams.update(self.stream, attempted=1)


class Publish(Chore):
    """Makes a publication known; the rows it holds can go afterwards."""

    frees = True

    def __init__(self, stream: Stream, publication: Publication, done: Callable[[Any], None]) -> None:
        super().__init__(done, pinned=(stream,), size=1000)
        self.stream, self.publication = stream, publication

    def perform(self, batch: Batch) -> None:
        """List the segments; what was written in vain, or is no longer needed, is left over."""
        head, publication = batch.draft(self.stream), self.publication
        row, published = publication.snapshot.row, batch.published
        if head.state == DELETED:
            published.mark_deleted(DeletedStream(row.incarnation, row.name))
            return
        for segment in (*(built.segment for built in publication.built), *(new for _, new in publication.swaps.made)):
            published.add(row.id, segment)
        companions, states = Companions(batch.connection), States(batch.connection)
        if publication.snapshot.is_true(batch.streams) and publication.snapshot.has_all(companions, states):
            published.unmark(row.id, batch.now_us)
        # Generations between the two were created, and their commit was cut off.
        replaced = range(max(1, row.generation), publication.generation)
        published.discard([object_names.manifest_key(row.name, row.incarnation, old) for old in replaced], batch.now_us)
        gone = [*publication.snapshot.dropped, *([publication.replaced] if publication.replaced else [])]
        published.remove(row.id, (placed.segment for placed in publication.snapshot.dropped))
        gone += [old for old, _ in publication.swaps.made]
        published.discard([placed.key for placed in gone], batch.now_us)
        self._let_derived_follow(batch, head.published_seq)
        self._retire_swapped(batch)
        head.published_seq = max(head.published_seq, row.next_seq)
        batch.save_head(
            self.stream,
            published_seq=head.published_seq,
            published_us=publication.snapshot.taken_us,
            generation=publication.generation,
            manifest_bytes=publication.manifest_bytes,
        )

    def _let_derived_follow(self, batch: Batch, until: int) -> None:
        """No manifest lists what counts no more; entries from ``until`` on can be derived from now."""
        snapshot, work = self.publication.snapshot, Work(batch.connection)
        row = snapshot.row
        Companions(batch.connection).remove(row.id, (retired.name for retired in snapshot.retired))
        States(batch.connection).remove(row.id, (retired.name for retired in snapshot.retired_states))
        keys = [*companion_object_keys(row.name, row.incarnation, snapshot.retired)]
        keys += state_keys(row.name, row.incarnation, snapshot.retired_states)
        batch.published.discard(keys, batch.now_us)
        work.forgive(row.id, row.first_seq)
        if self.publication.built:
            for stream in (row.id, *forks_beyond(batch.streams, row.id, until)):
                work.mark(stream, batch.now_us)

    def _retire_swapped(self, batch: Batch) -> None:
        """What was derived from segments that were rewritten counts no more, wherever they are read."""
        swapped, companions = [old.segment for old, _ in self.publication.swaps.made], Companions(batch.connection)
        own = self.publication.snapshot.row.id
        readers = [own, *forks_beyond(batch.streams, own, swapped[0].first_seq)] if swapped else []
        for stream in readers:
            listed = companions.listed(stream)
            names = [
                companion.name
                for companion in listed
                if any(companion.first_seq < old.end_seq and old.first_seq < companion.end_seq for old in swapped)
            ]
            companions.retire(stream, names)
            batch.published.mark(stream, batch.now_us)


class TrimPublished(Chore):
    """Removes rows of entries that are in segments."""

    frees = True

    def __init__(self, stream: Stream, done: Callable[[Any], None]) -> None:
        super().__init__(done, pinned=(stream,), size=100)
        self.stream = stream
        self.removed = 0

    def perform(self, batch: Batch) -> None:
        """Remove one slice."""
        batch.flush()
        self.removed = batch.wal.trim(self.stream.id, 0, self.stream.head.published_seq, TRIM_ROWS)


class Abandon(Chore):
    """Marks what was written for a deleted stream for removal."""

    frees = True

    def __init__(self, stream: int, publication: Publication | None, done: Callable[[Any], None]) -> None:
        super().__init__(done, size=100)
        self.stream, self.publication = stream, publication

    def perform(self, batch: Batch) -> None:
        """Let the objects go, and expect nothing more of the stream."""
        if self.publication is not None:
            row = self.publication.snapshot.row
            batch.published.mark_deleted(DeletedStream(row.incarnation, row.name))
        batch.published.unmark(self.stream, batch.now_us)


class Discard(Chore):
    """Marks objects that nothing refers to for removal."""

    frees = True

    def __init__(self, keys: list[str], done: Callable[[Any], None]) -> None:
        super().__init__(done, size=100)
        self.keys = keys

    def perform(self, batch: Batch) -> None:
        """Leave them over."""
        batch.published.discard(self.keys, batch.now_us)


class SpareEpochs(Chore):
    """Stores epochs that were reserved for later use."""

    def __init__(self, start: int, done: Callable[[Any], None]) -> None:
        super().__init__(done, size=100)
        self.start = start

    def perform(self, batch: Batch) -> None:
        """Keep them, unless there are some."""
        if batch.streams.meta("spare_epoch", -1) < 0:
            batch.streams.set_meta("spare_epoch", self.start)
