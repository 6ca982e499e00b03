"""How many values differ: exact up to 256, then an HLL sketch with a standard error of 1.6 %.

The state is ``[{value: 0}, sketch or None]``: values are gathered as keys, and 257 of them go into the sketch
together. So it holds at most 256 values and one sketch of about 4 KB, per pane where there is a window. What goes
into sketches is canonical: an integral f64 as the i64, a moment as its text in UTC.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from headrace.operators import sketches
from headrace.operators.declaration import CHANGE, DISTRIBUTIONS, VALUE, Parameter, Params, declare
from headrace.operators.entries import time_and_seq
from headrace.operators.operator import FieldOperator, Operator, Row, canonical
from headrace.operators.parts import EXACT as EXACT_PART
from headrace.operators.parts import Parts, plain
from headrace.operators.runs import Longs, RowRuns, counts_by_run
from headrace.operators.state_columns import Blobs, Coded, Maps, Mixed, Numbers, Records, Same, StateColumn
from headrace.types import FieldType

EXACT = 256
_MEMORY = "256 values, then a sketch of 4 KB"


class Distinct(Operator):
    """Counts different things."""

    order = "any"

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The different things of both."""
        return merge_states([left, right])

    def merge_all(self, states: Sequence[list[Any]]) -> list[Any] | None:
        """The different things of all."""
        return merge_states(states) if states else None

    def finish(self, state: list[Any] | None, now: int = 0) -> int:
        """How many."""
        if state is None:
            return 0
        return len(state[0]) if state[1] is None else sketches.distinct_count(_make_sketch(state[0], [state[1]]))

    def catalyst_parts(self) -> Parts:
        """Values that are kept as they are, and a sketch."""
        return Parts(EXACT_PART, plain("different"), together=_merge_parts)


class NUnique(FieldOperator, Distinct):
    """How many different values a field has."""

    declaration = declare(
        "n_unique",
        DISTRIBUTIONS,
        "how many different values: exact up to 256, then ± 1.6 %",
        "i64",
        window="optional",
        memory=_MEMORY,
        aliases=("count_distinct",),
        field=VALUE,
    )

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value."""
        return add_value(state, canonical(value, self.kind))

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The different values of each run."""
        return runs.shared(("distinct", self._field, self.kind), lambda: self._states_of_runs(runs))

    def _states_of_runs(self, runs: RowRuns) -> Sequence[Any]:
        owners, values, _, forms = counts_of_values(self._field, self.kind, runs)
        return _states(owners, len(runs.starts), Coded(values, forms))


class BurstCount(Distinct):
    """How many sub-windows, counted from the epoch, have an event."""

    declaration = declare(
        "burst_count",
        CHANGE,
        "how many sub-windows had events",
        "i64",
        window="required",
        memory=_MEMORY,
        sub_window=Parameter("duration", code="aggregation_invalid_sub_window", example='"1m"'),
    )

    @cached_property
    def _sub_window_ms(self) -> int:
        """The length of a sub-window."""
        sub_window_ms: int = self.params["sub_window"]
        return sub_window_ms

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """The sub-window of one more event."""
        return add_value(state, at // self._sub_window_ms) if matched else state

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The sub-windows of each run."""
        numbers = runs.times // self._sub_window_ms
        order = np.lexsort((numbers, runs.run_of_row()))
        owners, numbers = runs.run_of_row()[order], numbers[order]
        differs = np.append(True, (np.diff(owners) != 0) | (np.diff(numbers) != 0))
        return _states(owners[differs], len(runs.starts), Numbers(numbers[differs]))


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


def counts_of_values(field: str, kind: FieldType, runs: RowRuns) -> tuple[Longs, Longs, Longs, StateColumn]:
    """The different values of each run: the run, a number for the value, how often it is there; and all by number."""

    def make() -> tuple[Longs, Longs, Longs, StateColumn]:
        codes, forms = runs.coded(field, kind, lambda value: canonical(value, kind))
        pairs = np.sort(runs.run_of_row() * len(forms) + codes)
        starts = np.flatnonzero(np.append(True, pairs[1:] != pairs[:-1]))
        owners, values = np.divmod(pairs[starts], len(forms))
        return owners, values, np.diff(starts, append=len(pairs)), forms

    return runs.shared(("values", field, kind), make)


def _states(owners: Longs, count: int, values: StateColumn) -> Sequence[Any]:
    """The states of so many runs; ``owners`` are the runs of ``values``, of which none is twice in a run."""
    different = counts_by_run(owners, count)
    states = Records(Maps(different, values, Same(0, len(values))), Same(None, count))
    many = np.flatnonzero(different > EXACT).tolist()
    return Mixed(states, many, [merge_states([states[run]]) for run in many])


def _merge_parts(exact: list[dict[Any, int]], sketch: bytes | None) -> list[Any]:
    return merge_states([[{}, sketch], *([values, None] for values in exact)])


def _make_sketch(values: dict[Any, int], parts: Sequence[bytes | None]) -> bytes:
    return sketches.union([*(part for part in parts if part is not None), sketches.distinct_of(values)])


_ENCODE = msgspec.msgpack.Encoder().encode


class BloomMember(FieldOperator):
    """Whether the newest value had been there before; false without any.

    The state is ``[time of the newest value, its number, bits, its hash, whether it had been there]``.
    """

    declaration = declare(
        "bloom_member",
        DISTRIBUTIONS,
        "whether the newest value had been there before; wrong with chance `fpr` where it had not",
        "bool",
        memory="1.2 KB for 1,024 values at 1 %",
        field=VALUE,
        expected_n=Parameter("integer", 1024, least=1, greatest=1_000_000, aliases=("capacity",), example="10_000"),
        fpr=Parameter(
            "number", 0.01, above=0, below=1, code="invalid_bloom_fpr", aliases=("target_fpr",), example="0.001"
        ),
    )
    order = "time"

    def __init__(self, params: Params, types: Mapping[str, FieldType]) -> None:
        super().__init__(params, types)
        expected, chance = params["expected_n"], params["fpr"]
        bits = math.ceil(-expected * math.log(chance) / math.log(2) ** 2)
        self._bytes = max(1, -(-bits // 8))
        self._probes = max(1, round(8 * self._bytes / expected * math.log(2)))

    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """One more value, the newest unless it comes late."""
        bits = bytearray(self._bytes) if state is None else state[2]
        if not isinstance(bits, bytearray):
            bits = bytearray(bits)
        hashed = _digest(canonical(value, self.kind))
        if state is None or at_ms > state[0] or (at_ms == state[0] and seq > state[1]):
            state = [at_ms, seq, bits, hashed, self._has(bits, hashed)]
        else:
            state = [*state[:2], bits, state[3], state[4] or hashed == state[3]]
        for position in self._positions(hashed):
            bits[position >> 3] |= 1 << (position & 7)
        return state

    def merge_both(self, left: list[Any], right: list[Any]) -> list[Any]:
        """The bits of both; the newest value may have been there in the other."""
        newest, other = (left, right) if time_and_seq(left) > time_and_seq(right) else (right, left)
        bits = (int.from_bytes(left[2], "little") | int.from_bytes(right[2], "little")).to_bytes(self._bytes, "little")
        return [*newest[:2], bits, newest[3], newest[4] or self._has(other[2], newest[3])]

    def finish(self, state: list[Any] | None, now: int = 0) -> bool:
        """Whether it had been there."""
        return state is not None and state[4]

    def from_version_1(self, state: Any, at: int, seq: int) -> Any:
        """The newest value at this time and number."""
        return [at, seq, *state]

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The bits of each run, each different value hashed once."""
        codes, forms = runs.coded(self._field, self.kind, lambda value: canonical(value, self.kind))
        hashed = np.frombuffer(b"".join(map(_digest, forms)), "<u8").reshape(-1, 2)
        size, last = np.uint64(8 * self._bytes), runs.ends() - 1
        begun, step = hashed[:, :1] % size, (hashed[:, 1:] | np.uint64(1)) % size
        positions = ((begun + np.arange(self._probes, dtype=np.uint64) * step) % size).astype(np.int64)
        set_bits = runs.run_of_row()[:, None] * (8 * self._bytes) + positions[codes]
        bits = np.zeros(len(last) * self._bytes, np.uint8)
        before = np.delete(set_bits, last, axis=0).ravel()
        np.bitwise_or.at(bits, before >> 3, np.uint8(1) << (before & 7).astype(np.uint8))
        newest = set_bits[last]
        bit = np.uint8(1) << (newest & 7).astype(np.uint8)
        was_present = np.all(bits[newest >> 3] & bit, axis=1)
        np.bitwise_or.at(bits, newest.ravel() >> 3, bit.ravel())
        digests = hashed.view(np.uint8).reshape(-1, 16)[codes[last]]
        newest_times, newest_seqs = Numbers(runs.times[last]), Numbers(runs.seqs[last])
        packed_bits = Blobs(bits.reshape(-1, self._bytes))
        return Records(newest_times, newest_seqs, packed_bits, Blobs(digests), Numbers(was_present))

    def _has(self, bits: bytes | bytearray, hashed: bytes) -> bool:
        return all(bits[position >> 3] >> (position & 7) & 1 for position in self._positions(hashed))

    def _positions(self, hashed: bytes) -> list[int]:
        start = int.from_bytes(hashed[:8], "little")
        step = int.from_bytes(hashed[8:], "little") | 1
        size = 8 * self._bytes
        return [(start + turn * step) % size for turn in range(self._probes)]


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(_ENCODE(value), digest_size=16).digest()
