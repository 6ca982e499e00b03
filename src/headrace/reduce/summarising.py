"""Summaries: count, sum, least and greatest, and the histogram where it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.query.search import Field, Kind, SummaryParts
from headrace.query.sql import identifier
from headrace.query.values import values
from headrace.reduce import histogram, parts
from headrace.reduce.reducer import NOTHING, Expression, number
from headrace.reduce.source import Source
from headrace.reduce.state import MOST, State


class Summarising:
    """Count, sum, least and greatest of the events that have exactly one number."""

    def __init__(self, field: Field, *, has_histogram: bool) -> None:
        self._field = field
        self._has_histogram = has_histogram
        self._is_integer = field.kind is Kind.INTEGER

    def lift(self, document: Any) -> State:
        """The summary of one number."""
        found = values(self._field, document)
        if len(found) != 1:
            return NOTHING
        given: Any = found[0]
        counted = {histogram.exponent(given): 1} if self._has_histogram else None
        if self._is_integer:
            return State(count=1, sum_int=given, min_int=given, max_int=given, histogram=counted)
        return State(count=1, sum=given, min=given, max=given, histogram=counted)

    def columns(self, source: Source) -> dict[str, Expression]:
        """The components, integers exactly."""
        value = source.one(self._field.name)
        kind = "_int" if self._is_integer else ""
        total = f"sum({value})::DECIMAL(38, 0)" if self._is_integer else f"sum({value})"
        made = {
            "count": f"count({value})",
            f"sum{kind}": total,
            f"min{kind}": f"min({value})",
            f"max{kind}": f"max({value})",
        }
        if self._has_histogram:
            bucket = histogram.exponent_of_integer if self._is_integer else histogram.exponent_of_float
            counted = f"histogram({bucket(value)}) FILTER ({value} IS NOT NULL)"
            made["histogram"] = f"({counted})::MAP(INTEGER, BIGINT)"
        return {name: Expression(sql) for name, sql in made.items()}

    def finish(self, state: State) -> dict[str, Any]:
        """The summary; percentiles are null without a histogram."""
        if self._is_integer:
            return _summary(state, state.sum_int, state.min_int, state.max_int, has_histogram=self._has_histogram)
        return _summary(state, state.sum, state.min, state.max, has_histogram=self._has_histogram)


class SummarisingParts:
    """A summary of the events that are summaries themselves."""

    def __init__(self, rollup: str, name: str, measure: SummaryParts) -> None:
        self._rollup = rollup
        self._name = name
        self._measure = measure

    def lift(self, document: Any) -> State:
        """The summary that the event is."""
        given = parts.read(self._measure, document)
        if given is None:
            return NOTHING
        return State(count=given.count, sum=given.sum, min=given.min, max=given.max, histogram=given.histogram)

    def columns(self, source: Source) -> dict[str, Expression]:
        """The components, from columns of their own."""
        count, total, least, greatest, counted = (
            identifier(parts.column(self._rollup, self._name, part)) for part in parts.TYPES
        )
        return {
            "count": Expression(f"least(coalesce(sum({count}), 0), {MOST})::BIGINT"),
            "sum": Expression(f"sum({total})"),
            "min": Expression(f"min({least})"),
            "max": Expression(f"max({greatest})"),
            "histogram": Expression(f"list({counted}) FILTER ({counted} IS NOT NULL)", histogram.merged),
        }

    def finish(self, state: State) -> dict[str, Any]:
        """The summary."""
        return _summary(state, state.sum, state.min, state.max, has_histogram=self._measure.histogram is not None)


def _summary(
    state: State, total: float | None, least: float | None, greatest: float | None, *, has_histogram: bool
) -> dict[str, Any]:
    count = state.count or 0
    counted: Mapping[int, int] = state.histogram or {}
    answer = {
        "count": count,
        "sum": number(total or 0),
        "min": number(least),
        "max": number(greatest),
        "avg": _average(total, count),
        **histogram.percentiles(counted),
    }
    return {**answer, "histogram": histogram.labelled(counted)} if has_histogram else answer


def _average(total: float | None, count: int) -> float | None:
    try:
        return number((total or 0) / count) if count else None
    except OverflowError:
        return None
