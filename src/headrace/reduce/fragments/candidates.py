"""Candidates: what fragments would make of a schema, with the evidence, and every reason why they do not.

A candidate that is promoted is none any more: the field that it adds takes the values that justified it, and whatever
else of them enough converters could be found for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from headrace.reduce.fragments.rules import (
    DECIDED,
    MIXED,
    NO_CONVERTER,
    NO_VALUES,
    TOO_FEW,
    TOO_FEW_SOURCES,
    Reason,
    Settings,
    Thresholds,
    is_telling,
    may_be_moment,
    of_name,
)
from headrace.reduce.fragments.shapes import SHAPES, accepts, converter_for, converters, fits
from headrace.reduce.fragments.stats import Stats
from headrace.reduce.fragments.stats import estimate_count as differing
from headrace.schema.entity.nodes import DEFAULT_POLICY, TYPES, Converter, Field, Schema, Type
from headrace.schema.entity.update import Addition, ConverterAddition, TypeUpdate

_WEIGHTS = {"share": 0.5, "format": 0.25, "name": 0.15, "number": 0.1}
#: So many values and more are as good as any.
_MANY = 10


class Proposal(NamedTuple):
    """A field and the shapes of the values that justify it."""

    field: Field
    shapes: tuple[str, ...]


class Missing(NamedTuple):
    """The shapes that a field does not take, and among them those that converters would make it take."""

    shapes: tuple[str, ...]
    convertible: tuple[str, ...]
    functions: frozenset[str]


def propose_field(name: str, stats: Stats, thresholds: Thresholds) -> Proposal:
    """The field that most values mean, and where that is too few, a text if that many are texts."""
    meanings = _meanings(name, stats)
    votes = Counter[Type]()
    for shape, meaning in meanings.items():
        votes[meaning] += stats.shapes[shape].count
    kind = max(TYPES, key=lambda each: votes[each])
    shapes = tuple(shape for shape, meaning in meanings.items() if meaning == kind)
    texts = tuple(shape for shape in meanings if SHAPES[shape].kind == "string")
    if not thresholds.is_share(votes[kind], stats.frequency) and thresholds.is_share(
        count_values(stats, texts), stats.frequency
    ):
        kind, shapes = "string", texts
    needed = {converter_for(kind, shape) for shape in shapes if not fits(kind, shape)} - {None}
    return Proposal(Field(kind, converters=converters({name for name in needed if name is not None})), shapes)


def missing(field: Field, stats: Stats) -> Missing:
    """What a field does not take of the values that were given for it."""
    shapes = tuple(shape for shape in stats.shapes if not accepts(field, shape))
    converter_by_shape = {shape: name for shape in shapes if (name := converter_for(field.type, shape)) is not None}
    return Missing(shapes, tuple(converter_by_shape), frozenset(converter_by_shape.values()))


def count_values(stats: Stats, shapes: tuple[str, ...]) -> int:
    """How many values have one of these shapes."""
    return sum(stats.shapes[shape].count for shape in shapes)


def confidence(name: str, type_share: float, format_share: float, number: int) -> float:
    """A score of evidence from 0 to 1: higher for one type, certain values, a telling name and many occurrences."""
    parts = {
        "share": type_share,
        "format": format_share,
        "name": 1.0 if is_telling(name) else 0.5,
        "number": min(number / _MANY, 1.0),
    }
    return round(sum(_WEIGHTS[part] * worth for part, worth in parts.items()), 4)


def _meanings(name: str, stats: Stats) -> dict[str, Type]:
    """What the shapes of values mean beside each other; in an order that depends on nothing else."""
    meanings: dict[str, Type] = {shape: SHAPES[shape].meaning for shape in SHAPES if shape in stats.shapes}
    numbers = [shape for shape in meanings if SHAPES[shape].kind == "number"]
    if not may_be_moment(name) or any(meanings[shape] == "number" for shape in numbers):
        meanings |= dict.fromkeys(numbers, "number")
    if "bit" in meanings:
        votes = Counter[Type]()
        for shape, meaning in meanings.items():
            votes[meaning] += stats.shapes[shape].count if shape != "bit" else 0
        meanings["bit"] = "number" if votes["number"] > votes["boolean"] else "boolean"
    return meanings


Change = Literal["add_field", "add_converters"]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A proposed change, with its evidence: a field to add, or converters for an existing field.

    ``converters`` are those to add; ``types`` counts the values by what each seems to mean.
    """

    fragment_key: str
    change: Change
    field_type: Type | None
    converters: tuple[Converter, ...]
    frequency: int
    type_share: float
    types: dict[str, int]
    sources: int
    users: int
    entities: int
    confidence: float
    first_seen_us: int
    last_seen_us: int
    examples: tuple[Any, ...]
    reasons: tuple[Reason, ...]

    @property
    def promotable(self) -> bool:
        """Whether there are no objections to it."""
        return not self.reasons


def candidates(stats: Mapping[str, Stats], schema: Schema, settings: Settings) -> list[Candidate]:
    """What the fragments of a type, of all users or of one, would change in a schema; the most frequent keys first."""
    fields = schema.schema_definition.fields
    changes = [
        candidate
        for key, held in stats.items()
        if (candidate := _candidate(key, held, fields.get(key), schema, settings)) is not None
    ]
    return sorted(changes, key=lambda candidate: (-candidate.frequency, candidate.fragment_key))


def update_of(candidates: Iterable[Candidate]) -> TypeUpdate:
    """The schema update for all candidates without objections."""
    fields, more = [], []
    for candidate in candidates:
        if not candidate.promotable or candidate.field_type is None:
            continue
        if candidate.change == "add_field":
            field = Field(candidate.field_type, converters=candidate.converters)
            fields.append(Addition(candidate.fragment_key, field, DEFAULT_POLICY))
        else:
            more += [ConverterAddition(candidate.fragment_key, converter) for converter in candidate.converters]
    return TypeUpdate(fields_to_add=tuple(fields), converters_to_add=tuple(more))


class _Evidence(NamedTuple):
    """The shapes of the values that support a change, and of all values of the key."""

    shapes: tuple[str, ...]
    of: tuple[str, ...]
    field_type: Type | None = None
    converters: tuple[Converter, ...] = ()
    change: Change = "add_field"


def _candidate(key: str, stats: Stats, field: Field | None, schema: Schema, settings: Settings) -> Candidate | None:
    thresholds = settings.thresholds(stats)
    evidence = _field(key, stats, thresholds) if field is None else _more_converters(stats, field)
    if not evidence.of and not (field is None and stats.nulls):
        return None
    refused = [*of_name(key, schema, settings.user_id, settings.banned), *_weakness(stats, evidence, thresholds)]
    if key in settings.decided:
        refused.append(Reason(DECIDED, "this has been decided before"))
    return _make_candidate(key, stats, evidence, tuple(refused))


def _field(key: str, stats: Stats, thresholds: Thresholds) -> _Evidence:
    """The field that the values of an unknown key would make."""
    if not stats.frequency:
        return _Evidence((), ())
    field, shapes = propose_field(key, stats, thresholds)
    lacks = missing(field, stats)
    functions = {converter.function for converter in field.converters}
    if lacks.shapes and not any(_shortfalls(stats, lacks.convertible, lacks.shapes, thresholds)):
        functions |= lacks.functions
    return _Evidence(shapes, tuple(stats.shapes), field.type, converters(functions))


def _more_converters(stats: Stats, field: Field) -> _Evidence:
    """The converters with which a field would take more of what was given for it."""
    lacks = missing(field, stats)
    return _Evidence(lacks.convertible, lacks.shapes, field.type, converters(set(lacks.functions)), "add_converters")


def _weakness(stats: Stats, evidence: _Evidence, thresholds: Thresholds) -> Iterator[Reason]:
    """The objections to a change that its evidence gives."""
    if not evidence.of:
        yield Reason(NO_VALUES, "nothing but null was given")
    elif not evidence.shapes:
        yield Reason(NO_CONVERTER, f"nothing makes a {evidence.field_type} of these values")
    else:
        yield from _shortfalls(stats, evidence.shapes, evidence.of, thresholds)


def _shortfalls(stats: Stats, shapes: tuple[str, ...], of: tuple[str, ...], thresholds: Thresholds) -> Iterator[Reason]:
    """What the values with these shapes fall short of, among those with the others."""
    number, total, sources = count_values(stats, shapes), count_values(stats, of), stats.sources(shapes)
    if total < thresholds.occurrences:
        yield Reason(TOO_FEW, f"{total} values, and {thresholds.occurrences} are asked for")
    if sources < thresholds.sources:
        yield Reason(TOO_FEW_SOURCES, f"{sources} sources, and {thresholds.sources} are asked for")
    if not thresholds.is_share(number, total):
        yield Reason(MIXED, f"{number} of {total} values are alike, and {thresholds.min_share:.0%} are asked for")


def _make_candidate(key: str, stats: Stats, evidence: _Evidence, reasons: tuple[Reason, ...]) -> Candidate:
    """The candidate with its evidence."""
    number, total, kind = count_values(stats, evidence.shapes), count_values(stats, evidence.of), evidence.field_type
    plain = count_values(stats, tuple(shape for shape in evidence.shapes if kind is not None and fits(kind, shape)))
    type_share = number / total if total else 0.0
    # Values that must be converted are half as sure.
    sure = (number + plain) / (2 * number) if number else 0.0
    return Candidate(
        fragment_key=key,
        change=evidence.change,
        field_type=kind,
        converters=evidence.converters,
        frequency=total,
        type_share=round(type_share, 4),
        types=_types(stats),
        sources=stats.sources(evidence.shapes),
        users=differing(stats.users),
        entities=differing(stats.entities),
        confidence=confidence(key, type_share, sure, total),
        first_seen_us=stats.first_us,
        last_seen_us=stats.last_us,
        examples=tuple(stats.examples[digest] for digest in sorted(stats.examples)),
        reasons=reasons,
    )


def _types(stats: Stats) -> dict[str, int]:
    counts: dict[str, int] = {}
    for shape in SHAPES:
        if shape in stats.shapes:
            meaning = SHAPES[shape].meaning
            counts[meaning] = counts.get(meaning, 0) + stats.shapes[shape].count
    return counts
