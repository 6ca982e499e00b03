"""What ``summary_parts`` reads of an event that is a summary itself: parts that are no search fields.

A whole number above zero is a count, with a sum, a least and a greatest number beside it. A count of zero needs nothing
else. Whatever falls short of that is no summary. A histogram is an object of labels and counts; entries that are none
are passed over, and an event may have none at all.

Each part has a column of its own in the columns of events, null where an event has no summary.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from headrace.query.search import Search, SummaryParts
from headrace.query.values import resolve
from headrace.reduce.histogram import exponent

TYPES = {
    "count": pa.int64(),
    "sum": pa.float64(),
    "min": pa.float64(),
    "max": pa.float64(),
    "histogram": pa.map_(pa.int32(), pa.int64()),
}

#: Greater ones are not whole numbers in every JSON reader.
GREATEST_COUNT = 2**53

_LABEL = re.compile(r"[0-9]{1,400}(?:\.[0-9]{1,400})?")


class SummaryValues(msgspec.Struct, frozen=True):
    """A summary as an event gives it."""

    count: int
    sum: float | None = None
    min: float | None = None
    max: float | None = None
    histogram: dict[int, int] | None = None


def column(rollup: str, measure: str, part: str) -> str:
    """The column of one part; a colon is in no name, so no two parts share one."""
    return f"p.{rollup}:{measure}.{part}"


def columns(search: Search) -> dict[str, pa.DataType]:
    """The columns that the measures of a stream need besides its fields."""
    return {
        column(rollup.name, name, part): kind
        for rollup in search.rollups.values()
        for name, measure in rollup.measures.items()
        if isinstance(measure, SummaryParts)
        for part, kind in TYPES.items()
    }


def column_values(search: Search, document: Any) -> dict[str, Any]:
    """What an event puts into those columns."""
    by_column: dict[str, Any] = {}
    for rollup in search.rollups.values():
        for name, measure in rollup.measures.items():
            if isinstance(measure, SummaryParts):
                summary = read_summary(measure, document)
                by_column |= {column(rollup.name, name, part): getattr(summary, part, None) for part in TYPES}
    return by_column


def read_summary(measure: SummaryParts, document: Any) -> SummaryValues | None:
    """The summary that an event is, or None."""
    pointers = (measure.count, measure.sum, measure.min, measure.max)
    count, total, least, greatest = (resolve(document, pointer)[1] for pointer in pointers)
    histogram = resolve(document, measure.histogram)[1] if measure.histogram is not None else None
    return read_parts(count, total, least, greatest, histogram)


def read_parts(count: Any, total: Any, least: Any, greatest: Any, histogram: Any = None) -> SummaryValues | None:
    """The summary that these JSON values are, or None."""
    many = _count(count)
    if many == 0:
        return SummaryValues(0)
    summary = SummaryValues(many or 0, _number(total), _number(least), _number(greatest), _histogram(histogram))
    return None if many is None or None in (summary.sum, summary.min, summary.max) else summary


def _count(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number.is_integer() and 0 <= number <= GREATEST_COUNT else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number + 0.0 if math.isfinite(number) else None


def _histogram(value: Any) -> dict[int, int] | None:
    counts: dict[int, int] = {}
    for label, label_count in value.items() if isinstance(value, dict) else ():
        count = _count(label_count)
        if count and _LABEL.fullmatch(label) and math.isfinite(float(label)):
            at = exponent(float(label))
            counts[at] = counts.get(at, 0) + count
    return dict(sorted(counts.items())) or None
