"""Folding events into rows, in the order of the log: bodies as they are stored, and the rows of keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.format.segment import layout
from headrace.format.segment.columns import body_runs
from headrace.reduce.states.definition import Definition, EventRun, KeyedReducer

_PACKED = msgspec.msgpack.Decoder(dict[str, bytes])
_PACK = msgspec.msgpack.Encoder().encode

#: About what a row takes in memory for each of its packed bytes, and besides; measured.
SPREAD, ROW_OVERHEAD = 9, 1024
#: Memory for the rows at hand of one definition.
HOT_BYTES = 32 * 1024 * 1024
#: So many rows are at hand however large they are; where they do not fit, so many are packed at once.
_LEAST_HOT, _COOLED_AT_ONCE = 16, 32
#: A row is measured first after so many events, and at least whenever so many more were folded.
_MEASURED_FIRST, _MEASURED_EVERY = 16, 4096
#: What a packed row takes besides.
_ENTRY_BYTES = 200


def runs_of_batch(batch: Any, max_bytes: int) -> Iterator[EventRun]:
    """A record batch in the columns of a segment."""
    if not batch.num_rows:
        return
    times = batch.column(layout.APPEND_TIME).cast("int64").to_pylist()
    first = batch.column(layout.SEQ)[0].as_py()
    for run in body_runs(batch, max_bytes):
        at = run.first_seq - first
        yield EventRun(run.first_seq, run.version, times[at : at + run.entries], run.body)


class Fold:
    """The rows of keys over a run of events. The most recently used ones are kept unpacked."""

    def __init__(self, defined: Definition, hot: int, hot_bytes: int = HOT_BYTES) -> None:
        self.defined = defined
        self._reducer: KeyedReducer[Any, Any] = defined.reducer
        self._hot_rows = self._max_hot = hot
        #: About how much memory the unpacked rows may take; it may be changed.
        self.hot_bytes = hot_bytes
        #: About what an unpacked row takes, and the number of folded events at which one is measured again.
        self._row_bytes = ROW_OVERHEAD
        self._folded, self._measured_at = 0, _MEASURED_FIRST
        self._hot: OrderedDict[bytes, Any] = OrderedDict()
        self._packed: dict[bytes, bytes] = {}
        self.packed_bytes = 0

    def __len__(self) -> int:
        return len(self._hot) + sum(key not in self._hot for key in self._packed)

    @property
    def memory(self) -> int:
        """About what its rows take in memory, in bytes."""
        return self.packed_bytes + len(self._packed) * _ENTRY_BYTES + len(self._hot) * self._row_bytes

    def cool(self) -> None:
        """Pack some of the unpacked rows."""
        self._cool_oldest(_COOLED_AT_ONCE, _LEAST_HOT)

    @property
    def reducer(self) -> Any:
        """What folds."""
        return self._reducer

    def add(self, seq: int, at: int, event: Any) -> None:
        """Fold the next event."""
        placed = self._reducer.key_and_row(event)
        if placed is None:
            return
        key, row = placed
        hot = self._hot
        self._folded += 1
        if self._folded == self._measured_at:
            self._measure()
        state = hot.get(key)
        if state is None:
            hot[key] = self._reducer.fold(self._take_packed(key), at, seq, row)
            if len(hot) > self._max_hot:
                self._cool_oldest(2)
            return
        hot.move_to_end(key)
        folded = self._reducer.fold(state, at, seq, row)
        if folded is not state:
            hot[key] = folded

    def row(self, key: bytes) -> Any:
        """What was folded for a key, None where no event has it; not to be changed."""
        state = self._hot.get(key)
        if state is not None:
            return state
        packed = self._packed.get(key)
        return None if packed is None else self._reducer.unpack(_PACKED.decode(packed))

    def copied(self, key: bytes) -> tuple[Any, int]:
        """The same, to be folded on apart from this one; and how many bytes it has packed."""
        state = self._hot.get(key)
        packed = self._packed.get(key) if state is None else _PACK(self._reducer.pack(state))
        if packed is None:
            return None, 0
        return self._reducer.unpack(_PACKED.decode(packed)), len(packed)

    def adopted(self, defined: Definition) -> Fold:
        """The same rows for another definition, of which no version lacks anything; this one is not used any more."""
        while self._hot:
            self._cool(*self._hot.popitem(last=False))
        heir = Fold(defined, self._hot_rows, self.hot_bytes)
        heir._packed, heir.packed_bytes = self._packed, self.packed_bytes
        return heir

    def emptied(self, defined: Definition) -> Fold:
        """No rows, for another definition."""
        return Fold(defined, self._hot_rows, self.hot_bytes)

    def _take_packed(self, key: bytes) -> Any:
        packed = self._packed.pop(key, None)
        if packed is None:
            return None
        self.packed_bytes -= len(packed)
        return self._reducer.unpack(_PACKED.decode(packed))

    def _cool(self, key: bytes, state: Any) -> None:
        packed = self._packed[key] = _PACK(self._reducer.pack(state))
        self.packed_bytes += len(packed)

    def _cool_oldest(self, count: int, max_hot: int | None = None) -> None:
        """Pack what was used longest ago, until the others are few enough; so many rows at once."""
        limit = self._max_hot if max_hot is None else max_hot
        for _ in range(min(count, len(self._hot) - limit)):
            self._cool(*self._hot.popitem(last=False))

    def _measure(self) -> None:
        """Limit the number of unpacked rows by memory, estimated from the size of the last one."""
        self._measured_at += min(self._measured_at, _MEASURED_EVERY)
        if not self._hot:
            return
        size = len(_PACK(self._reducer.pack(next(reversed(self._hot.values()))))) * SPREAD + ROW_OVERHEAD
        self._row_bytes = (self._row_bytes + size) // 2
        self._max_hot = max(_LEAST_HOT, min(self._hot_rows, self.hot_bytes // self._row_bytes))
        self._cool_oldest(_COOLED_AT_ONCE)
