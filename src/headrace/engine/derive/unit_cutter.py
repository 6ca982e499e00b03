"""Cutting ranges of one stream into units of work."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from headrace.config import PipelineConfig
from headrace.engine.derive.readable import OwnedRange, SegmentPart, segment_parts
from headrace.format.object_names import name_hash, range_name
from headrace.format.ranges import Range
from headrace.reduce.work_units import JobName, Unit, concern
from headrace.storage.published import Published
from headrace.storage.streams import StreamRow
from headrace.storage.work import FailureRow

#: Segments in one unit, however small they are.
MOST_SEGMENTS = 256


class PlannedUnit(NamedTuple):
    """A unit, the id of its stream, and whether workers were lost over it."""

    unit: Unit
    stream: int
    suspect: bool

    @property
    def range(self) -> Range:
        """The entries it is about."""
        return Range(self.unit.first_seq, self.unit.end_seq)


class UnitCutter:
    """Knows the segments of a stream, and where work on them has failed; units write below ``directory``."""

    def __init__(
        self,
        row: StreamRow,
        owned: list[OwnedRange],
        published: Published,
        config: PipelineConfig,
        failures: list[FailureRow],
        now_us: int,
        directory: str,
    ) -> None:
        self._row = row
        self._owned = owned
        self._published = published
        self._config = config
        self._failures = failures
        self._now_us = now_us
        self._directory = directory

    def resting(self, job: JobName, table: str | None = None) -> Iterator[Range]:
        """Where a job is not tried now, or not any more."""
        for failure in self._failures:
            if failure.job == concern(job, table) and (failure.parked or failure.retry_us > self._now_us):
                yield Range(failure.first_seq, failure.end_seq)

    def pieces(self, wanted: Range) -> Iterator[SegmentPart]:
        """The segments that hold a range, in order."""
        return segment_parts(self._published, self._owned, wanted)

    def units(
        self, job: JobName, wanted: Iterable[Range], most_bytes: int | None = None, **facts: Any
    ) -> Iterator[PlannedUnit]:
        """Units of adjacent segments, up to a size of their payload; one on which work has failed is alone."""
        most = self._config.unit_bytes if most_bytes is None else most_bytes
        for one in wanted:
            failed = concern(job, facts.get("table"))
            for together in self._grouped(failed, self.pieces(one), most):
                where = Range(together[0].range.first, together[-1].range.end)
                yield self.planned(job, where, segments=tuple(piece.source for piece in together), **facts)

    def planned(self, job: JobName, where: Range, **facts: Any) -> PlannedUnit:
        """A unit about a range."""
        row, unique = self._row, secrets.token_hex(6)
        name = range_name(where.first, where.end - where.first, unique)
        unit = Unit(
            unit=f"{job}-{row.incarnation}-{where.first}-{unique}",
            job=job,
            stream=row.name,
            incarnation=row.incarnation,
            first_seq=where.first,
            count=where.end - where.first,
            out=f"{self._directory}/{name_hash(row.name)}/{row.incarnation}/{name}",
            **facts,
        )
        return PlannedUnit(unit, row.id, any(one.lost > 1 for one in self._failed(unit.concern, where)))

    def _grouped(self, failed: str, found: Iterator[SegmentPart], most_bytes: int) -> Iterator[list[SegmentPart]]:
        """Adjacent segments up to the size of a unit."""
        together: list[SegmentPart] = []
        for piece in found:
            is_alone = any(True for _ in self._failed(failed, piece.range))
            if together and (is_alone or _is_full(together, piece, most_bytes)):
                yield together
                together = []
            together.append(piece)
            if is_alone:
                yield together
                together = []
        if together:
            yield together

    def _failed(self, failed: str, where: Range) -> Iterator[FailureRow]:
        for failure in self._failures:
            if failure.job == failed and where.overlaps(Range(failure.first_seq, failure.end_seq)):
                yield failure


def _is_full(together: list[SegmentPart], piece: SegmentPart, most_bytes: int) -> bool:
    payload = sum(one.payload_bytes for one in together) + piece.payload_bytes
    return payload > most_bytes or len(together) >= MOST_SEGMENTS
