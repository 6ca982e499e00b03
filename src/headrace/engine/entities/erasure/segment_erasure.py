"""Rewrites segments without erased observations: by workers, or by the server as it publishes the stream."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace import decoding
from headrace.engine.derive.job import Job, JobCommitter, JobPlanner
from headrace.engine.derive.unit_cutter import PlannedUnit
from headrace.engine.entities.erasure.erasure_plan import ErasurePlan
from headrace.engine.history.publication import Built, Snapshot, Swaps
from headrace.engine.log.batch import Batch
from headrace.errors import CorruptData
from headrace.extract.erasure import Targets, holds, load, rewrite
from headrace.format.manifest import Segment, segment_entry
from headrace.format.object_names import SEGMENTS, name_hash, parse_segment_key, range_name, segment_key, segment_name
from headrace.format.segment.reader import SegmentReader
from headrace.reduce.work_units import Source, Unit
from headrace.storage.background_requests import OFFERED, ErasureRow, Erasures
from headrace.storage.database import Connection
from headrace.storage.files import open_private
from headrace.storage.published import Published, SegmentObject
from headrace.storage.streams import LIVE, StreamRow, Streams
from headrace.storage.work import UnitRow, Work

if TYPE_CHECKING:
    from headrace.storage.segments import Segments


class EraseJob(Job[Segment]):
    """The job that rewrites segments; nothing else is derived from a stream during an erasure."""

    names = ("erase",)
    output = "segment"

    def planner(self, connection: Connection) -> ErasePlanner:
        """The planner of segments to rewrite."""
        return ErasePlanner(connection)

    def committer(self, batch: Batch) -> _EraseCommitter:
        """The committer of rewritten segments, which the next publication lists."""
        return _EraseCommitter(batch)

    def refusal(self, unit: Unit, output: Segment) -> str | None:
        """Why a segment does not belong to a unit; None where it does."""
        wanted, made = (unit.first_seq, unit.count), (output.first_seq, output.count)
        key = segment_key(unit.stream, unit.incarnation, output.name)
        is_named_so = output.name.startswith(unit.name_begins) and parse_segment_key(key) is not None
        if unit.job == "erase" and wanted == made and is_named_so:
            return None
        return f"{output.name!r} is not what {unit.unit!r} asks for"

    def written(self, unit: Unit, output: Segment) -> dict[str, int]:
        """The one object of a segment."""
        return {segment_key(unit.stream, unit.incarnation, output.name): output.bytes}

    def is_rewriting(self, connection: Connection, stream: int) -> bool:
        """Whether an erasure of the stream has not ended."""
        return Erasures(connection).is_running(stream)

    def has_rewritten(self, connection: Connection, stream: int, since_us: int) -> bool:
        """Whether an erasure of the stream has ended since."""
        return Erasures(connection).has_ended(stream, since_us)


class _EraseCommitter(JobCommitter[Segment]):
    def accept(self, row: UnitRow, unit: Unit, output: Segment) -> str | None:
        erasures, published = Erasures(self._batch.connection), self._batch.published
        placed = published.holding(row.stream, unit.first_seq)
        if not erasures.is_running(row.stream) or placed is None or placed.key != unit.segments[0].key:
            return "its segment was replaced"
        before, total = placed.segment.before_bytes, placed.segment.total_bytes
        rewritten = msgspec.structs.replace(output, before_bytes=before, total_bytes=total)
        erasures.note_rewritten(row.stream, placed.segment.name, rewritten)
        return None

    def is_listed(self, row: UnitRow, unit: Unit, output: Segment) -> bool:
        return not self._batch.published.is_orphan(unit.incarnation, output.name)


class ErasePlanner(JobPlanner):
    """Plans the units of erasures."""

    def __init__(self, connection: Connection) -> None:
        self._streams, self._published = Streams(connection), Published(connection)
        self._erasures, self._work = Erasures(connection), Work(connection)

    def queued_units(self, now_us: int, each: int) -> Iterator[PlannedUnit]:
        """A unit for each segment that is left to workers and has none."""
        for row in self._erasures.running():
            stream = self._streams.by_id(row.stream) if row.step == OFFERED else None
            if stream is None or stream.state != LIVE:
                continue
            taken = {unit.first_seq for unit in self._work.open_units(stream.id) if unit.job == "erase"}
            failures = [failure for failure in self._work.failures(stream.id) if failure.job == "erase"]
            resting = {failure.first_seq for failure in failures if failure.parked or failure.retry_us > now_us}
            lost = {failure.first_seq for failure in failures if failure.lost > 1}
            for placed in self.remaining(row, stream):
                first = placed.segment.first_seq
                if first not in taken | resting:
                    yield PlannedUnit(self._unit(stream, placed), stream.id, first in lost)

    def remaining(self, row: ErasureRow, stream: StreamRow) -> list[SegmentObject]:
        """The segments of the plan of an erasure that are not rewritten yet."""
        names = {affected.name for affected in decoding.decode(row.plan, ErasurePlan).segments}
        listed = self._published.following(stream.id, 0, stream.next_seq)
        return [
            placed
            for placed in listed
            if placed.segment.name in names and self._erasures.rewritten(stream.id, placed.segment.name) is None
        ]

    def _unit(self, stream: StreamRow, placed: SegmentObject) -> Unit:
        segment, unique = placed.segment, secrets.token_hex(6)
        targets = [load(erasure.targets) for erasure in self._erasures.running(stream.id)]
        name = range_name(segment.first_seq, segment.count, unique)
        return Unit(
            unit=f"erase-{stream.incarnation}-{segment.first_seq}-{unique}",
            job="erase",
            stream=stream.name,
            incarnation=stream.incarnation,
            first_seq=segment.first_seq,
            count=segment.count,
            level=0,
            out=f"{SEGMENTS}/{name_hash(stream.name)}/{stream.incarnation}/{name}",
            segments=(Source(placed.key, segment.first_seq, segment.count, segment.bytes, segment.sha256),),
            defined=msgspec.to_builtins(targets),
        )


#: Segments that one publication rewrites; the others wait for the next one, so that other streams are published.
MAX_PER_PUBLICATION = 4


class SegmentEraser:
    """Rewrites the segments of a stream that hold erased observations; a ``SegmentRewriter``."""

    def __init__(self, connection: Connection, segments: Segments, directory: Path) -> None:
        self._erasures, self._segments, self._directory = Erasures(connection), segments, directory

    def pending(self, stream: int) -> Callable[[Snapshot], Swaps] | None:
        """A function that rewrites the next segments of a snapshot; None where no erasure is running."""
        targets = [load(row.targets) for row in self._erasures.running(stream)]
        return partial(self._swaps, targets) if targets else None

    def _swaps(self, targets: Sequence[Targets], snapshot: Snapshot) -> Swaps:
        """Rewrite the next segments that hold erased observations."""
        swaps = Swaps([], [], 0)
        offered = all(row.step == OFFERED for row in self._erasures.running(snapshot.row.id))
        left = 0
        for placed in snapshot.segments:
            with self._segments.open_unmasked(placed.key, placed.segment) as reader:
                if not holds(reader, targets):
                    continue
                rewritten = self._rewritten_by_worker(snapshot, placed, targets)
                if rewritten is not None:
                    swaps.made.append((placed, rewritten))
                elif len(swaps.built) < MAX_PER_PUBLICATION and not offered:
                    built = self._rewrite(reader, placed.segment, targets)
                    swaps.built.append(built)
                    swaps.made.append((placed, built.segment))
                else:
                    left += 1
        return swaps._replace(left=left)

    def _rewritten_by_worker(
        self, snapshot: Snapshot, placed: SegmentObject, targets: Sequence[Targets]
    ) -> Segment | None:
        """The segment that a worker has rewritten; None where there is none, or it holds erased observations."""
        row = snapshot.row
        rewritten = self._erasures.rewritten(row.id, placed.segment.name)
        if rewritten is None:
            return None
        try:
            with self._segments.open_unmasked(
                segment_key(row.name, row.incarnation, rewritten.name), rewritten
            ) as reader:
                is_usable = not holds(reader, targets) and _is_equivalent(reader, placed.segment)
                return rewritten if is_usable else None
        except CorruptData:
            return None

    def _rewrite(self, reader: SegmentReader, segment: Segment, targets: Sequence[Targets]) -> Built:
        path = self._directory / f"{secrets.token_hex(8)}.parquet"
        with open(path, "wb", opener=open_private) as file:
            sealed = rewrite(reader, targets, file)
        name = segment_name(segment.first_seq, segment.count, secrets.token_hex(4))
        return Built(path, segment_entry(sealed, name, segment.before_bytes, segment.total_bytes))


def _is_equivalent(reader: SegmentReader, segment: Segment) -> bool:
    """Whether a segment has the same number of entries, bytes and times as another."""
    info = reader.info
    made = info.first_seq, info.count, info.payload_bytes, info.min_us, info.max_us
    return made == (segment.first_seq, segment.count, segment.payload_bytes, segment.min_us, segment.max_us)
