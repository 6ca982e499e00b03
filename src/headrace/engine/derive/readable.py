"""What can be derived from: the published entries of a stream, its ancestors' included, and their segments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.format.ranges import Range
from headrace.reduce.work_units import Source
from headrace.storage.published import Placed, Published
from headrace.storage.streams import StreamRow, Streams

_PAGE = 100


class OwnedRange(NamedTuple):
    """Published entries that one stream owns."""

    owner: int
    first: int
    end: int


class SegmentPart(NamedTuple):
    """The entries of a range that lie in one segment, and the payload of all of that segment."""

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


def _source(placed: Placed) -> Source:
    segment = placed.segment
    return Source(placed.key, segment.first_seq, segment.count, segment.bytes, segment.sha256)
