"""The job that erases: segments in which something is erased are each written anew without it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import msgspec

from headrace import decoding
from headrace.engine.derive.job import Job, JobCommitter, JobPlanner
from headrace.engine.derive.unit_cutter import PlannedUnit
from headrace.engine.entities.erasure.erasure_plan import ErasurePlan
from headrace.engine.log.batch import Batch
from headrace.extract.erasure_mask import load
from headrace.format.manifest import Segment
from headrace.format.object_names import SEGMENTS, name_hash, parse_segment_key, range_name, segment_key
from headrace.reduce.work_units import Source, Unit
from headrace.storage.database import Connection
from headrace.storage.erasures import OFFERED, ErasureRow, Erasures
from headrace.storage.published import Placed, Published
from headrace.storage.streams import LIVE, StreamRow, Streams
from headrace.storage.work import UnitRow, Work


class EraseJob(Job[Segment]):
    """Rewrites segments; nothing else is derived from a stream while something of it is erased."""

    names = ("erase",)
    output = "segment"

    def planner(self, connection: Connection) -> ErasePlanner:
        """What finds segments to rewrite."""
        return ErasePlanner(connection)

    def committer(self, batch: Batch) -> _EraseCommitter:
        """What keeps rewritten segments for the next publication."""
        return _EraseCommitter(batch)

    def refusal(self, unit: Unit, output: Segment) -> str | None:
        """Why a segment is not the one of a unit."""
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
        """A unit for each segment that is left to workers and that nobody has, however many an erasure has."""
        for row in self._erasures.running():
            stream = self._streams.by_id(row.stream) if row.step == OFFERED else None
            if stream is None or stream.state != LIVE:
                continue
            taken = {unit.first_seq for unit in self._work.working_on(stream.id) if unit.job == "erase"}
            failures = [failure for failure in self._work.failures(stream.id) if failure.job == "erase"]
            resting = {failure.first_seq for failure in failures if failure.parked or failure.retry_us > now_us}
            lost = {failure.first_seq for failure in failures if failure.lost > 1}
            for placed in self.left(row, stream):
                first = placed.segment.first_seq
                if first not in taken | resting:
                    yield PlannedUnit(self._unit(stream, placed), stream.id, first in lost)

    def left(self, row: ErasureRow, stream: StreamRow) -> list[Placed]:
        """The segments that were to be rewritten when an erasure was planned, and are still listed as they were."""
        names = {held.name for held in decoding.decode(row.plan, ErasurePlan).segments}
        listed = self._published.following(stream.id, 0, stream.next_seq)
        return [
            placed
            for placed in listed
            if placed.segment.name in names and self._erasures.rewritten(stream.id, placed.segment.name) is None
        ]

    def _unit(self, stream: StreamRow, placed: Placed) -> Unit:
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
