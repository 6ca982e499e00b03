"""The field that fragments make: the type that they mean, with the converters that the very values need.

Texts that all look like numbers, truth values or days are those, and moments in numbers are dates, each with its
converter. Numbers of all sizes are just numbers, and so are those whose name says that they are ids or prices. Texts
of several meanings are texts.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from headrace.reduce.fragments.naming import is_telling, may_be_moment
from headrace.reduce.fragments.settings import Bar
from headrace.reduce.fragments.shapes import SHAPES, accepts, converter_for, converters, fits
from headrace.reduce.fragments.stats import Stats
from headrace.schema.entity.fields import TYPES
from headrace.schema.entity.nodes import Field, Type

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


def proposed(name: str, stats: Stats, bar: Bar) -> Proposal:
    """The field that most values mean, and where that is too few, a text if that many are texts."""
    meanings = _meanings(name, stats)
    votes = Counter[Type]()
    for shape, meaning in meanings.items():
        votes[meaning] += stats.shapes[shape].count
    kind = max(TYPES, key=lambda each: votes[each])
    shapes = tuple(shape for shape, meaning in meanings.items() if meaning == kind)
    texts = tuple(shape for shape in meanings if SHAPES[shape].kind == "string")
    if not bar.is_share(votes[kind], stats.frequency) and bar.is_share(counted(stats, texts), stats.frequency):
        kind, shapes = "string", texts
    needed = {converter_for(kind, shape) for shape in shapes if not fits(kind, shape)} - {None}
    return Proposal(Field(kind, converters=converters({name for name in needed if name is not None})), shapes)


def missing(field: Field, stats: Stats) -> Missing:
    """What a field does not take of the values that were given for it."""
    shapes = tuple(shape for shape in stats.shapes if not accepts(field, shape))
    found = {shape: name for shape in shapes if (name := converter_for(field.type, shape)) is not None}
    return Missing(shapes, tuple(found), frozenset(found.values()))


def counted(stats: Stats, shapes: tuple[str, ...]) -> int:
    """How many values have one of these shapes."""
    return sum(stats.shapes[shape].count for shape in shapes)


def confidence(name: str, share: float, format_share: float, number: int) -> float:
    """How good evidence is, 0 to 1: of one type, as the field holds it, under a name that tells, and often."""
    parts = {
        "share": share,
        "format": format_share,
        "name": 1.0 if is_telling(name) else 0.5,
        "number": min(number / _MANY, 1.0),
    }
    return round(sum(_WEIGHTS[part] * worth for part, worth in parts.items()), 4)


def _meanings(name: str, stats: Stats) -> dict[str, Type]:
    """What the shapes of values mean beside each other; in an order that depends on nothing else."""
    found: dict[str, Type] = {shape: SHAPES[shape].meaning for shape in SHAPES if shape in stats.shapes}
    numbers = [shape for shape in found if SHAPES[shape].kind == "number"]
    if not may_be_moment(name) or any(found[shape] == "number" for shape in numbers):
        found |= dict.fromkeys(numbers, "number")
    if "bit" in found:
        votes = Counter[Type]()
        for shape, meaning in found.items():
            votes[meaning] += stats.shapes[shape].count if shape != "bit" else 0
        found["bit"] = "number" if votes["number"] > votes["boolean"] else "boolean"
    return found
