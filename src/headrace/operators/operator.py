"""Operators: reducers of the rows of one key that are declared by name, and their windows.

A state is made of plain values (numbers, strings, bytes, lists, dicts), so that it packs as it is. Besides the plain
form, in which events are folded one by one, an operator may have faster ones: `fold_runs` makes the states of many
runs of rows at once from columns, `catalyst_parts` says how Spark's own aggregates merge states. Every form gives what
the plain one gives.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

from headrace.errors import BadRequest
from headrace.operators.declaration import Declaration, Params
from headrace.operators.parts import Parts
from headrace.operators.reducer import Reducer
from headrace.operators.runs import RowRuns
from headrace.operators.state_bytes import pack, unpack
from headrace.types import FieldType, parse_timestamp_us, rfc3339

Row = Mapping[str, Any]

PANES = 64


class Operator(Reducer[Row, Any, bytes]):
    """A reducer of rows; of those that match, unless it takes all."""

    declaration: ClassVar[Declaration]
    #: Whether events that do not match count for something.
    takes_all: bool = False
    #: Whether the answer depends on the moment at which it is asked for.
    reads_clock: ClassVar[bool] = False
    #: The fields without which an event does not count.
    fields: tuple[str, ...] = ()

    def __init__(self, params: Params, types: Mapping[str, FieldType]) -> None:
        """Parameters are checked: durations in milliseconds, defaults filled in. ``types`` are those of the rows."""
        self.params = params
        self.fields = tuple(
            params[name] for name, parameter in self.declaration.params.items() if parameter.kind == "field"
        )

    @property
    def window_ms(self) -> int | None:
        """The length of the window whose panes have a state each; None where one state is enough."""
        return self.params.get("window")

    def in_window(self, window_ms: int, ahead_ms: int = 0) -> Windowed:
        """The operator over a window."""
        return Windowed(self, window_ms, ahead_ms)

    def pack(self, state: Any) -> bytes:
        """The state as msgpack."""
        return pack(state)

    def unpack(self, packed: bytes) -> Any:
        """The state that was packed."""
        return unpack(packed)

    def from_version_1(self, state: Any, at: int, seq: int) -> Any:
        """A state of version 1, whose events are taken to lie at this time and number, as one of today."""
        return state

    def fold_runs(self, runs: RowRuns) -> Sequence[Any]:
        """The state of each run of rows, all of which count: what folding them one by one gives."""
        columns = [runs.column(field).to_pylist() for field in self.fields]
        rows = [dict(zip(self.fields, values, strict=True)) for values in zip(*columns, strict=True)]
        rows = rows if self.fields else [{}] * len(runs.times)
        events = list(zip(runs.times.tolist(), runs.seqs.tolist(), rows, runs.matched.tolist(), strict=True))
        states = []
        for start, end in runs.bounds():
            state = None
            for at_ms, seq, row, matched in events[start:end]:
                state = self.fold(state, at_ms, seq, row, matched)
            states.append(state)
        return states

    def catalyst_parts(self) -> Parts | None:
        """The columns whose aggregates merge states in Spark; None where only `merge` can."""
        return None


class EventOperator(Operator):
    """An operator over the times of the events that match."""

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """The state with one more event if it matches."""
        return self.add(state, at) if matched else state

    @abstractmethod
    def add(self, state: Any, at_ms: int) -> Any:
        """The state with one more event."""


class OneFieldOperator(Operator):
    """An operator over the values that a field has in the events that match; nulls are passed over."""

    def __init__(self, params: Params, types: Mapping[str, FieldType]) -> None:
        super().__init__(params, types)
        self._field: str = params["field"]
        self.kind: FieldType = types.get(self._field, "f64")

    def render(self, value: Any) -> Any:
        """A value of the field as its type writes it: 3 for an f64 is 3.0, 3.0 for an i64 is 3."""
        if value is None:
            return None
        if self.kind == "f64":
            return finite(value)
        return int(value) if self.kind == "i64" else value


class FieldOperator(OneFieldOperator):
    """An operator over the values of one field of which each value counts by itself."""

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """The state with one more value if the event matches and has one."""
        if not matched or (value := row.get(self._field)) is None:
            return state
        return self.add(state, value, at, seq)

    @abstractmethod
    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The state with one more value."""


class Windowed(Reducer[Row, Any, bytes]):
    """An operator over the events of a window: 64 panes aligned to the epoch, each with a state of its own.

    A pane is ceil(window / 64) ms wide and counts while ``now - start < window``. The state is ``{number of the pane:
    state}`` in the order of time. Panes that can count at no moment after the newest one are dropped, so there are at
    most 64. Where events may be ahead of the moment of an answer, earlier ones stay for as long as that.
    """

    def __init__(self, inner: Operator, window_ms: int, ahead_ms: int = 0) -> None:
        self.inner = inner
        self.fields = inner.fields
        self.takes_all = inner.takes_all
        self.order = inner.order  # type: ignore[misc]
        self.window_ms = window_ms
        self.width_ms = -(-window_ms // PANES)
        #: How many panes are kept.
        self.span = -(-(window_ms + ahead_ms) // self.width_ms)
        self._fold = inner.fold

    def fold(self, state: Any, at: int, seq: int, row: Row, matched: bool = True) -> Any:
        """The state with the event in its pane."""
        pane = at // self.width_ms
        if state is None:
            folded = self._fold(None, at, seq, row, matched)
            return None if folded is None else {pane: folded}
        held = state.get(pane)
        folded = self._fold(held, at, seq, row, matched)
        if folded is not held:
            if held is None and pane < (newest := next(reversed(state))):
                if pane > newest - self.span:
                    _insert(state, pane, folded)
                return state
            state[pane] = folded
            if held is None:
                self._trim(state, pane)
        return state

    def merge_both(self, left: dict[int, Any], right: dict[int, Any]) -> dict[int, Any]:
        """The panes of both, those of one number merged."""
        floor = max(*left, *right) - self.span
        panes = {pane: state for pane, state in left.items() if pane > floor}
        is_sorted = next(iter(right)) >= next(reversed(left))
        for pane, state in right.items():
            if pane > floor:
                panes[pane] = self.inner.merge_both(panes[pane], state) if pane in panes else state
        return panes if is_sorted else dict(sorted(panes.items()))

    def finish(self, state: dict[int, Any] | None, now: int = 0) -> Any:
        """The answer over the panes that count."""
        return self.inner.finish(self.inner.merge_all(self.counting(state, now)), now)

    def pack(self, state: dict[int, Any]) -> bytes:
        """The panes as msgpack."""
        return pack(state)

    def unpack(self, packed: bytes) -> Any:
        """The panes that were packed."""
        return unpack(packed)

    def from_version_1(self, state: dict[int, Any], at: int, seq: int) -> dict[int, Any]:
        """Panes of version 1, whose events are taken to lie at this time and number, as those of today."""
        return {pane: self.inner.from_version_1(held, at, seq) for pane, held in state.items()}

    def catalyst_parts(self) -> Parts | None:
        """The columns whose aggregates merge the states of one pane in Spark; None where only `merge` can."""
        return self.inner.catalyst_parts()

    def counting(self, state: dict[int, Any] | None, now_ms: int) -> list[Any]:
        """The states of the panes that count, earliest first."""
        first = (now_ms - self.window_ms) // self.width_ms
        return [held for pane, held in state.items() if pane > first] if state else []

    def _trim(self, state: dict[int, Any], newest: int) -> None:
        floor = newest - self.span
        while (oldest := next(iter(state))) <= floor:
            del state[oldest]


def _insert(state: dict[int, Any], pane: int, folded: Any) -> None:
    """Put an earlier pane in its place."""
    panes = sorted([*state.items(), (pane, folded)], key=itemgetter(0))
    state.clear()
    state.update(panes)


def finite(value: float | None) -> float | None:
    """A number as JSON can have it: what left the finite doubles is null."""
    if value is None:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def canonical(value: Any, kind: FieldType) -> Any:
    """The one form in which equal values are equal: integral doubles as integers, moments as their text in UTC."""
    if kind == "datetime":
        return _utc(value)
    if isinstance(value, float) and value.is_integer() and -(2.0**63) <= value < 2.0**63:
        return int(value)
    return value


def _utc(text: str) -> str:
    try:
        return rfc3339(parse_timestamp_us(text, "datetime"))
    except BadRequest:
        # A leap second is a time without a number.
        return text
