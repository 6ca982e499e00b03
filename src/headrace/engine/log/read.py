"""Reading entries along a stream's lineage: rows of the log and slices of segments, cut to a byte budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.engine.log.stream import Head, Stream
from headrace.engine.log.tiers import Cell, NeedsFetch, Tiers
from headrace.errors import CorruptData, NotRepresentable
from headrace.schema.entries import entries_of, slice_json
from headrace.schema.view import StreamSchema
from headrace.storage.wal import Entries, Wal
from headrace.types import NEVER_US, Piece

if TYPE_CHECKING:
    from headrace.format.segment.reader import SlicePart


class ReadSlice(NamedTuple):
    """What a read found: payload parts (each JSON part may hold several entries), and where to go on."""

    parts: list[Piece]
    position: int


class Appended(NamedTuple):
    """An entry, and when it was appended."""

    seq: int
    append_us: int


class OwnedEntries(NamedTuple):
    """The entries of [start, end) belong to this stream: the reader itself, or one it was forked from."""

    owner: int
    start: int
    end: int
    #: Entries below it are in segments, as far as the reader knows; None where it has to look.
    published: int | None


def read(
    tiers: Tiers,
    stream: Stream,
    head: Head,
    position: int,
    *,
    budget: int,
    key: str | None = None,
    view: StreamSchema | None = None,
    waits: bool = False,
) -> ReadSlice:
    """Entries from ``position`` to the head, as many as the budget allows and at least one; a view turns them.

    With a key it may come back with nothing but a new position. Raises NeedsFetch where the first of them are not in
    memory, and if it ``waits``, where any of them are not.
    """
    parts: list[Piece] = []
    start = position
    while position < head.next_seq and (room := budget - sum(map(len, parts))) > 0:
        try:
            entries = _read_some(
                tiers, stream, next(owned_entries(stream, head, position)), room, key, view, bool(parts)
            )
        except (NeedsFetch, NotRepresentable) as reason:
            if position == start or (waits and isinstance(reason, NeedsFetch)):
                raise
            break  # what was found so far is an answer
        parts += entries.parts
        if entries.position == position:
            break
        position = entries.position
    return ReadSlice(parts, position if position < head.next_seq else head.next_seq)


def _read_some(
    tiers: Tiers,
    stream: Stream,
    part: OwnedEntries,
    room: int,
    key: str | None,
    view: StreamSchema | None,
    has_parts: bool,
) -> ReadSlice:
    """Entries from where one owner keeps them in one tier."""
    if part.published is None or part.start < part.published:
        entries = _read_segments(tiers, stream, part, room, key, view)
        if entries is not None:
            return ReadSlice([], part.start) if has_parts and sum(map(len, entries.parts)) > room else entries
    rows = _read_rows(tiers.wal, stream, part, room, key, view, has_parts)
    if rows.position > part.start or has_parts:
        return rows
    # Rows go once they are in segments, and the reader may not have heard of that.
    entries = _read_segments(tiers, stream, part, room, key, view)
    if entries is None:
        raise _missing(stream, part.start)
    return entries


def owned_entries(stream: Stream, head: Head, position: int) -> Iterator[OwnedEntries]:
    """Who owns the entries from a position to the head, in order."""
    for owner, limit in stream.lineage:
        until = min(limit, head.next_seq)
        if position < until:
            yield OwnedEntries(owner, position, until, None)
            position = until
    if position < head.next_seq:
        yield OwnedEntries(stream.id, position, head.next_seq, head.published_seq)


def _read_segments(
    tiers: Tiers, stream: Stream, part: OwnedEntries, budget: int, key: str | None, view: StreamSchema | None
) -> ReadSlice | None:
    sealed = tiers.read(part.owner, part.start, part.end, budget, key)
    if sealed is None or view is None:
        return None if sealed is None else ReadSlice([part.body for part in sealed.parts], sealed.position)
    turned, room, failure = _turn_parts(sealed.parts, view)
    if failure is None:
        return ReadSlice(turned, sealed.position)
    # What comes before it is read again, alone; where nothing does, the entry itself.
    again = tiers.read(part.owner, part.start, part.end, max(room, 1), key) or sealed
    if not room:
        raise not_representable(stream, again.position - 1, view, failure) from failure
    return ReadSlice(_turn_parts(again.parts, view)[0], again.position)


def _turn_parts(parts: list[SlicePart], view: StreamSchema) -> tuple[list[Piece], int, NotRepresentable | None]:
    """Parts of a segment in the requested version; where one fails, the bytes before it, and the reason."""
    turned: list[Piece] = []
    before: list[Piece | msgspec.Raw] = []
    for part in parts:
        try:
            turned.append(part.body if part.version == view.version else view.turn(bytes(part.body), part.version))
        except NotRepresentable as failure:
            before += entries_of(part.body)[: failure.facts["index"]]
            return turned, len(b",".join(before)), failure.with_traceback(None)  # which leads to who is given it
        before.append(part.body)
    return turned, 0, None


def _read_rows(
    wal: Wal,
    stream: Stream,
    part: OwnedEntries,
    budget: int,
    key: str | None,
    view: StreamSchema | None,
    has_parts: bool,
) -> ReadSlice:
    scan = wal.scan if key is None else partial(wal.scan_key, key=key)
    # A scan that a refusal leaves open would hold its snapshot until the traceback is collected.
    with closing(scan(stream=part.owner, position=part.start, end=part.end)) as rows:
        return _collect_rows(rows, stream, part, budget, key, view, has_parts)


def _collect_rows(
    rows: Iterable[Entries],
    stream: Stream,
    part: OwnedEntries,
    budget: int,
    key: str | None,
    view: StreamSchema | None,
    has_parts: bool,
) -> ReadSlice:
    """What rows hold of a part; without a key only up to the first entry that none of them holds."""
    parts: list[Piece] = []
    _, position, until, _ = part
    room, following = budget, position if key is None else until
    for row in rows:
        end = row.seq + row.count
        if end <= position:
            continue
        if row.seq > following:
            break
        if key is None:
            following = end
        skip, stop = max(0, position - row.seq), min(row.count, until - row.seq)
        body = row.body
        if row.keys is not None and key is not None:
            body, stop = _pick_entries(row, skip, stop, budget, key)
            if not body:
                continue
        elif skip or stop < row.count or len(body) > budget:
            body, stop = _cut_row(stream, row, skip, stop, budget)
        if (parts or has_parts) and len(body) > room:
            return ReadSlice(parts, row.seq + skip)
        if view is not None and row.version != view.version:
            try:
                body = view.turn(body, row.version)
            except NotRepresentable as failure:
                if parts:
                    return ReadSlice(parts, row.seq + skip)
                return _turn_some(stream, row, skip, stop, key, view, failure)
        parts.append(body)
        room -= len(body)
        if row.seq + stop < min(until, end) or room <= 0:
            return ReadSlice(parts, row.seq + stop)
    return ReadSlice(parts, min(following, until))


def _turn_some(
    stream: Stream, row: Entries, skip: int, stop: int, key: str | None, view: StreamSchema, failure: NotRepresentable
) -> ReadSlice:
    """What comes before the first entry that cannot be turned; if that is the very first, say so."""
    entries, chosen = entries_of(row.body), _entries_with_key(row, skip, stop, key)
    good = chosen[: failure.facts["index"]]
    if not good:
        raise not_representable(stream, row.seq + chosen[0], view, failure)
    body = view.turn(b",".join([entries[index] for index in good]), row.version)
    return ReadSlice([body], row.seq + good[-1] + 1)


def _entries_with_key(row: Entries, skip: int, stop: int, key: str | None) -> list[int]:
    """The indexes of the entries of a row that have a key; all where none is asked for."""
    if row.keys is None or key is None:
        return list(range(skip, stop))
    keys = msgspec.json.decode(row.keys)
    return [index for index in range(skip, stop) if keys[index] == key]


def _pick_entries(row: Entries, skip: int, stop: int, budget: int, key: str) -> tuple[bytes, int]:
    """The entries of one key, fewer where they exceed the budget, and where to go on."""
    picked: list[bytes | msgspec.Raw] = []
    entries, size = entries_of(row.body), 0
    for index in _entries_with_key(row, skip, stop, key):
        if picked and size >= budget:
            return b",".join(picked), index
        picked.append(entries[index])
        size += len(memoryview(entries[index])) + 1
    return b",".join(picked), stop


def _cut_row(stream: Stream, row: Entries, skip: int, stop: int, budget: int) -> tuple[bytes, int]:
    """Part of a row: entries ``skip`` to ``stop``, fewer where they exceed the budget."""
    if not stream.is_json:
        return row.body, stop
    entries = entries_of(row.body)
    size, last = 0, skip
    while last < stop and (size < budget or last == skip):
        size += len(memoryview(entries[last])) + 1
        last += 1
    return b",".join(entries[skip:last]), last


def not_representable(stream: Stream, seq: int, view: StreamSchema, failure: NotRepresentable) -> NotRepresentable:
    """The failure of one event to take the form asked for, with its offset and how to go on."""
    offset = stream.offset_at(seq + 1)
    return NotRepresentable(
        f"{failure.message}; to read on, skip it with offset={offset}",
        offset=offset,
        pointer=failure.facts["pointer"],
        schema_version=view.version,
    )


def request_end(tiers: Tiers, stream: Stream, head: Head, seq: int) -> int:
    """Where the append request that holds an entry ends in this stream; a fork may have cut that of its source."""
    part = next(owned_entries(stream, head, seq))
    placed = tiers.published.holding(part.owner, seq)
    if placed is not None:
        return min(tiers.request_end(placed, seq), part.end)
    row = _row(tiers.wal, stream, part.owner, seq)
    return min(row.seq + row.count, part.end)


def cell(tiers: Tiers, stream: Stream, head: Head, seq: int) -> Cell:
    """One entry of a stream of bytes, which is one append request."""
    part = next(owned_entries(stream, head, seq))
    placed = tiers.published.holding(part.owner, seq)
    if placed is not None:
        return tiers.cell(placed, seq)
    row = _row(tiers.wal, stream, part.owner, seq)
    return Cell(row.append_us, row.key, row.body)


def _row(wal: Wal, stream: Stream, owner: int, seq: int) -> Entries:
    row = wal.holding(owner, seq)
    if row is None:
        raise _missing(stream, seq)
    return row


def _missing(stream: Stream, seq: int) -> CorruptData:
    return CorruptData(f"entry {seq} of {stream.name!r} is missing", stream=stream.name, seq=seq)


def bytes_before(tiers: Tiers, stream: Stream, head: Head, position: int) -> int:
    """Payload bytes of the stream before a position."""
    if position >= head.next_seq:
        return head.bytes
    if position <= head.first_seq:
        return head.first_bytes
    part = next(owned_entries(stream, head, position))
    placed = tiers.published.holding(part.owner, position)
    if placed is not None:
        return tiers.bytes_before(placed, position)
    row = tiers.wal.holding(part.owner, position)
    return head.first_bytes if row is None else bytes_before_entry(row, position)


def bytes_before_entry(row: Entries, position: int) -> int:
    """Payload bytes of the stream before an entry of this row."""
    before = row.total_bytes - len(row.body)
    return before if position == row.seq else before + len(slice_json(row.body, 0, position - row.seq))


def time_before(tiers: Tiers, stream: Stream, head: Head, position: int) -> int:
    """The append time of the last entry before a position."""
    if position >= head.next_seq:
        return head.last_us
    if not position:
        return NEVER_US
    part = next(owned_entries(stream, head, position - 1))
    placed = tiers.published.holding(part.owner, position - 1)
    if placed is not None:
        return tiers.time_at(placed, position - 1)
    row = tiers.wal.holding(part.owner, position - 1)
    return NEVER_US if row is None else row.append_us


def seek_time(tiers: Tiers, stream: Stream, head: Head, since_us: int) -> int:
    """The position just before the first retained entry appended at or after a moment; the tail if none was."""
    first = first_since(tiers, stream, head, since_us)
    return head.next_seq if first is None else first.seq


def first_since(tiers: Tiers, stream: Stream, head: Head, since_us: int) -> Appended | None:
    """The first retained entry appended at or after a moment; its time may be that of an entry before it."""
    for owner, start, end, _ in owned_entries(stream, head, head.first_seq):
        sealed = tiers.seek_time(owner, since_us)
        if sealed is not None and sealed[0] < end:
            return Appended(max(sealed[0], start), sealed[1])
        last = tiers.published.last(owner)
        first = start if last is None else min(max(start, last.segment.end_seq), end)
        seq = seek_rows(tiers.wal, owner, first, end, lambda row: row.append_us >= since_us)
        row = tiers.wal.holding(owner, seq) if seq < end else None
        if row is not None:
            return Appended(seq, row.append_us)
    return None


def seek_rows(wal: Wal, owner: int, low: int, high: int, reached: Callable[[Entries], bool]) -> int:
    """Where the first row begins for which ``reached`` holds; it holds for every later row too."""
    while low < high:
        middle = (low + high) // 2
        row = wal.holding(owner, middle)
        if row is not None and reached(row):
            high = max(row.seq, low)
        else:
            low = min(high, row.seq + row.count if row is not None else middle + 1)
    return low
