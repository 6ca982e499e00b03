"""The ``rollups`` of a search document: what is measured, per pane of time and per group."""

from __future__ import annotations

from collections.abc import Collection
from reprlib import repr as shown

from headrace.errors import BadRequest
from headrace.query.check import check
from headrace.query.declaration import Declared
from headrace.query.part import Part
from headrace.query.search import (
    NUMBERS,
    Count,
    Distinct,
    Interval,
    Kind,
    Measure,
    Quantiles,
    Rollup,
    Search,
    Summary,
    SummaryParts,
)
from headrace.query.syntax import QuerySyntaxError, parse
from headrace.query.tree import Node
from headrace.types import parse_duration_us

HISTOGRAMS = ("log2_v1",)
#: As far from 1970 as dates go.
LONGEST_MS = 8_640_000_000_000_000

_KEYS = frozenset({"timestampField", "include", "dimensions", "intervals", "measures"})
_MEASURE_KEYS = {
    "count": {"kind", "include"},
    "summary": {"kind", "field", "histogram"},
    "summary_parts": {"kind", *(f"{name}JsonPointer" for name in ("count", "sum", "min", "max", "histogram"))},
    "quantiles": {"kind", "field"},
    "distinct": {"kind", "field"},
}


def read(part: Part, search: Search, declared: Declared) -> dict[str, Rollup]:
    """Every rollup; ``search`` is the rest of the document."""
    if not part.is_given:
        return {}
    reader = _Reader(search, declared)
    found = {name: reader.rollup(name, rollup) for name, rollup in part.named()}
    return {name: rollup for name, rollup in found.items() if rollup}


class _Reader:
    """Reads rollups against the fields of one document."""

    def __init__(self, search: Search, declared: Declared) -> None:
        self._search = search
        self._declared = declared

    def rollup(self, name: str, part: Part) -> Rollup | None:
        if not part.knows(_KEYS):
            return None
        return Rollup(
            name=name,
            timestamp=self._timestamp(part["timestampField"]),
            intervals=_intervals(part["intervals"]),
            measures=self._measures(part["measures"]),
            dimensions=self._dimensions(part["dimensions"]),
            include=self._include(part["include"]),
        )

    def _timestamp(self, part: Part) -> str:
        if not part.is_given:
            return self._search.primary_timestamp
        field = self._declared.named_by(part)
        if field and field.kind is not Kind.DATE:
            part.note(f"{field.name} is no date field")
        return field.name if field else ""

    def _dimensions(self, part: Part) -> tuple[str, ...]:
        names: list[str] = []
        for element in part.elements() if part.is_given else ():
            field = self._declared.named_by(element)
            if field and field.name in names:
                element.note(f"{field.name} is listed twice")
            elif field and field.kind is Kind.TEXT:
                element.note(f"{field.name} is a text field, which has no groups")
            elif field and not field.exact:
                element.note(f"{field.name} needs exact to be a dimension")
            if field:
                names.append(field.name)
        return tuple(names)

    def _include(self, part: Part) -> Node | None:
        text = part.text() if part.is_given else None
        if text is None:
            return None
        try:
            tree = parse(text)
        except QuerySyntaxError as error:
            part.note(str(error))
            return None
        # A field that is wrong itself might be what the query asks for.
        if None not in self._declared.values():
            for fault in check(tree, self._search, mode="search"):
                part.note(str(fault))
        return tree

    def _measures(self, part: Part) -> dict[str, Measure]:
        members = part.named()
        if isinstance(part.value, dict) and not members:
            part.note("must hold at least one measure")
        found = {name: self._measure(measure) for name, measure in members}
        return {name: measure for name, measure in found.items() if measure}

    def _measure(self, part: Part) -> Measure | None:
        kind = part["kind"].one_of(_MEASURE_KEYS) if part.is_object() else None
        if kind is None or not part.knows(_MEASURE_KEYS[kind]):
            return None
        match kind:
            case "count":
                return Count(self._include(part["include"]))
            case "summary":
                field = self._measured(part["field"], NUMBERS)
                histogram = part["histogram"]
                return Summary(field, histogram.is_given and histogram.one_of(HISTOGRAMS) is not None)
            case "quantiles":
                return Quantiles(self._measured(part["field"], NUMBERS))
            case "distinct":
                return Distinct(self._measured(part["field"], frozenset(Kind) - {Kind.TEXT}))
        return _summary_parts(part)

    def _measured(self, part: Part, kinds: Collection[Kind]) -> str:
        field = self._declared.named_by(part)
        if field and field.kind not in kinds:
            part.note(f"{field.name} is of kind {field.kind}; {', '.join(sorted(kinds))} can be measured so")
        elif field and not field.aggregatable:
            part.note(f"{field.name} needs aggregatable to be measured")
        return field.name if field else ""


def _summary_parts(part: Part) -> SummaryParts:
    count, total, least, greatest = (part[f"{name}JsonPointer"].pointer() for name in ("count", "sum", "min", "max"))
    histogram = part["histogramJsonPointer"]
    return SummaryParts(
        count=count or (),
        sum=total or (),
        min=least or (),
        max=greatest or (),
        histogram=histogram.pointer() if histogram.is_given else None,
    )


def _intervals(part: Part) -> tuple[Interval, ...]:
    elements = part.elements()
    if isinstance(part.value, list) and not elements:
        part.note("must hold at least one interval")
    intervals: list[Interval] = []
    for element in elements:
        interval = _interval(element)
        if interval in intervals:
            element.note(f"{shown(element.value)} is listed twice")
        if interval:
            intervals.append(interval)
    return tuple(intervals)


def _interval(part: Part) -> Interval | None:
    text = part.text()
    if text is None:
        return None
    try:
        millis = parse_duration_us(text, "interval") // 1000
    except BadRequest:
        millis = 0
    if millis == 0:
        part.note(f"{shown(text)} is no duration above zero such as 15s, 30m or 24h")
        return None
    if millis > LONGEST_MS:
        part.note(f"{shown(text)} is longer than time itself")
        return None
    return Interval(text, millis)
