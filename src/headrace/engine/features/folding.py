"""Folding events into rows, in the order of the log: stored bodies become events, events rows of keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.engine.features.defined import Defined
from headrace.reduce.features.table import Row, TableReducer
from headrace.schema.descriptor.nodes import Event
from headrace.schema.lens import document as lens_document
from headrace.schema.lens.chain import Chain
from headrace.schema.lens.ops import Lens
from headrace.schema.lens.values import LensFailure
from headrace.schema.registry import Registry

_EVENTS = msgspec.json.Decoder(list[dict[str, Any]])
_PACKED = msgspec.msgpack.Decoder(dict[str, bytes])
_PACK = msgspec.msgpack.Encoder().encode

#: One event: its sequence number, its time in milliseconds, and its fields.
Folded = tuple[int, int, dict[str, Any]]


class Told(NamedTuple):
    """Consecutive stored events of one schema version, joined by commas, and when each was appended."""

    first_seq: int
    version: int
    times_us: Sequence[int]
    body: bytes


class Shapes:
    """Turns the stored events of a source into its newest shape; those before a break keep the last they can have."""

    def __init__(self, registry: Registry, event: Event) -> None:
        self._registry = registry
        self._chain = Chain({n: _lens(document) for n, document in registry.lenses.items()}, registry.schemas)
        self._blank = {name: field.default for name, field in event.schema.items()}
        self._optional = [
            (name, field.default)
            for name, field in event.schema.items()
            if not field.required or field.default is not None
        ]

    def events(self, joined: bytes, version: int) -> list[dict[str, Any]]:
        """Events joined by commas, each with every field of the source."""
        current = self._registry.current_version
        target = min((cut for cut in self._registry.breaks if cut >= version), default=current)
        if version not in (target, 0):
            joined = self._promoted(joined, version, target)
        events = _EVENTS.decode(b"[" + joined + b"]")
        if target != current:
            return [{**self._blank, **event} for event in events]
        for event in events if self._optional else ():
            for name, default in self._optional:
                event.setdefault(name, default)
        return events

    def folded(self, told: Told) -> Iterator[Folded]:
        """The same, one after the other."""
        for at, event in enumerate(self.events(told.body, told.version)):
            yield told.first_seq + at, told.times_us[at] // 1000, event

    def _promoted(self, joined: bytes, version: int, target: int) -> bytes:
        try:
            return self._chain.promote(joined, version, target)
        except LensFailure:
            return joined  # a lens is proven before it is taken; what it cannot carry all the same is taken as it is


def _lens(document: Any) -> Lens:
    lens = lens_document.parse(document)
    assert not isinstance(lens, list), "a stored lens was parsed before it was stored"
    return lens


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

    def __init__(self, defined: Defined, hot: int) -> None:
        self.defined = defined
        self._reducer = defined.reducer
        self._most_hot = hot
        self._hot: OrderedDict[bytes, Row] = OrderedDict()
        self._packed: dict[bytes, bytes] = {}
        self.packed_bytes = 0

    def __len__(self) -> int:
        return len(self._hot) + sum(key not in self._hot for key in self._packed)

    @property
    def reducer(self) -> TableReducer:
        """What folds."""
        return self._reducer

    def add(self, seq: int, at_ms: int, event: dict[str, Any]) -> None:
        """Fold the next event."""
        placed = self._reducer.place(event)
        if placed is None:
            return
        key, row = placed
        hot = self._hot
        state = hot.get(key)
        if state is None:
            hot[key] = self._reducer.fold(self._unpacked(key), row, at_ms, seq)
            if len(hot) > self._most_hot:
                self._cool(*hot.popitem(last=False))
            return
        hot.move_to_end(key)
        folded = self._reducer.fold(state, row, at_ms, seq)
        if folded is not state:
            hot[key] = folded

    def row(self, key: bytes) -> Row | None:
        """What was folded for a key, None where no event has it; not to be changed."""
        state = self._hot.get(key)
        if state is not None:
            return state
        packed = self._packed.get(key)
        return None if packed is None else self._reducer.unpack(_PACKED.decode(packed))

    def adopted(self, defined: Defined) -> Fold:
        """The same rows for another definition, of which no life lacks anything; this one is not used any more."""
        while self._hot:
            self._cool(*self._hot.popitem(last=False))
        heir = Fold(defined, self._most_hot)
        heir._packed, heir.packed_bytes = self._packed, self.packed_bytes
        return heir

    def _unpacked(self, key: bytes) -> Row | None:
        packed = self._packed.pop(key, None)
        if packed is None:
            return None
        self.packed_bytes -= len(packed)
        return self._reducer.unpack(_PACKED.decode(packed))

    def _cool(self, key: bytes, state: Row) -> None:
        packed = self._packed[key] = _PACK(self._reducer.pack(state))
        self.packed_bytes += len(packed)
