"""Keywords that put schemas together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.schema.containment.check import Check, Gap, Place, Rule
from headrace.schema.containment.words import described
from headrace.schema.shape.meet import apart
from headrace.schema.shape.model import Alternative, Boolean, Member, Number, Object, Shape, Text, narrowed
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Source

_FEW = 16


def reference_rule(check: Check, one: Alternative, value: Any, source: Source, place: Place) -> Iterator[Gap]:
    """``$ref``."""
    if source.root.resolve(value) is None:
        yield place.gap("the reference cannot be followed")
    else:
        yield from check.alternative(one, source.at({"$ref": value}), place)


def all_rule(check: Check, one: Alternative, value: Any, source: Source, place: Place) -> Iterator[Gap]:
    """``allOf``."""
    for position, schema in enumerate(value):
        yield from check.alternative(one, source.at(schema), place.under(str(position)))


def any_rule(check: Check, one: Alternative, value: Any, source: Source, place: Place) -> Iterator[Gap]:
    """``anyOf``: each part of the values in one of the branches."""
    for part in _parts(one, value):
        if not any(check.holds(part, source.at(schema), place) for schema in value):
            yield place.gap(
                f"the new schema wants one of {len(value)} alternatives, and it may fit none", described(part)
            )


def one_rule(check: Check, one: Alternative, value: Any, source: Source, place: Place) -> Iterator[Gap]:
    """``oneOf``: each part of the values in one of the branches and outside all others."""
    branches = [source.at(schema) for schema in value]
    for part in _parts(one, value):
        fitting = [branch for branch in branches if not apart(part, shape_of(branch))]
        if len(fitting) != 1 or not check.holds(part, fitting[0], place):
            yield place.gap(f"the new schema wants exactly one of {len(value)} alternatives", described(part))


def _parts(one: Alternative, branches: list[Any]) -> list[Alternative]:
    """The values one by one where they are few; objects by a member that the branches tell apart."""
    match one:
        case Boolean(values=values):
            return [narrowed(one, values=frozenset((value,))) for value in sorted(values)]
        case Number(values=frozenset() as texts) | Text(values=frozenset() as texts) if len(texts) <= _FEW:
            return [narrowed(one, values=frozenset((text,))) for text in sorted(texts)]
        case Object(members=members):
            for name, known in members.items():
                told = any(isinstance(branch, dict) and name in branch.get("properties", {}) for branch in branches)
                cases = _cases(known.shape) if known.required and told else []
                if len(cases) > 1:
                    return [narrowed(one, members={**members, name: Member(Shape((case,)), True)}) for case in cases]
    return [one]


def _cases(shape: Shape) -> list[Alternative]:
    cases = [part for one in shape.alternatives for part in _parts(one, [])]
    return cases if len(cases) <= _FEW else []


def not_rule(check: Check, one: Alternative, value: Any, source: Source, place: Place) -> Iterator[Gap]:
    """``not``."""
    if not apart(one, shape_of(source.at(value))):
        yield place.gap("the new schema excludes such values", described(one))


def if_rule(check: Check, one: Alternative, value: Any, source: Source, place: Place) -> Iterator[Gap]:
    """``if``, ``then``, ``else``: by showing which one counts, or both."""
    keywords = source.keywords()
    then, otherwise = source.at(keywords.get("then", True)), source.at(keywords.get("else", True))
    for part in _parts(one, [value]):
        if apart(part, shape_of(source.at(value))):
            yield from check.alternative(part, otherwise, place.under("else"))
        elif check.holds(part, source.at(value), place):
            yield from check.alternative(part, then, place.under("then"))
        else:
            yield from check.alternative(part, then, place.under("then"))
            yield from check.alternative(part, otherwise, place.under("else"))


RULES: dict[str, Rule] = {
    "$ref": reference_rule,
    "allOf": all_rule,
    "anyOf": any_rule,
    "oneOf": one_rule,
    "not": not_rule,
    "if": if_rule,
}
