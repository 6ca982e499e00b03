"""Folding events into rows, in the order of the log: bodies as they are stored, and the rows of keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace.format.segment import layout
from headrace.format.segment.columns import body_runs
from headrace.format.state_file import PackedColumns
from headrace.reduce.states.definition import Definition, EventRun, KeyedReducer
from headrace.reduce.states.unmerged_rows import UnmergedRows, common_keys

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
    """The rows of keys over a run of events. The most recently used ones are kept unpacked.

    Events are folded one by one, or many at once as the packed rows that came of their columns. These are merged with
    the rows of earlier events when a key is looked up or has another event: a row that is hot lacks none of them.
    """

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
        #: Unpacked rows that lack unmerged ones.
        self._stale: dict[bytes, Any] = {}
        self._packed: dict[bytes, bytes] = {}
        self._packed_bytes = 0
        self._unmerged = UnmergedRows()

    @property
    def packed_bytes(self) -> int:
        """How many bytes its packed rows have."""
        return self._packed_bytes + self._unmerged.memory

    @property
    def memory(self) -> int:
        """About what its rows take in memory, in bytes."""
        unpacked = (len(self._hot) + len(self._stale)) * self._row_bytes
        return self.packed_bytes + len(self._packed) * _ENTRY_BYTES + unpacked

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
            hot[key] = self._reducer.fold(self._take(key), at, seq, row)
            self._cool_oldest(2)
            return
        hot.move_to_end(key)
        folded = self._reducer.fold(state, at, seq, row)
        if folded is not state:
            hot[key] = folded

    def add_rows(self, rows: PackedColumns) -> None:
        """Fold the next events, which are packed rows already: what `fold_rows` makes of their columns."""
        for key in common_keys(self._hot.keys(), rows):
            self._stale[key] = self._hot.pop(key)
        self._unmerged.add(rows)

    @property
    def is_full(self) -> bool:
        """Whether `merge_rows` should be called before more rows are added."""
        return self._unmerged.is_full(2 * self.hot_bytes)

    def merge_rows(self, is_over: Callable[[], bool]) -> None:
        """Merge added rows with earlier ones, until there is room for more or time is over."""
        while self.is_full:
            for key in self._unmerged.next_keys():
                self._cool(key, self._take(key))
                if is_over():
                    return

    def row(self, key: bytes) -> Any:
        """What was folded for a key, None where no event has it; not to be changed."""
        self._merge_row(key)
        state = self._hot.get(key)
        if state is not None:
            return state
        packed = self._packed.get(key)
        return None if packed is None else self._reducer.unpack(_PACKED.decode(packed))

    def copied(self, key: bytes) -> tuple[Any, int]:
        """The same, to be folded on apart from this one; and how many bytes it has packed."""
        self._merge_row(key)
        state = self._hot.get(key)
        packed = self._packed.get(key) if state is None else _PACK(self._reducer.pack(state))
        if packed is None:
            return None, 0
        return self._reducer.unpack(_PACKED.decode(packed)), len(packed)

    def adopted(self, defined: Definition) -> Fold:
        """The same rows for another definition, of which no version lacks anything; this one is not used any more."""
        for unpacked in (self._hot, self._stale):
            while unpacked:
                self._cool(*unpacked.popitem())
        heir = Fold(defined, self._hot_rows, self.hot_bytes)
        heir._packed, heir._packed_bytes, heir._unmerged = self._packed, self._packed_bytes, self._unmerged
        return heir

    def emptied(self, defined: Definition) -> Fold:
        """No rows, for another definition."""
        return Fold(defined, self._hot_rows, self.hot_bytes)

    def _merge_row(self, key: bytes) -> None:
        """Make the row of a key hot if it lacks unmerged rows."""
        if self._unmerged and key not in self._hot and self._unmerged.has(key):
            self._hot[key] = self._take(key)
            self._cool_oldest(2)

    def _take(self, key: bytes) -> Any:
        """Remove the row of a key that is not hot, and return it, merged."""
        state = self._stale.pop(key, None)
        if state is None and (packed := self._packed.pop(key, None)) is not None:
            self._packed_bytes -= len(packed)
            state = self._reducer.unpack(_PACKED.decode(packed))
        for row in self._unmerged.take(key):
            state = self._reducer.merge(state, self._reducer.unpack(row))
        return state

    def _cool(self, key: bytes, state: Any) -> None:
        packed = self._packed[key] = _PACK(self._reducer.pack(state))
        self._packed_bytes += len(packed)

    def _cool_oldest(self, count: int, max_hot: int | None = None) -> None:
        """Pack what was used longest ago, until the others are few enough; so many rows at once."""
        limit = self._max_hot if max_hot is None else max_hot
        for _ in range(min(count, len(self._hot) + len(self._stale) - limit)):
            self._cool(*(self._stale.popitem() if self._stale else self._hot.popitem(last=False)))

    def _measure(self) -> None:
        """Limit the number of unpacked rows by memory, estimated from the size of the last one."""
        self._measured_at += min(self._measured_at, _MEASURED_EVERY)
        if not self._hot:
            return
        size = len(_PACK(self._reducer.pack(next(reversed(self._hot.values()))))) * SPREAD + ROW_OVERHEAD
        self._row_bytes = (self._row_bytes + size) // 2
        self._max_hot = max(_LEAST_HOT, min(self._hot_rows, self.hot_bytes // self._row_bytes))
        self._cool_oldest(_COOLED_AT_ONCE)
