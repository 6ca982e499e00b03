"""Folding events into rows, in the order of the log: bodies as they are stored, and the rows of keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.engine.states.definition import Definition, Reducer, Told

_PACKED = msgspec.msgpack.Decoder(dict[str, bytes])
_PACK = msgspec.msgpack.Encoder().encode


def of_batch(batch: Any, most_bytes: int) -> Iterator[Told]:
    """A record batch in the columns of a segment."""
    from headrace.format.segment import layout
    from headrace.format.segment.stretches import stretches

    if not batch.num_rows:
        return
    times = batch.column(layout.APPEND_TIME).cast("int64").to_pylist()
    first = batch.column(layout.SEQ)[0].as_py()
    for stretch in stretches(batch, most_bytes):
        at = stretch.first_seq - first
        yield Told(stretch.first_seq, stretch.version, times[at : at + stretch.entries], stretch.body)


class Fold:
    """The rows of keys over a run of events. So many that were used last are at hand, the others are packed."""

    def __init__(self, defined: Definition, hot: int) -> None:
        self.defined = defined
        self._reducer: Reducer = defined.reducer
        self._most_hot = hot
        self._hot: OrderedDict[bytes, Any] = OrderedDict()
        self._packed: dict[bytes, bytes] = {}
        self.packed_bytes = 0

    def __len__(self) -> int:
        return len(self._hot) + sum(key not in self._hot for key in self._packed)

    @property
    def reducer(self) -> Any:
        """What folds."""
        return self._reducer

    def add(self, seq: int, at: int, event: Any) -> None:
        """Fold the next event."""
        placed = self._reducer.place(event)
        if placed is None:
            return
        key, row = placed
        hot = self._hot
        state = hot.get(key)
        if state is None:
            hot[key] = self._reducer.fold(self._unpacked(key), row, at, seq)
            if len(hot) > self._most_hot:
                self._cool(*hot.popitem(last=False))
            return
        hot.move_to_end(key)
        folded = self._reducer.fold(state, row, at, seq)
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
        """The same rows for another definition, of which no life lacks anything; this one is not used any more."""
        while self._hot:
            self._cool(*self._hot.popitem(last=False))
        heir = Fold(defined, self._most_hot)
        heir._packed, heir.packed_bytes = self._packed, self.packed_bytes
        return heir

    def emptied(self, defined: Definition) -> Fold:
        """No rows, for another definition."""
        return Fold(defined, self._most_hot)

    def _unpacked(self, key: bytes) -> Any:
        packed = self._packed.pop(key, None)
        if packed is None:
            return None
        self.packed_bytes -= len(packed)
        return self._reducer.unpack(_PACKED.decode(packed))

    def _cool(self, key: bytes, state: Any) -> None:
        packed = self._packed[key] = _PACK(self._reducer.pack(state))
        self.packed_bytes += len(packed)
