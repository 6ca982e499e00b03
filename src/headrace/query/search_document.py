"""Reads the search document of a stream: its fields, aliases, default fields and rollups."""

from __future__ import annotations

import copy
from collections.abc import Collection
from reprlib import repr as shown
from typing import Any

import msgspec

from headrace.errors import BadRequest
from headrace.operators.catalogue import DECLARATIONS, MEASURES
from headrace.operators.declaration import NUMBERS as NUMBER_TYPES
from headrace.operators.declaration import REQUIRED
from headrace.query.check import check
from headrace.query.document_reader import Part
from headrace.query.search import (
    FIELD_TYPES,
    NUMBERS,
    OWN_KINDS,
    STRINGS,
    Binding,
    Count,
    DefaultField,
    Distinct,
    Field,
    Interval,
    Kind,
    Measure,
    OperatorMeasure,
    Quantiles,
    Rollup,
    Search,
    Summary,
    SummaryParts,
)
from headrace.query.syntax import QuerySyntaxError, parse
from headrace.query.tree import Node
from headrace.schema.problem import Problem
from headrace.types import parse_duration_us

CAPABILITIES = ("exact", "prefix", "column", "exists", "sortable", "aggregatable", "contains", "positions")
NORMALIZERS = ("identity_v1", "lowercase_v1")
ANALYZERS = ("unicode_word_v1",)

_KEYS = frozenset({"kind", "bindings", "normalizer", "analyzer", *CAPABILITIES})
_NOT_TYPED = frozenset({"prefix", "contains", "positions", "normalizer"})
_REFUSED = {
    Kind.KEYWORD: frozenset({"positions", "analyzer"}),
    Kind.TEXT: frozenset({"column", "sortable", "aggregatable"}),
    Kind.INTEGER: _NOT_TYPED,
    Kind.FLOAT: _NOT_TYPED,
    Kind.DATE: _NOT_TYPED,
    Kind.BOOL: _NOT_TYPED,
}


class DeclaredFields(dict[str, Field | None]):
    """The declared fields by name; None stands for one that is wrong, so that uses of it are not blamed too."""

    def named_by(self, part: Part) -> Field | None:
        """The field whose name stands in another part of the document."""
        name = part.text()
        if name is not None and name not in self:
            part.note(f"{shown(name)} is no declared field")
        return None if name is None else self.get(name)


def read_declaration(part: Part, current_version: int) -> DeclaredFields:
    """Every declared field."""
    members = part.named()
    if isinstance(part.value, dict) and not members:
        part.note("must declare at least one field")
    return DeclaredFields((name, _field(name, field, current_version)) for name, field in members)


def _field(name: str, part: Part, current_version: int) -> Field | None:
    if not part.knows(_KEYS):
        return None
    kind = part["kind"].one_of([*Kind])
    bindings = _bindings(part["bindings"], current_version)
    normalizer = part["normalizer"].one_of(NORMALIZERS) if part["normalizer"].is_present else None
    analyzer = part["analyzer"].one_of(ANALYZERS) if part["analyzer"].is_present else None
    flags = {capability: part[capability].flag() for capability in CAPABILITIES}
    if kind is None:
        return None
    options = {"normalizer": normalizer, "analyzer": analyzer, **flags}
    for key in sorted(_REFUSED[Kind(kind)]):
        if options[key]:
            part[key].note(f"is not supported for {kind} fields")
    if kind == Kind.TEXT and not part["analyzer"].is_present:
        part["analyzer"].note("is required for text fields")
    return Field(name=name, kind=Kind(kind), bindings=bindings, lowercase=normalizer == "lowercase_v1", **flags)


def _bindings(part: Part, current_version: int) -> tuple[Binding, ...]:
    elements = part.elements()
    if isinstance(part.value, list) and not elements:
        part.note("must hold at least one binding")
    bindings: dict[int, Binding] = {}
    for element in elements:
        if not element.knows({"version", "jsonPointer"}):
            continue
        version, pointer = element["version"].integer(), element["jsonPointer"].pointer()
        if version is not None and not 1 <= version <= current_version:
            element["version"].note(f"must be a version of the schema, 1 to {current_version}")
        elif version in bindings:
            element["version"].note(f"version {version} is bound twice")
        elif version is not None:
            bindings[version] = Binding(version, pointer or ())
    return tuple(bindings[version] for version in sorted(bindings))


HISTOGRAMS = ("log2_v1",)
#: As far from 1970 as dates go.
LONGEST_MS = 8_640_000_000_000_000

_ROLLUPS_KEYS = frozenset({"timestampField", "include", "dimensions", "intervals", "measures"})
_MEASURE_KEYS = {
    **{measure.kind: {"kind", *measure.members} for measure in OWN_KINDS},
    **{name: {"kind", "include", *DECLARATIONS[name].params} - {"window", "where"} for name in sorted(MEASURES)},
}


def read_rollups(part: Part, search: Search, declared: DeclaredFields) -> dict[str, Rollup]:
    """Every rollup; ``search`` is the rest of the document."""
    if not part.is_present:
        return {}
    reader = _RollupReader(search, declared)
    rollups = {name: reader.rollup(name, rollup) for name, rollup in part.named()}
    return {name: rollup for name, rollup in rollups.items() if rollup}


class _RollupReader:
    """Reads rollups against the fields of one document."""

    def __init__(self, search: Search, declared: DeclaredFields) -> None:
        self._search = search
        self._declared = declared

    def rollup(self, name: str, part: Part) -> Rollup | None:
        if not part.knows(_ROLLUPS_KEYS):
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
        if not part.is_present:
            return self._search.primary_timestamp
        field = self._declared.named_by(part)
        if field and field.kind is not Kind.DATE:
            part.note(f"{field.name} is no date field")
        return field.name if field else ""

    def _dimensions(self, part: Part) -> tuple[str, ...]:
        names: list[str] = []
        for element in part.elements() if part.is_present else ():
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
        text = part.text() if part.is_present else None
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
        measures = {name: self._measure(measure) for name, measure in members}
        return {name: measure for name, measure in measures.items() if measure}

    def _measure(self, part: Part) -> Measure | None:
        kind = part["kind"].one_of(_MEASURE_KEYS) if part.is_object() else None
        if kind is None or not part.knows(_MEASURE_KEYS[kind]):
            return None
        match kind:
            case "count":
                return Count(self._include(part["include"]))
            case "summary":
                field = self._measured_field(part["field"], NUMBERS)
                histogram = part["histogram"]
                return Summary(field, histogram.is_present and histogram.one_of(HISTOGRAMS) is not None)
            case "quantiles":
                return Quantiles(self._measured_field(part["field"], NUMBERS))
            case "distinct":
                return Distinct(self._measured_field(part["field"], frozenset(Kind) - {Kind.TEXT}))
            case "summary_parts":
                return _summary_parts(part)
        return self._operator_measure(kind, part)

    def _operator_measure(self, name: str, part: Part) -> Measure:
        params: dict[str, Any] = {}
        for key, parameter in DECLARATIONS[name].params.items():
            if parameter.kind == "where" or key == "window":
                continue
            if parameter.kind == "field":
                kinds = NUMBERS if parameter.types == NUMBER_TYPES else frozenset(FIELD_TYPES)
                params[key] = self._measured_field(part[key], kinds)
            elif part[key].is_present or parameter.default is REQUIRED:
                try:
                    params[key] = parameter.read(part[key].value if part[key].is_present else None)
                except ValueError as reason:
                    part[key].note(str(reason))
            elif parameter.default is not None:
                params[key] = parameter.default
        return OperatorMeasure(name, params, self._include(part["include"]))

    def _measured_field(self, part: Part, kinds: Collection[Kind]) -> str:
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
        histogram=histogram.pointer() if histogram.is_present else None,
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


#: Names that a query reads as questions. A field that was stored with one is asked by its name in quotes.
RESERVED = frozenset({"has", "contains"})

_FIELDS_KEYS = frozenset(
    {"profile", "primaryTimestampField", "defaultFields", "containsDefaultFields", "aliases", "fields", "rollups"}
)


def parse_search_document(source: Any, *, current_version: int) -> Search | list[Problem]:
    """The search configuration of a stream at this schema version, or every problem with it."""
    document = Part(source)
    if not document.knows(_FIELDS_KEYS):
        return document.problems
    declared = read_declaration(document["fields"], current_version)
    search = Search(
        document=copy.deepcopy(source),
        primary_timestamp=_primary_timestamp(document["primaryTimestampField"], declared),
        fields={name: field for name, field in declared.items() if field},
        aliases=_aliases(document["aliases"], declared),
        default_fields=_default_fields(document["defaultFields"], declared),
        contains_default_fields=_contains_default_fields(document["containsDefaultFields"], declared),
        rollups={},
        profile=document["profile"].text() if document["profile"].is_present else None,
    )
    search = msgspec.structs.replace(search, rollups=read_rollups(document["rollups"], search, declared))
    return document.problems or search


def check_reserved_names(source: Any, stored: Any) -> list[Problem]:
    """The fields and aliases of a document that are new, and whose names mean something else in a query."""
    document = Part(source)
    for member in ("fields", "aliases"):
        names = RESERVED & {*(source.get(member) or ())} - {*((stored or {}).get(member) or ())}
        for name in sorted(names):
            document[member][name].note(f"{name}: asks something else in a query; choose another name")
    return document.problems


def dump(search: Search) -> dict[str, Any]:
    """The document that gave this configuration, as it was given."""
    return copy.deepcopy(search.document)


def _primary_timestamp(part: Part, declared: DeclaredFields) -> str:
    field = declared.named_by(part)
    if field and field.kind is not Kind.DATE:
        part.note(f"{field.name} is no date field")
    return field.name if field else ""


def _aliases(part: Part, declared: DeclaredFields) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for alias, target in part.named() if part.is_present else ():
        field = declared.named_by(target)
        if alias in declared and alias != target.value:
            target.note(f"{alias!r} hides the field of that name")
        if field:
            aliases[alias] = field.name
    return aliases


def _default_fields(part: Part, declared: DeclaredFields) -> tuple[DefaultField, ...]:
    defaults: list[DefaultField] = []
    for element in part.elements() if part.is_present else ():
        if element.knows({"field", "boost"}):
            name = _string_field(element["field"], declared)
            boost = element["boost"].positive() if element["boost"].is_present else 1.0
            defaults += [DefaultField(name, boost)] if name and boost else []
    return tuple(defaults)


def _contains_default_fields(part: Part, declared: DeclaredFields) -> tuple[str, ...]:
    names = [_string_field(element, declared) for element in (part.elements() if part.is_present else ())]
    return tuple(name for name in names if name)


def _string_field(part: Part, declared: DeclaredFields) -> str | None:
    field = declared.named_by(part)
    if field and field.kind not in STRINGS:
        part.note(f"{field.name} is {field.kind}; only keyword and text fields can be default fields")
        return None
    return field.name if field else None
