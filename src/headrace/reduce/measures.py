"""The measures of a rollup, each as a reducer."""

from __future__ import annotations

from typing import Any

from headrace.query import predicate
from headrace.query.search import Count, Distinct, Measure, Quantiles, Rollup, Search, Summary, SummaryParts
from headrace.reduce.reducer import Expression, Reducer
from headrace.reduce.sketching import Distinguishing, Sketching
from headrace.reduce.source import Source
from headrace.reduce.state import State
from headrace.reduce.summarising import Summarising, SummarisingParts


def reducers(rollup: Rollup, search: Search) -> dict[str, Reducer]:
    """The reducer of every measure of a rollup."""
    return {name: _reducer(rollup.name, name, measure, search) for name, measure in sorted(rollup.measures.items())}


def _reducer(rollup: str, name: str, measure: Measure, search: Search) -> Reducer:
    match measure:
        case Count():
            return Counting(measure, search)
        case Summary():
            return Summarising(search[measure.field], has_histogram=measure.histogram)
        case SummaryParts():
            return SummarisingParts(rollup, name, measure)
        case Quantiles():
            return Sketching(search[measure.field])
        case Distinct():
            return Distinguishing(search[measure.field])
    raise TypeError(f"{measure!r} is no measure")


class Counting:
    """How many events, or how many of them match."""

    def __init__(self, measure: Count, search: Search) -> None:
        self._include = measure.include
        self._matches = predicate.compile(measure.include, search) if measure.include else lambda _: True

    def lift(self, document: Any) -> State:
        """One, or zero where the event does not match."""
        return State(count=int(self._matches(document)))

    def columns(self, source: Source) -> dict[str, Expression]:
        """The count."""
        only = f" FILTER ({source.holds(self._include)})" if self._include else ""
        return {"count": Expression(f"count(*){only}")}

    def finish(self, state: State) -> dict[str, Any]:
        """The count."""
        return {"count": state.count or 0}
