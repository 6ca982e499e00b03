"""Keywords that speak of a value as a whole, of numbers and of strings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from headrace.schema.canonical import exactly, number_of, value_text
from headrace.schema.containment.check import (
    Check,
    Gap,
    ProofLocation,
    Rule,
    describe_alternative,
    format_json,
    join_first,
)
from headrace.schema.shape.exact import alternatives_of_values, is_whole
from headrace.schema.shape.join import element, vacant
from headrace.schema.shape.model import (
    SPELLED,
    WHOLE,
    Alternative,
    Array,
    Boolean,
    Bound,
    Null,
    Number,
    Object,
    Shape,
    Text,
)
from headrace.schema.shape.source import Dialect, Source

_FEW = 64
_EXACT = 2**53
"""Beyond it a number that is spelled with an exponent is compared as the nearest double, at times."""
_LARGEST = 10**300


def kind_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``type``."""
    names = [value] if isinstance(value, str) else value
    if one.kind in names or ("integer" in names and isinstance(one, Number) and _is_integer(one, source)):
        return
    found = (
        "1.0" if isinstance(one, Number) and one.integer == WHOLE and "integer" in names else describe_alternative(one)
    )
    yield place.gap(f"the new schema wants {join_first([str(name) for name in names])}", found)


def _is_integer(number: Number, source: Source) -> bool:
    if source.root.dialect is Dialect.DRAFT4:
        return number.integer == SPELLED
    return number.integer >= WHOLE or (number.values is not None and all(map(is_whole, number.values)))


def listed_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``enum`` and ``const``."""
    values = [value] if place.schema[-1] == "const" else value
    if not _among(one, alternatives_of_values(values)):
        yield place.gap(
            f"the new schema wants {join_first([format_json(item) for item in values])}", describe_alternative(one)
        )


def _among(one: Alternative, allowed: Iterable[Alternative]) -> bool:
    """Whether all values of an alternative are among values that are listed."""
    same = [other for other in allowed if other.kind == one.kind]
    match one:
        case Null():
            return bool(same)
        case Boolean(values=values):
            return any(isinstance(other, Boolean) and values <= other.values for other in same)
        case Number() | Text():
            found = texts(one)
            known = {text for other in same if isinstance(other, Number | Text) for text in other.values or ()}
            return found is not None and found <= known
    return any(_equals(one, other) for other in same)


def texts(one: Number | Text) -> frozenset[str] | None:
    """The values of an alternative where they can be listed; integers in a short range can."""
    if one.values is not None or isinstance(one, Text) or one.integer < WHOLE:
        return one.values
    low, high = lowest(one), highest(one)
    if low is None or high is None or int(high.value) - int(low.value) >= _FEW:
        return None
    if low.value < -_EXACT or high.value > _EXACT:
        return None
    return frozenset(str(number) for number in range(int(low.value), int(high.value) + 1))


def _equals(one: Alternative, exact: Alternative) -> bool:
    """Whether the container can only be one that is known exactly."""
    if isinstance(one, Object) and isinstance(exact, Object):
        others = [known.shape for name, known in one.members.items() if name not in exact.members]
        return all(map(vacant, [*others, *one.patterns.values(), one.rest])) and all(
            name in one.members and one.members[name].required and _only(one.members[name].shape, known.shape)
            for name, known in exact.members.items()
        )
    assert isinstance(one, Array) and isinstance(exact, Array)
    return one.low == one.high == exact.high and all(
        _only(element(one, position).shape, shape) for position, shape in enumerate(exact.prefix)
    )


def _only(shape: Shape, exact: Shape) -> bool:
    return all(_among(one, exact.alternatives) for one in shape.alternatives)


def lowest(number: Number) -> Bound | None:
    """Where the numbers begin; integers after an exclusive or broken bound begin at the next integer."""
    if number.values is not None:
        return Bound(min(way for text in number.values for way in _ways(number_of(text))))
    low = number.low
    if low is None or number.integer < WHOLE:
        return low
    return Bound(math.floor(low.value) + 1 if low.exclusive else math.ceil(low.value))


def highest(number: Number) -> Bound | None:
    """Where the numbers end, likewise."""
    if number.values is not None:
        return Bound(max(way for text in number.values for way in _ways(number_of(text))))
    high = number.high
    if high is None or number.integer < WHOLE:
        return high
    return Bound(math.ceil(high.value) - 1 if high.exclusive else math.floor(high.value))


def _ways(number: int | Decimal) -> Iterator[int | Decimal]:
    """What a listed number is compared as: its digits, and the nearest double where that may count."""
    yield number
    if _EXACT < number < _LARGEST or -_LARGEST < number < -_EXACT:
        yield Decimal(float(number))


def least_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``minimum`` and ``exclusiveMinimum``."""
    limit = _limit(value, source, place)
    if not isinstance(one, Number) or limit is None:
        return
    low = lowest(one)
    if low is None or low.value < limit.value or (low.value == limit.value and limit.exclusive > low.exclusive):
        yield place.gap(f"it may be {'at' if limit.exclusive else 'below'} the new schema's limit {limit.value}")


def most_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``maximum`` and ``exclusiveMaximum``."""
    limit = _limit(value, source, place)
    if not isinstance(one, Number) or limit is None:
        return
    high = highest(one)
    if high is None or high.value > limit.value or (high.value == limit.value and limit.exclusive > high.exclusive):
        yield place.gap(f"it may be {'at' if limit.exclusive else 'above'} the new schema's limit {limit.value}")


def _limit(value: Any, source: Source, place: ProofLocation) -> Bound | None:
    """The limit a keyword sets; in draft 4 the exclusive one only says how the other is meant."""
    name = place.schema[-1]
    if isinstance(value, bool):
        return None
    strict = source.keywords().get("exclusive" + name[0].upper() + name[1:]) is True
    return Bound(exactly(value), strict or name.startswith("exclusive"))


def multiple_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``multipleOf``: by equality, or among integers."""
    if not isinstance(one, Number) or value_text(value) in one.multiples:
        return
    factors = [number_of(text) for text in one.multiples]
    if isinstance(value, int) and not isinstance(value, bool):
        if any(isinstance(factor, int) and factor % value == 0 and factor <= _EXACT for factor in factors):
            return
        if one.values is not None and all(_divides(value, number_of(text)) for text in one.values):
            return
        if value == 1 and one.integer >= WHOLE:
            return
    yield place.gap(f"it may be no multiple of {value}")


def _divides(value: int, number: int | Decimal) -> bool:
    return isinstance(number, int) and number % value == 0


def length_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``minLength`` and ``maxLength``."""
    if not isinstance(one, Text):
        return
    lengths = None if one.values is None else [len(text) for text in one.values]
    if place.schema[-1] == "minLength":
        if (one.low if lengths is None else min(lengths)) < value:
            yield place.gap(f"it may be shorter than {value}")
    elif (high := one.high if lengths is None else max(lengths)) is None or high > value:
        yield place.gap(f"it may be longer than {value}")


def text_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """``pattern`` and ``format``: by equality; single texts are shown to the oracle."""
    keyword = place.schema[-1]
    if not isinstance(one, Text) or value in (one.patterns if keyword == "pattern" else one.formats):
        return
    schema = {keyword: value}
    if one.values is None or not all(check.accepts(schema, text) for text in one.values):
        yield place.gap(f"the new schema wants the {keyword} {value}", describe_alternative(one))


def opaque_rule(check: Check, one: Alternative, value: Any, source: Source, place: ProofLocation) -> Iterator[Gap]:
    """Keywords that hold only of what was under the same ones before."""
    if isinstance(one, Text):
        yield place.gap(f"nothing shows that {value} holds")


RULES: dict[str, Rule] = {
    "type": kind_rule,
    "enum": listed_rule,
    "const": listed_rule,
    "minimum": least_rule,
    "exclusiveMinimum": least_rule,
    "maximum": most_rule,
    "exclusiveMaximum": most_rule,
    "multipleOf": multiple_rule,
    "minLength": length_rule,
    "maxLength": length_rule,
    "pattern": text_rule,
    "format": text_rule,
    "contentEncoding": opaque_rule,
    "contentMediaType": opaque_rule,
}
