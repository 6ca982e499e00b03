"""The published entries of a stream, its ancestors' included, and how ranges of them are cut into units of work."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.config import PipelineConfig
from headrace.format.object_names import name_hash, range_name
from headrace.format.ranges import Range
from headrace.reduce.work_units import JobName, Source, Unit, concern
from headrace.storage.published import Published, SegmentObject
from headrace.storage.streams import StreamRow, Streams
from headrace.storage.work import FailureRow

#: Segments in one unit, however small they are.
MAX_SEGMENTS = 256
_PAGE = 100


class PlannedUnit(NamedTuple):
    """A unit, the id of its stream, and whether workers were lost over it."""

    unit: Unit
    stream: int
    suspect: bool

    @property
    def range(self) -> Range:
        """The range of entries that it processes."""
        return Range(self.unit.first_seq, self.unit.end_seq)


class OwnedRange(NamedTuple):
    """Published entries that one stream owns."""

    owner: int
    first: int
    end: int


class SegmentPart(NamedTuple):
    """The part of a range in one segment, and the payload of that segment."""

    source: Source
    range: Range
    payload_bytes: int


def owned_ranges(streams: Streams, row: StreamRow, start: int) -> list[OwnedRange]:
    """Who owns the published entries of a stream from one on, without gaps, in order."""
    ranges: list[OwnedRange] = []
    for owner, end, published in _owners(streams, row):
        until = min(end, published)
        if start < until:
            ranges.append(OwnedRange(owner, start, until))
            start = until
        if published < end:
            break  # what comes after it is not published yet
    return ranges


def _owners(streams: Streams, row: StreamRow) -> list[tuple[int, int, int]]:
    """A stream and its ancestors, the oldest first: id, where its part ends, until where it is published."""
    owners = [(row.id, row.next_seq, _published(row))]
    limit = row.next_seq
    while row.parent is not None and row.fork_seq is not None:
        limit = min(limit, row.fork_seq)
        parent = streams.by_id(row.parent)
        if parent is None:
            break
        owners.append((parent.id, limit, _published(parent)))
        row = parent
    return owners[::-1]


def _published(row: StreamRow) -> int:
    return max(row.published_seq, row.fork_seq or 0)


def segment_parts(published: Published, owned: list[OwnedRange], wanted: Range) -> Iterator[SegmentPart]:
    """The segments that hold a range, in order; ends where one is missing."""
    at = wanted.first
    for part in owned:
        end = min(part.end, wanted.end)
        while part.first <= at < end:
            for placed in published.following(part.owner, at, end, _PAGE):
                segment = placed.segment
                if segment.first_seq > at:
                    return
                until = min(segment.end_seq, end)
                yield SegmentPart(_source(placed), Range(at, until), segment.payload_bytes)
                at = until
            if at < end and published.holding(part.owner, at) is None:
                return


def _source(placed: SegmentObject) -> Source:
    segment = placed.segment
    return Source(placed.key, segment.first_seq, segment.count, segment.bytes, segment.sha256)


class UnitCutter:
    """Cuts the segments of a stream into units, with regard to earlier failures; units write below ``directory``."""

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
        """The ranges that are paused after a failure, or parked."""
        for failure in self._failures:
            if failure.job == concern(job, table) and (failure.parked or failure.retry_us > self._now_us):
                yield Range(failure.first_seq, failure.end_seq)

    def pieces(self, wanted: Range) -> Iterator[SegmentPart]:
        """The segments that hold a range, in order."""
        return segment_parts(self._published, self._owned, wanted)

    def units(
        self, job: JobName, ranges: Iterable[Range], max_bytes: int | None = None, **facts: Any
    ) -> Iterator[PlannedUnit]:
        """Units of adjacent segments, up to a size of their payload; one on which work has failed is alone."""
        limit_bytes = self._config.unit_bytes if max_bytes is None else max_bytes
        for wanted in ranges:
            failed = concern(job, facts.get("table"))
            for parts in self._group_parts(failed, self.pieces(wanted), limit_bytes):
                where = Range(parts[0].range.first, parts[-1].range.end)
                yield self.planned(job, where, segments=tuple(part.source for part in parts), **facts)

    def planned(self, job: JobName, where: Range, **facts: Any) -> PlannedUnit:
        """A unit of a range."""
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
        return PlannedUnit(unit, row.id, any(failure.lost > 1 for failure in self._failures_in(unit.concern, where)))

    def _group_parts(self, failed: str, parts: Iterator[SegmentPart], max_bytes: int) -> Iterator[list[SegmentPart]]:
        """Adjacent segments up to the size of a unit."""
        group: list[SegmentPart] = []
        for part in parts:
            is_alone = any(True for _ in self._failures_in(failed, part.range))
            if group and (is_alone or _is_full(group, part, max_bytes)):
                yield group
                group = []
            group.append(part)
            if is_alone:
                yield group
                group = []
        if group:
            yield group

    def _failures_in(self, failed: str, where: Range) -> Iterator[FailureRow]:
        for failure in self._failures:
            if failure.job == failed and where.overlaps(Range(failure.first_seq, failure.end_seq)):
                yield failure


def _is_full(group: list[SegmentPart], part: SegmentPart, max_bytes: int) -> bool:
    payload = sum(member.payload_bytes for member in group) + part.payload_bytes
    return payload > max_bytes or len(group) >= MAX_SEGMENTS


class Leveled(Protocol):
    """A file with its level: how often it was merged."""

    @property
    def level(self) -> int:
        """How often it was merged."""


def counted_levels(neighbours: Sequence[Leveled]) -> list[int]:
    """Return the level that each neighbour counts as: at least that of every later one.

    A fixed number of neighbours of one level are merged into one of the next, so there are few of each level, and of
    levels there are as many as the logarithm of the stream's length. What stands before a neighbour of a higher level
    will never get more neighbours of its own: it counts as of that level.
    """
    levels, highest = list[int](), 0
    for neighbour in reversed(neighbours):
        highest = max(highest, neighbour.level)
        levels.append(highest)
    return levels[::-1]
