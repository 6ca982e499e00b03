"""Event time: when an event happened, as a field of it says, and whether it is late or lies ahead.

Comparisons are made in microseconds, nanoseconds rounded down. Folding gets milliseconds rounded down, or in their
place what keeps an event from being folded: `LATE_MS` for one that is counted as late, `UNFIT_MS` for one that has no
usable time. Sources without event time fold by append time, and no event of theirs is either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.schema.descriptor.nodes import Event
from headrace.types import MAX_AHEAD_US

#: In place of a time: the event is late, or has no time, or one that lies too far ahead.
LATE_MS = -(2**62)
UNFIT_MS = LATE_MS - 1
#: By how much events that are folded may be ahead of now: windows keep panes that long after later ones.
AHEAD_MS = MAX_AHEAD_US // 1000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_parse = datetime.fromisoformat
#: The first and the last moment that a datetime can be, in microseconds.
LEAST_US, GREATEST_US = -62_135_683_140_000_000, 253_402_387_139_999_999
#: How many of a unit are a microsecond, or how many microseconds it has.
_MULTIPLIED = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
_NANOS = 1_000
#: The first and the last second that a datetime in UTC can be.
_LEAST_S, _GREATEST_S = -62_135_596_800, 253_402_300_799
_LONG_FRACTION = r"(\.\d{6})\d+"

Micros = NDArray[np.int64]


class EventTime:
    """Reads the event time of the events of one source."""

    def __init__(self, event: Event) -> None:
        """The source must have a timestamp_field."""
        assert event.timestamp_field is not None
        self.field = event.timestamp_field
        self.unit = event.timestamp_unit
        self.late_after_us = None if event.late_after_ms is None else event.late_after_ms * 1000

    def micros(self, event: Mapping[str, Any]) -> int | None:
        """The event time of an event; None where it has none that can be."""
        value = event.get(self.field)
        if self.unit is None:
            return _micros_of_text(value)
        if not isinstance(value, int | float) or value != int(value):
            return None
        micros = int(value) // _NANOS if self.unit == "ns" else int(value) * _MULTIPLIED[self.unit]
        return micros if LEAST_US <= micros <= GREATEST_US else None

    def bounds(self, least_us: int | None, greatest_us: int | None) -> tuple[Any, Any]:
        """Values between which a field has times within these bounds for certain; without a bound any that can be.

        They are of the type of the field: integers of the unit, or datetimes of whole seconds.
        """
        least_us = LEAST_US if least_us is None else least_us
        greatest_us = GREATEST_US if greatest_us is None else greatest_us
        if self.unit is None:
            least, greatest = -(-least_us // 1_000_000), greatest_us // 1_000_000
            bounded = max(least, _LEAST_S), min(greatest, _GREATEST_S)
            return _EPOCH + timedelta(seconds=bounded[0]), _EPOCH + timedelta(seconds=bounded[1])
        if self.unit == "ns":
            return least_us * _NANOS, greatest_us * _NANOS
        factor = _MULTIPLIED[self.unit]
        return -(-least_us // factor), greatest_us // factor

    def is_late(self, event_us: int, append_us: int) -> bool:
        """Whether an event is appended too late to count."""
        return self.late_after_us is not None and append_us - event_us > self.late_after_us

    def folded_ms(self, event: Mapping[str, Any], append_us: int) -> int:
        """The time by which an event is folded, or `LATE_MS` or `UNFIT_MS`."""
        if self.unit is None:
            # As `micros` has it; every event that is pushed comes through here, and a call takes a tenth of the time.
            try:
                since = _parse(event[self.field]) - _EPOCH
            except (KeyError, TypeError, ValueError):
                return UNFIT_MS
            event_us: int | None = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        else:
            event_us = self.micros(event)
        if event_us is None or event_us - append_us > MAX_AHEAD_US:
            return UNFIT_MS
        late_after_us = self.late_after_us
        return LATE_MS if late_after_us is not None and append_us - event_us > late_after_us else event_us // 1000

    def micros_of_column(self, values: pa.Array) -> pa.Array:
        """The event times of many events, null where one has none, given the field as a column."""
        if self.unit is None:
            return _micros_of_texts(values)
        numbers = values.cast(pa.int64())
        if self.unit == "ns":
            filled: Micros = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
            numbers = pa.array(filled // _NANOS, mask=numbers.is_null().to_numpy(zero_copy_only=False))
        else:
            factor = _MULTIPLIED[self.unit]
            numbers = _null_outside(numbers, LEAST_US // factor, GREATEST_US // factor)
            numbers = pc.multiply(numbers, factor)
        return _null_outside(numbers, LEAST_US, GREATEST_US)

    def folded_ms_of_column(self, values: pa.Array, append_us: Sequence[int]) -> Micros:
        """The times by which many events are folded, or `LATE_MS` or `UNFIT_MS`."""
        times = self.micros_of_column(values)
        is_valid = times.is_valid().to_numpy(zero_copy_only=False)
        event_us: Micros = pc.fill_null(times, 0).to_numpy(zero_copy_only=False)
        appended: Micros = np.asarray(append_us, np.int64)
        folded: Micros = event_us // 1000
        if self.late_after_us is not None:
            folded = np.where(appended - event_us > self.late_after_us, LATE_MS, folded)
        return np.where(is_valid & (event_us - appended <= MAX_AHEAD_US), folded, UNFIT_MS)


def event_time_of(event: Event) -> EventTime | None:
    """How the event time of a source is read; None where its events have none."""
    return None if event.timestamp_field is None else EventTime(event)


def _micros_of_text(text: Any) -> int | None:
    """An RFC 3339 time; digits after the sixth of its fraction are cut off, which rounds it down.

    None for what is none: an event may be older than the type that its field has now.
    """
    try:
        since = _parse(text) - _EPOCH
    except (TypeError, ValueError):
        return None
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _micros_of_texts(texts: pa.Array) -> pa.Array:
    try:
        return texts.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    except pa.ArrowInvalid:
        pass
    try:
        short = pc.replace_substring_regex(texts, _LONG_FRACTION, r"\1")
        return short.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    except pa.ArrowInvalid:
        return pa.array(map(_micros_of_text, texts.to_pylist()), pa.int64())


def _null_outside(numbers: pa.Array, least: int, greatest: int) -> pa.Array:
    is_inside = pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, greatest))
    return pc.if_else(is_inside, numbers, pa.scalar(None, pa.int64()))
