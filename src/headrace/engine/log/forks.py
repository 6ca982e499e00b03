"""Forks: the fork point in the source stream, and what the fork inherits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.engine.log import read as reading
from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.tiers import Cell, Tiers
from headrace.errors import BadRequest
from headrace.storage.streams import Streams


class Fork(NamedTuple):
    """A fork point: after ``position`` entries of the source, and a part of the next where that is bytes.

    What lies before a position never changes, so the facts hold whenever the fork is made.
    """

    source: Stream
    position: int
    #: Payload bytes before the position, and the time of the last entry before it.
    bytes: int
    last_us: int
    part: Cell | None = None
    #: The first entry that the source shows to readers, and the payload bytes before it.
    first_seq: int = 0
    first_bytes: int = 0


def fork_at(tiers: Tiers, source: Stream, readable: Head, position: int, sub: int) -> Fork:
    """The fork point after ``position`` entries and ``sub`` messages, or bytes, of the append that follows."""
    head, part = source.head, None
    if sub and position >= head.next_seq:
        raise _overshoots(sub, 0)
    if sub and source.is_json:
        position += _messages(tiers, source, head, position, sub)
    elif sub:
        position, part = _bytes(tiers, source, head, position, sub)
    return Fork(
        source,
        position,
        reading.bytes_before(tiers, source, head, position),
        reading.time_before(tiers, source, head, position),
        part,
        readable.first_seq,
        reading.bytes_before(tiers, source, head, readable.first_seq),
    )


def _messages(tiers: Tiers, source: Stream, head: Head, position: int, sub: int) -> int:
    left = reading.request_end(tiers, source, head, position) - position
    if sub > left:
        raise _overshoots(sub, left)
    return sub


def _bytes(tiers: Tiers, source: Stream, head: Head, position: int, sub: int) -> tuple[int, Cell | None]:
    cell = reading.cell(tiers, source, head, position)
    if sub > len(cell.payload):
        raise _overshoots(sub, len(cell.payload))
    if sub == len(cell.payload):
        return position + 1, None
    return position, cell._replace(payload=cell.payload[:sub])


def _overshoots(sub: int, left: int) -> BadRequest:
    return BadRequest(
        f"Stream-Fork-Sub-Offset {sub} overshoots the next append, which has {left}", field="Stream-Fork-Sub-Offset"
    )


def forks_beyond(streams: Streams, stream: int, seq: int) -> Iterator[int]:
    """The forks of a stream, and theirs, that read entries of it from one on."""
    for fork, end in streams.forks(stream):
        if end > seq:
            yield fork
            yield from forks_beyond(streams, fork, seq)


def read_by_forks(streams: Streams, stream: int) -> list[tuple[int, int]]:
    """The ranges of a stream that its forks, and theirs, still read."""
    ranges: list[tuple[int, int]] = []
    for fork, end in streams.forks(stream):
        row = streams.by_id(fork)
        own = [] if row is None else [(row.first_seq, end)]
        ranges += [(a, min(b, end)) for a, b in (*own, *read_by_forks(streams, fork)) if a < min(b, end)]
    return ranges
