"""Work for workers: segments in which something is erased, each to be written anew without it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import msgspec

from headrace import decoding
from headrace.engine.derive.unit_cutter import Planned
from headrace.engine.entities.erasure.planning import Plan
from headrace.extract.erasure_targets import load
from headrace.format.manifest import SEGMENTS, name_hash, range_name
from headrace.reduce.work_units import Source, Unit
from headrace.storage.database import Connection
from headrace.storage.erasures import OFFERED, ErasureRow, Erasures
from headrace.storage.published import Placed, Published
from headrace.storage.streams import LIVE, StreamRow, Streams
from headrace.storage.work import Work


class ErasePlans:
    """Plans erasures through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._streams, self._published = Streams(connection), Published(connection)
        self._erasures, self._work = Erasures(connection), Work(connection)

    def units(self, now_us: int) -> Iterator[Planned]:
        """A unit for each segment that is left to workers and that nobody has."""
        for row in self._erasures.running():
            stream = self._streams.by_id(row.stream) if row.step == OFFERED else None
            if stream is None or stream.state != LIVE:
                continue
            taken = {unit.first_seq for unit in self._work.working_on(stream.id) if unit.job == "erase"}
            failures = [one for one in self._work.failures(stream.id) if one.job == "erase"]
            resting = {one.first_seq for one in failures if one.parked or one.retry_us > now_us}
            lost = {one.first_seq for one in failures if one.lost > 1}
            for placed in self.left(row, stream):
                first = placed.segment.first_seq
                if first not in taken | resting:
                    yield Planned(self._unit(stream, placed), stream.id, first in lost)

    def left(self, row: ErasureRow, stream: StreamRow) -> list[Placed]:
        """The segments that were to be rewritten when an erasure was planned, and are still listed as they were."""
        names = {held.name for held in decoding.decode(row.plan, Plan).segments}
        listed = self._published.following(stream.id, 0, stream.next_seq)
        return [
            placed
            for placed in listed
            if placed.segment.name in names and self._erasures.rewritten(stream.id, placed.segment.name) is None
        ]

    def _unit(self, stream: StreamRow, placed: Placed) -> Unit:
        segment, unique = placed.segment, secrets.token_hex(6)
        targets = [load(one.targets) for one in self._erasures.running(stream.id)]
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
