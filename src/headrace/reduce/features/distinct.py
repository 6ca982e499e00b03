"""How many values differ: exact up to 256, then an HLL sketch with a standard error of 1.6 %.

The state is ``[{value: 0}, sketch or None]``: values are gathered as keys, and 257 of them go into the sketch
together. So it holds at most 256 values and one sketch of about 4 KB, per pane where there is a window. What goes
into sketches is canonical: an integral f64 as the i64, a moment as its text in UTC.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.reduce import sketches
from headrace.reduce.features.operator import OfValues, Operator, canonical
from headrace.schema.descriptor.nodes import Type

EXACT = 256


class Distinct(Operator):
    """Counts different things."""

    commutative = True

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The different things of both."""
        return merge_states([left, right])

    def merge_all(self, states: Sequence[list[Any]]) -> list[Any] | None:
        """The different things of all."""
        return merge_states(states) if states else None

    def finish(self, state: list[Any] | None, now_ms: int) -> int:
        """How many."""
        if state is None:
            return 0
        return len(state[0]) if state[1] is None else sketches.distinct_count(_make_sketch(state[0], [state[1]]))


class NUnique(OfValues, Distinct):
    """How many different values a field has."""

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value."""
        return add_value(state, canonical(value, self.kind))


class BurstCount(Distinct):
    """How many sub-windows, counted from the epoch, have an event."""

    def __init__(self, sub_window_ms: int) -> None:
        self._sub_window_ms = sub_window_ms

    def fold(self, state: Any, at_ms: int, seq: int, row: Mapping[str, Any], matched: bool) -> Any:
        """The sub-window of one more event."""
        return add_value(state, at_ms // self._sub_window_ms) if matched else state


def add_value(state: Any, value: Any) -> Any:
    """The state with one more value; the one given may be changed."""
    if state is None:
        return [{value: 0}, None]
    values = state[0]
    if value not in values:
        values[value] = 0
        if len(values) > EXACT:
            return [{}, _make_sketch(values, [state[1]])]
    return state


def merge_states(states: Sequence[list[Any]]) -> list[Any]:
    """One state of several."""
    values: dict[Any, int] = {}
    for state in states:
        values.update(state[0])
    parts = [state[1] for state in states if state[1] is not None]
    if len(values) > EXACT:
        return [{}, _make_sketch(values, parts)]
    return [values, sketches.union(parts) if parts else None]


def _make_sketch(values: dict[Any, int], parts: Sequence[bytes | None]) -> bytes:
    return sketches.union([*(part for part in parts if part is not None), sketches.distinct_of(values)])


_ENCODE = msgspec.msgpack.Encoder().encode


class BloomMember(OfValues):
    """Whether the newest value had been there before; false without any."""

    def __init__(self, field: str, kind: Type, expected: int, chance: float) -> None:
        super().__init__(field, kind)
        bits = math.ceil(-expected * math.log(chance) / math.log(2) ** 2)
        self._bytes = max(1, -(-bits // 8))
        self._probes = max(1, round(8 * self._bytes / expected * math.log(2)))

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value, the newest."""
        bits = bytearray(self._bytes) if state is None else state[0]
        if not isinstance(bits, bytearray):
            bits = bytearray(bits)
        hashed = _digest(canonical(value, self.kind))
        was_present = self._has(bits, hashed)
        for position in self._places(hashed):
            bits[position >> 3] |= 1 << (position & 7)
        return [bits, hashed, was_present]

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The bits of both; the newest value may have been there in the left."""
        bits = (int.from_bytes(left[0], "little") | int.from_bytes(right[0], "little")).to_bytes(self._bytes, "little")
        return [bits, right[1], right[2] or self._has(left[0], right[1])]

    def finish(self, state: list[Any] | None, now_ms: int) -> bool:
        """Whether it had been there."""
        return state is not None and state[2]

    def _has(self, bits: bytes | bytearray, hashed: bytes) -> bool:
        return all(bits[position >> 3] >> (position & 7) & 1 for position in self._places(hashed))

    def _places(self, hashed: bytes) -> list[int]:
        start = int.from_bytes(hashed[:8], "little")
        step = int.from_bytes(hashed[8:], "little") | 1
        size = 8 * self._bytes
        return [(start + turn * step) % size for turn in range(self._probes)]


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(_ENCODE(value), digest_size=16).digest()
