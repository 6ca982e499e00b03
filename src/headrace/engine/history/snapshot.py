"""A consistent snapshot of a stream for publication, never newer than its last entry."""

from __future__ import annotations

import msgspec

from headrace.engine.log.forks import read_by_forks
from headrace.format.companion.layout import Companion
from headrace.format.manifest import Manifest, Revision, Segment
from headrace.format.state import State
from headrace.storage.database import Connection
from headrace.storage.derived import Companions, Stamp, States
from headrace.storage.published import Placed, Published
from headrace.storage.registries import Registries, RegistryRow
from headrace.storage.streams import LIVE, SOFT_DELETED, StreamRow, Streams

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
    segments: list[Placed]
    dropped: list[Placed]
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

    def is_true(self, streams: Streams) -> bool:
        """Whether nothing has changed since, apart from entries that came after it."""
        row = streams.by_id(self.row.id)
        same = row is not None and all(getattr(row, name) == getattr(self.row, name) for name in _MARKED)
        return same and streams.forks(self.row.id) == self.forks

    def has_all(self, companions: Companions, states: States) -> bool:
        """Whether it knows every companion and every state."""
        return (companions.stamp(self.row.id), states.stamp(self.row.id)) == (self.stamp, self.states_stamp)


def take(connection: Connection, stream: int, now_us: int) -> Snapshot | None:
    """The stream as it is, or None where it is gone."""
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


def _split_needed(streams: Streams, row: StreamRow, segments: list[Placed]) -> tuple[list[Placed], list[Placed]]:
    """Segments that are retained or that forks read, and the others."""
    needed = read_by_forks(streams, row.id) if segments and segments[0].segment.end_seq <= row.first_seq else []

    def is_needed(candidate: Placed) -> bool:
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


def manifest(snapshot: Snapshot, segments: list[Segment], generation: int, writer: str) -> Manifest:
    """What is to be published: the stream as it was, with the segments that hold its entries."""
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
