"""Publications: a consistent snapshot of a stream, never newer than its last entry, and the commits that follow.

The commits list segments, remove their rows, or discard objects that no manifest lists.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from headrace.engine.log.batch import Batch
from headrace.engine.log.forks import forks_beyond, read_by_forks
from headrace.engine.log.stream import Stream
from headrace.format import object_names
from headrace.format.companion.layout import Companion
from headrace.format.manifest import Manifest, Revision, Segment
from headrace.format.state import State
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, Stamp, States, companion_object_keys
from headrace.storage.derived import state_object_keys as state_keys
from headrace.storage.published import DeletedStream, Published, SegmentObject
from headrace.storage.registries import Registries, RegistryRow
from headrace.storage.streams import DELETED, LIVE, SOFT_DELETED, StreamRow, Streams
from headrace.storage.work import Work

if TYPE_CHECKING:
    from headrace.storage.segments import Segments


TRIM_ROWS = 2_000
_STATES = {LIVE: "live", SOFT_DELETED: "soft_deleted"}
#: What a manifest tells of a stream apart from its entries, and what changes later is marked as unpublished.
_MARKED = (
    "state", "closed", "closed_by", "retention_age_us", "retention_bytes", "first_seq", "revision", "epochs", "managed",
)  # fmt: skip


class Snapshot(msgspec.Struct, frozen=True):
    """What one read transaction sees of a stream; its rows of the log are read later, and do not change."""

    row: StreamRow
    taken_us: int
    producers: dict[str, tuple[int, int]]
    revisions: list[RegistryRow]
    #: Those that still hold something anyone can read, and those that do not any more.
    segments: list[SegmentObject]
    dropped: list[SegmentObject]
    lineage: tuple[tuple[str, int], ...]
    forks: list[tuple[int, int]]
    #: Those that count, those that do not any more, and what says that these are all.
    companions: list[Companion]
    retired: list[Companion]
    stamp: Stamp
    #: The same of states.
    states: list[State]
    retired_states: list[State]
    states_stamp: Stamp

    def is_current(self, streams: Streams) -> bool:
        """Whether nothing has changed since, except for later entries."""
        row = streams.by_id(self.row.id)
        same = row is not None and all(getattr(row, name) == getattr(self.row, name) for name in _MARKED)
        return same and streams.forks(self.row.id) == self.forks

    def lists_all(self, companions: Companions, states: States) -> bool:
        """Whether it lists every companion and every state that there is now."""
        return (companions.stamp(self.row.id), states.stamp(self.row.id)) == (self.stamp, self.states_stamp)


def take_snapshot(connection: Connection, stream: int, now_us: int) -> Snapshot | None:
    """A snapshot of a stream; None where the stream is deleted."""
    streams, companions, states = Streams(connection), Companions(connection), States(connection)
    connection.execute("BEGIN")
    try:
        row = streams.by_id(stream)
        if row is None or row.state not in _STATES:
            return None
        segments, dropped = _split_needed(streams, row, Published(connection).following(stream, 0, row.next_seq))
        listed = companions.listed(stream)
        useful = [companion for companion in listed if companion.end_seq > row.first_seq]
        return Snapshot(
            row=row,
            taken_us=now_us,
            producers=streams.producers(stream),
            revisions=Registries(connection).history(stream),
            segments=segments,
            dropped=dropped,
            lineage=_lineage(streams, row),
            forks=streams.forks(stream),
            companions=useful,
            retired=[
                *companions.retired(stream),
                *(old for old in listed if old.end_seq <= row.first_seq),
            ],
            stamp=companions.stamp(stream),
            states=states.listed(stream),
            retired_states=states.retired(stream),
            states_stamp=states.stamp(stream),
        )
    finally:
        connection.execute("COMMIT")


def _split_needed(
    streams: Streams, row: StreamRow, segments: list[SegmentObject]
) -> tuple[list[SegmentObject], list[SegmentObject]]:
    """Segments that are retained or that forks read, and the others."""
    needed = read_by_forks(streams, row.id) if segments and segments[0].segment.end_seq <= row.first_seq else []

    def is_needed(candidate: SegmentObject) -> bool:
        first, end = candidate.segment.first_seq, candidate.segment.end_seq
        return end > row.first_seq or any(a < end and first < b for a, b in needed)

    needed_segments = [segment for segment in segments if is_needed(segment)]
    return needed_segments, [segment for segment in segments if not is_needed(segment)]


def _lineage(streams: Streams, row: StreamRow) -> tuple[tuple[str, int], ...]:
    """The ancestors a fork reads from, by incarnation, oldest first, each with the end of its part."""
    parts: list[tuple[str, int]] = []
    parent, limit = row.parent, row.fork_seq
    while parent is not None and limit is not None:
        ancestor = streams.by_id(parent)
        assert ancestor is not None, "a fork keeps its ancestors"
        parts.append((ancestor.incarnation, limit))
        parent = ancestor.parent
        limit = None if ancestor.fork_seq is None else min(limit, ancestor.fork_seq)
    return tuple(reversed(parts))


def make_manifest(snapshot: Snapshot, segments: list[Segment], generation: int, writer: str) -> Manifest:
    """A publication: the snapshot of a stream, with the segments that hold its entries."""
    row = snapshot.row
    return Manifest(
        stream=row.name,
        incarnation=row.incarnation,
        generation=generation,
        writer=writer,
        written_us=snapshot.taken_us,
        state=_STATES[row.state],  # type: ignore[arg-type]
        content_type=row.content_type,
        created_us=row.created_us,
        ttl_s=row.ttl_s,
        expires_us=row.expires_us,
        deadline_us=row.deadline_us,
        retention_age_us=row.retention_age_us,
        retention_bytes=row.retention_bytes,
        epochs=msgspec.json.decode(row.epochs, type=tuple[tuple[int, int], ...]),
        lineage=snapshot.lineage,
        fork_origin=row.fork_origin,
        closed=bool(row.closed),
        closed_by=None if row.closed_by is None else msgspec.json.decode(row.closed_by, type=tuple[str, int, int]),
        profile=row.profile,
        managed=row.managed,
        registry=tuple(Revision(r.revision, r.at_us, msgspec.Raw(r.document.encode())) for r in snapshot.revisions),
        first_seq=row.first_seq,
        first_bytes=row.first_bytes,
        published_seq=row.next_seq,
        total_bytes=row.bytes,
        last_us=row.last_us,
        stream_seq=row.stream_seq,
        producers=snapshot.producers,
        segments=tuple(segment for segment in segments if segment.end_seq > row.first_seq),
        kept=tuple(segment for segment in segments if segment.end_seq <= row.first_seq),
        companions=tuple(snapshot.companions),
        states=tuple(snapshot.states),
    )


class Built(NamedTuple):
    """A segment in a file of its own."""

    path: Path
    segment: Segment


class Swaps(NamedTuple):
    """Rewritten segments, each with the one that it replaces, and how many are left to rewrite."""

    made: list[tuple[SegmentObject, Segment]]
    #: Those of them that are not in the store yet.
    built: list[Built]
    left: int


class SegmentRewriter(Protocol):
    """Rewrites segments without erased entries; for the thread that publishes."""

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
    replaced: SegmentObject | None
    swaps: Swaps = Swaps([], [], 0)


def commit_publication(batch: Batch, stream: Stream, publication: Publication) -> None:
    """List the segments of a publication; objects that are not needed any more are marked for removal.

    The rows that it holds can go afterwards.
    """
    head = batch.draft(stream)
    row, published = publication.snapshot.row, batch.published
    if head.state == DELETED:
        published.mark_deleted(DeletedStream(row.incarnation, row.name))
        return
    for segment in (*(built.segment for built in publication.built), *(new for _, new in publication.swaps.made)):
        published.add(row.id, segment)
    companions, states = Companions(batch.connection), States(batch.connection)
    if publication.snapshot.is_current(batch.streams) and publication.snapshot.lists_all(companions, states):
        published.unmark(row.id, batch.now_us)
    # Generations between the two were created, and their commit was cut off.
    replaced = range(max(1, row.generation), publication.generation)
    published.discard([object_names.manifest_key(row.name, row.incarnation, old) for old in replaced], batch.now_us)
    gone = [*publication.snapshot.dropped, *([publication.replaced] if publication.replaced else [])]
    published.remove(row.id, (placed.segment for placed in publication.snapshot.dropped))
    gone += [old for old, _ in publication.swaps.made]
    published.discard([placed.key for placed in gone], batch.now_us)
    _update_derived(batch, publication, head.published_seq)
    _retire_swapped(batch, publication)
    head.published_seq = max(head.published_seq, row.next_seq)
    batch.save_head(
        stream,
        published_seq=head.published_seq,
        published_us=publication.snapshot.taken_us,
        generation=publication.generation,
        manifest_bytes=publication.manifest_bytes,
    )


def _update_derived(batch: Batch, publication: Publication, until: int) -> None:
    """Remove derived files that no manifest lists any more; streams that read new segments become due."""
    snapshot, work = publication.snapshot, Work(batch.connection)
    row = snapshot.row
    Companions(batch.connection).remove(row.id, (retired.name for retired in snapshot.retired))
    States(batch.connection).remove(row.id, (retired.name for retired in snapshot.retired_states))
    keys = [*companion_object_keys(row.name, row.incarnation, snapshot.retired)]
    keys += state_keys(row.name, row.incarnation, snapshot.retired_states)
    batch.published.discard(keys, batch.now_us)
    work.forget_failures(row.id, row.first_seq)
    if publication.built:
        for stream in (row.id, *forks_beyond(batch.streams, row.id, until)):
            work.mark(stream, batch.now_us)


def _retire_swapped(batch: Batch, publication: Publication) -> None:
    """Retire the companions of segments that were rewritten, wherever those are read."""
    swapped, companions = [old.segment for old, _ in publication.swaps.made], Companions(batch.connection)
    own = publication.snapshot.row.id
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


def trim_published(batch: Batch, stream: Stream) -> int:
    """Remove some rows of entries that are in segments; returns how many."""
    return batch.wal.trim(stream.id, 0, stream.head.published_seq, TRIM_ROWS)


def abandon_publication(batch: Batch, stream: int, publication: Publication | None) -> None:
    """Mark the objects of a deleted stream for removal, and remove its pending publication."""
    if publication is not None:
        row = publication.snapshot.row
        batch.published.mark_deleted(DeletedStream(row.incarnation, row.name))
    batch.published.unmark(stream, batch.now_us)
