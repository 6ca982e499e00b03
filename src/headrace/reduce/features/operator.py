"""What a feature operator is: a state per key, folded event by event, merged by ranges, finished at a moment.

A state is made of plain values (numbers, strings, bytes, lists, dicts) so that it packs as it is; ``None`` is the
state of no events. ``fold`` may change the state it is given. ``merge`` changes neither of its arguments, but what it
gives may share parts with both: fold on only into states that came from ``fold`` or were unpacked.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from headrace.errors import BadRequest
from headrace.schema.descriptor.nodes import Type
from headrace.types import parse_timestamp_us, rfc3339


class Operator(ABC):
    """A monoid over the events of one key: associative over adjacent ranges."""

    #: Whether parts may also be merged in any order.
    commutative: ClassVar[bool] = False
    #: Whether events that do not match count for something.
    takes_all: ClassVar[bool] = False
    #: The fields without which an event does not count.
    fields: tuple[str, ...] = ()

    @abstractmethod
    def fold(self, state: Any, at_ms: int, seq: int, row: Mapping[str, Any], matched: bool) -> Any:
        """The state with one more event, later than all others; ``matched`` says whether its ``where`` holds."""

    def merge(self, left: Any, right: Any) -> Any:
        """The state of two adjacent ranges, the earlier one first."""
        if left is None or right is None:
            return right if left is None else left
        return self.merge_both(left, right)

    def merge_all(self, states: Sequence[Any]) -> Any:
        """The state of several adjacent ranges, earliest first."""
        return functools.reduce(self.merge, states, None)

    @abstractmethod
    def merge_both(self, left: Any, right: Any) -> Any:
        """The state of two adjacent ranges that both have one."""

    @abstractmethod
    def finish(self, state: Any, now_ms: int) -> Any:
        """The answer at a moment that is not before the last event, as a JSON value."""


class OfEvents(Operator):
    """An operator over the times of the events that match."""

    def fold(self, state: Any, at_ms: int, seq: int, row: Mapping[str, Any], matched: bool) -> Any:
        """The state with one more event if it matches."""
        return self.add(state, at_ms) if matched else state

    @abstractmethod
    def add(self, state: Any, at_ms: int) -> Any:
        """The state with one more event."""


class OfValues(Operator):
    """An operator over the values that a field has in the events that match; nulls are passed over."""

    def __init__(self, field: str, kind: Type) -> None:
        self.fields = (field,)
        self._field = field
        self.kind = kind

    def fold(self, state: Any, at_ms: int, seq: int, row: Mapping[str, Any], matched: bool) -> Any:
        """The state with one more value if the event matches and has one."""
        if not matched or (value := row.get(self._field)) is None:
            return state
        return self.add(state, value, at_ms, seq)

    @abstractmethod
    def add(self, state: Any, value: Any, at_ms: int, seq: int) -> Any:
        """The state with one more value."""

    def render(self, value: Any) -> Any:
        """A value of the field as its type writes it: 3 for an f64 is 3.0, 3.0 for an i64 is 3."""
        return render_value(value, self.kind)


def render_value(value: Any, kind: Type) -> Any:
    """A value as its type writes it."""
    if value is None:
        return None
    if kind == "f64":
        return finite(value)
    return int(value) if kind == "i64" else value


def finite(value: float | None) -> float | None:
    """A number as JSON can have it: what left the finite doubles is null."""
    if value is None:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def canonical(value: Any, kind: Type) -> Any:
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
