"""Events that tails have not folded yet, in memory: bodies packed, and of each event the hash of its key.

So the events of one key are found and folded when it is asked for, however many of others wait.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.format.body_compression import pack, unpack
from headrace.reduce.states.definition import EventRun, Folded, Keying, Shapes
from headrace.schema.entries import entries_of

#: Bodies that are packed together; about so much is unpacked for an event.
_BLOCK_BYTES = 32 * 1024
_LEAST_CAPACITY = 4096
_OVERHEAD = 300

Hashes = NDArray[np.int64]


class Block(NamedTuple):
    """Consecutive events of one schema version, packed if that is shorter: then ``size`` is their unpacked length."""

    first_seq: int
    version: int
    times_us: Sequence[int]
    body: bytes
    size: int | None

    @property
    def end_seq(self) -> int:
        """The event after the last."""
        return self.first_seq + len(self.times_us)

    @property
    def memory(self) -> int:
        """About what it takes in memory, in bytes."""
        return len(self.body) + 8 * len(self.times_us) + _OVERHEAD

    def run(self) -> EventRun:
        """Its events."""
        body = self.body if self.size is None else unpack(self.body, self.size)
        return EventRun(self.first_seq, self.version, self.times_us, body)


class HashColumn:
    """The hashes of the keys of consecutive events."""

    def __init__(self, first_seq: int) -> None:
        self._first = self.end = first_seq
        self._hashes: Hashes = np.empty(_LEAST_CAPACITY, np.int64)

    @property
    def memory(self) -> int:
        """What it takes in memory, in bytes."""
        return int(self._hashes.nbytes)

    def append(self, hashes: Hashes) -> None:
        """The next events."""
        count = self.end - self._first
        if count + len(hashes) > len(self._hashes):
            grown: Hashes = np.empty(2 * (count + len(hashes)), np.int64)
            grown[:count] = self._hashes[:count]
            self._hashes = grown
        self._hashes[count : count + len(hashes)] = hashes
        self.end += len(hashes)

    def drop_before(self, seq: int) -> None:
        """Forget earlier events, where that spares half of the memory."""
        dropped, left = seq - self._first, self.end - seq
        if dropped > max(left, _LEAST_CAPACITY):
            self._hashes = self._hashes[dropped : dropped + left].copy()
            self._first = seq

    def find(self, wanted: int, start: int, end: int) -> list[int]:
        """The events of a range that have a hash."""
        offsets: list[int] = np.flatnonzero(self._hashes[start - self._first : end - self._first] == wanted).tolist()
        return [start + at for at in offsets]


class PendingEvents:
    """Consecutive events of one stream; the event loop owns it."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self._blocks: list[Block] = []
        self._starts: list[int] = []
        self._columns: dict[object, HashColumn] = {}
        self._shapes: Shapes | None = None
        self._block_bytes = 0

    @property
    def memory(self) -> int:
        """About what it takes in memory, in bytes."""
        return self._block_bytes + sum(column.memory for column in self._columns.values())

    def holds(self, start: int, end: int) -> bool:
        """Whether these events are here."""
        return self.start <= start and end <= self.end

    def append(self, runs: Iterable[EventRun]) -> None:
        """Keep the next events, in order."""
        rows: list[EventRun] = []
        size = 0
        for run in (part for long_run in runs for part in _split_run(long_run)):
            if rows and (size >= _BLOCK_BYTES or run.version != rows[0].version):
                self._pack(rows)
                rows, size = [], 0
            rows.append(run)
            size += len(run.body)
        if rows:
            self._pack(rows)

    def drop_before(self, seq: int) -> None:
        """Forget the blocks whose events all come before one."""
        gone = next((at for at, block in enumerate(self._blocks) if block.end_seq > seq), len(self._blocks))
        if gone:
            self._block_bytes -= sum(block.memory for block in self._blocks[:gone])
            self.start = self._blocks[gone - 1].end_seq
            del self._blocks[:gone], self._starts[:gone]
        for column in self._columns.values():
            column.drop_before(self.start)

    def next(self, start: int, limit: int) -> EventRun:
        """Some events from one on."""
        run = self._blocks[bisect_right(self._starts, start) - 1].run()
        skipped = start - run.first_seq
        if not skipped and len(run.times_us) <= limit:
            return run
        times_us = run.times_us[skipped : skipped + limit]
        body = b",".join(entries_of(run.body)[skipped : skipped + limit])
        return EventRun(start, run.version, times_us, body)

    def since(self, start: int) -> list[Block]:
        """The blocks that hold what there is from an event on."""
        return self._blocks[bisect_right(self._starts, start) - 1 :]

    def index(self, keying: Keying, shapes: Shapes, ends: float) -> bool:
        """Hash the keys of all events; False where that is not done by a moment."""
        if self._shapes is not shapes:
            self._columns, self._shapes = {}, shapes
        column = self._columns.get(keying.name)
        if column is None:
            column = self._columns[keying.name] = HashColumn(self.start)
        while column.end < self.end:
            block = self._blocks[bisect_right(self._starts, column.end) - 1]
            column.append(keying.of_events(shapes, block.run()))
            if column.end < self.end and monotonic() > ends:
                return False
        return True

    def keep_columns(self, names: Iterable[object]) -> None:
        """Forget the hashes of keys that nobody asks for any more."""
        self._columns = {name: self._columns[name] for name in names if name in self._columns}

    def seqs(self, keying: Keying, key: bytes, start: int, end: int) -> list[int]:
        """The events of a range that may have a key; indexed before."""
        return self._columns[keying.name].find(keying.of_key(key), start, end)

    def events(self, seqs: Iterable[int], shapes: Shapes) -> Iterator[Folded]:
        """Some events, in order."""
        for at, same in groupby(seqs, key=lambda seq: bisect_right(self._starts, seq) - 1):
            run, chosen = self._blocks[at].run(), list(same)
            entries, first = entries_of(run.body), run.first_seq
            body = b",".join([entries[seq - first] for seq in chosen])
            times_us = [run.times_us[seq - first] for seq in chosen]
            for seq, (_, time, event) in zip(
                chosen, shapes.decode_run(EventRun(chosen[0], run.version, times_us, body)), strict=True
            ):
                yield seq, time, event

    def _pack(self, rows: list[EventRun]) -> None:
        body = rows[0].body if len(rows) == 1 else b",".join([row.body for row in rows])
        times_us = array("q", [at_us for row in rows for at_us in row.times_us])
        packed = pack(body)
        size = None if packed is None else len(body)
        block = Block(self.end, rows[0].version, times_us, body if packed is None else packed, size)
        self._blocks.append(block)
        self._starts.append(block.first_seq)
        self._block_bytes += block.memory
        self.end = block.end_seq


def _split_run(run: EventRun) -> Iterator[EventRun]:
    """Events that are not much longer than a block."""
    count = len(run.times_us)
    limit = max(1, count * _BLOCK_BYTES // max(1, len(run.body)))
    if count <= 2 * limit:
        yield run
        return
    entries = entries_of(run.body)
    for at in range(0, count, limit):
        some = slice(at, at + limit)
        yield EventRun(run.first_seq + at, run.version, run.times_us[some], b",".join(entries[some]))
