"""Reading entries: rows of the WAL along a stream's lineage, cut to a byte budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from headrace.engine.registry import View
from headrace.engine.split import entries_of, slice_json
from headrace.engine.stream import Head, Stream
from headrace.errors import NotRepresentable
from headrace.storage.wal import Entries, Wal
from headrace.types import NEVER_US


class Slice(NamedTuple):
    """What a read found: payload parts (each JSON part may hold several entries), and where to go on."""

    parts: list[bytes]
    position: int


def read(
    wal: Wal,
    stream: Stream,
    head: Head,
    position: int,
    *,
    budget: int,
    key: str | None = None,
    view: View | None = None,
) -> Slice:
    """Entries from ``position`` to the head, as many as the budget allows and at least one; a view turns them."""
    parts: list[bytes] = []
    end = head.next_seq
    if position >= end:
        return Slice(parts, end)
    room = budget
    for row, until in _rows(wal, stream, position, end, key):
        skip, stop = max(0, position - row.seq), min(row.count, until - row.seq)
        body = row.body
        if row.keys is not None and key is not None:
            body, stop = _pick(row, skip, stop, budget, key)
            if not body:
                continue
        elif skip or stop < row.count or len(body) > budget:
            body, stop = _cut(stream, row, skip, stop, budget)
        if parts and len(body) > room:
            return Slice(parts, row.seq + skip)
        if view is not None and row.version != view.version:
            try:
                body = view.turn(body, row.version)
            except NotRepresentable as failure:
                if parts:
                    return Slice(parts, row.seq + skip)
                return _turn_some(stream, row, skip, stop, key, view, failure)
        parts.append(body)
        room -= len(body)
        if row.seq + stop < min(until, row.seq + row.count) or room <= 0:
            return Slice(parts, row.seq + stop)
    return Slice(parts, end)


def _turn_some(
    stream: Stream, row: Entries, skip: int, stop: int, key: str | None, view: View, failure: NotRepresentable
) -> Slice:
    """What comes before the first entry that cannot be turned; if that is the very first, say so."""
    entries, chosen = entries_of(row.body), _chosen(row, skip, stop, key)
    good = chosen[: failure.facts["index"]]
    if not good:
        offset = stream.offset_at(row.seq + chosen[0] + 1)
        raise NotRepresentable(
            f"{failure.message}; to read on, skip it with offset={offset}",
            offset=offset,
            pointer=failure.facts["pointer"],
            schema_version=view.version,
        )
    body = view.turn(b",".join([entries[index] for index in good]), row.version)
    return Slice([body], row.seq + good[-1] + 1)


def _chosen(row: Entries, skip: int, stop: int, key: str | None) -> list[int]:
    """Which entries of a row are meant."""
    if row.keys is None or key is None:
        return list(range(skip, stop))
    keys = msgspec.json.decode(row.keys)
    return [index for index in range(skip, stop) if keys[index] == key]


def _pick(row: Entries, skip: int, stop: int, budget: int, key: str) -> tuple[bytes, int]:
    """The entries of one key, fewer where they exceed the budget, and where to go on."""
    picked: list[bytes | msgspec.Raw] = []
    entries, size = entries_of(row.body), 0
    for index in _chosen(row, skip, stop, key):
        if picked and size >= budget:
            return b",".join(picked), index
        picked.append(entries[index])
        size += len(memoryview(entries[index])) + 1
    return b",".join(picked), stop


def _cut(stream: Stream, row: Entries, skip: int, stop: int, budget: int) -> tuple[bytes, int]:
    """Part of a row: entries ``skip`` to ``stop``, fewer where they exceed the budget."""
    if not stream.is_json:
        return row.body, stop
    entries = entries_of(row.body)
    size, last = 0, skip
    while last < stop and (size < budget or last == skip):
        size += len(memoryview(entries[last])) + 1
        last += 1
    return b",".join(entries[skip:last]), last


def _rows(wal: Wal, stream: Stream, position: int, end: int, key: str | None) -> Iterator[tuple[Entries, int]]:
    """Rows that hold entries of [position, end), each with the end of the ancestor it was read from."""
    for owner, limit in (*stream.lineage, (stream.id, end)):
        until = min(limit, end)
        if position >= until:
            continue
        rows = wal.scan(owner, position, until) if key is None else wal.scan_key(owner, key, position, until)
        for row in rows:
            if row.seq + row.count > position:
                yield row, until
        position = until


def holding(wal: Wal, stream: Stream, seq: int) -> tuple[Entries, int] | None:
    """The row that holds an entry, wherever in the lineage it lies, and where it ends in this stream.

    A fork may have cut the row of its source.
    """
    for owner, limit in stream.lineage:
        if seq < limit:
            row = wal.holding(owner, seq)
            return None if row is None else (row, min(row.seq + row.count, limit))
    row = wal.holding(stream.id, seq)
    return None if row is None else (row, row.seq + row.count)


def bytes_before(wal: Wal, stream: Stream, head: Head, position: int) -> int:
    """Payload bytes of the stream before a position."""
    if position >= head.next_seq:
        return head.bytes
    found = holding(wal, stream, position)
    if found is None:
        return head.first_bytes
    row, _ = found
    before = row.total_bytes - len(row.body)
    if position == row.seq:
        return before
    return before + len(slice_json(row.body, 0, position - row.seq))


def time_before(wal: Wal, stream: Stream, head: Head, position: int) -> int:
    """The append time of the last entry before a position."""
    if position >= head.next_seq:
        return head.last_us
    found = holding(wal, stream, position - 1) if position else None
    return NEVER_US if found is None else found[0].append_us


def seek_time(wal: Wal, stream: Stream, head: Head, since_us: int) -> int:
    """The position just before the first retained entry appended at or after a moment; the tail if none was."""
    return _seek(wal, stream, head, lambda row: row.append_us >= since_us)


def seek_bytes(wal: Wal, stream: Stream, head: Head, before: int) -> int:
    """The start of the first append request that has at least so many payload bytes before it."""
    return _seek(wal, stream, head, lambda row: row.total_bytes - len(row.body) >= before)


def _seek(wal: Wal, stream: Stream, head: Head, reached: Callable[[Entries], bool]) -> int:
    """Where the first row begins for which ``reached`` holds; it holds for every later row too."""
    low, high = head.first_seq, head.next_seq
    while low < high:
        middle = (low + high) // 2
        found = holding(wal, stream, middle)
        if found is not None and reached(found[0]):
            high = max(found[0].seq, low)
        else:
            low = min(high, found[1] if found is not None else middle + 1)
    return low
