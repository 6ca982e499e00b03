"""Rules of keywords about the type and value, and about numbers and strings."""

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
from headrace.schema.shape.algebra import element, vacant
from headrace.schema.shape.model import (
    INTEGRAL,
    SPELLED,
    Alternative,
    Array,
    Boolean,
    Bound,
    Null,
    Number,
    Object,
    Shape,
    Text,
    alternatives_of_values,
    is_integral,
)
from headrace.schema.shape.source import Dialect, Source

_FEW = 64
_EXACT = 2**53
"""Beyond it a number that is spelled with an exponent is compared as the nearest double, at times."""
_LARGEST = 10**300


def kind_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``type``."""
    names = [value] if isinstance(value, str) else value
    if alternative.kind in names or (
        "integer" in names and isinstance(alternative, Number) and _is_integer(alternative, source)
    ):
        return
    description = (
        "1.0"
        if isinstance(alternative, Number) and alternative.integer == INTEGRAL and "integer" in names
        else describe_alternative(alternative)
    )
    yield location.gap(f"the new schema wants {join_first([str(name) for name in names])}", description)


def _is_integer(number: Number, source: Source) -> bool:
    if source.root.dialect is Dialect.DRAFT4:
        return number.integer == SPELLED
    return number.integer >= INTEGRAL or (number.values is not None and all(map(is_integral, number.values)))


def listed_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``enum`` and ``const``."""
    values = [value] if location.schema[-1] == "const" else value
    if not _is_among(alternative, alternatives_of_values(values)):
        yield location.gap(
            f"the new schema wants {join_first([format_json(item) for item in values])}",
            describe_alternative(alternative),
        )


def _is_among(alternative: Alternative, allowed: Iterable[Alternative]) -> bool:
    """Whether all values of an alternative are among values that are listed."""
    same = [other for other in allowed if other.kind == alternative.kind]
    match alternative:
        case Null():
            return bool(same)
        case Boolean(values=values):
            return any(isinstance(other, Boolean) and values <= other.values for other in same)
        case Number() | Text():
            listed_texts = texts(alternative)
            allowed_texts = {text for other in same if isinstance(other, Number | Text) for text in other.values or ()}
            return listed_texts is not None and listed_texts <= allowed_texts
    return any(_equals(alternative, other) for other in same)


def texts(alternative: Number | Text) -> frozenset[str] | None:
    """The values of an alternative where they can be listed; integers in a short range can."""
    if alternative.values is not None or isinstance(alternative, Text) or alternative.integer < INTEGRAL:
        return alternative.values
    low, high = lowest(alternative), highest(alternative)
    if low is None or high is None or int(high.value) - int(low.value) >= _FEW:
        return None
    if low.value < -_EXACT or high.value > _EXACT:
        return None
    return frozenset(str(number) for number in range(int(low.value), int(high.value) + 1))


def _equals(alternative: Alternative, exact: Alternative) -> bool:
    """Whether the container can only be one that is known exactly."""
    if isinstance(alternative, Object) and isinstance(exact, Object):
        others = [member.shape for name, member in alternative.members.items() if name not in exact.members]
        return all(map(vacant, [*others, *alternative.patterns.values(), alternative.rest])) and all(
            name in alternative.members
            and alternative.members[name].required
            and _is_only(alternative.members[name].shape, member.shape)
            for name, member in exact.members.items()
        )
    assert isinstance(alternative, Array) and isinstance(exact, Array)
    return alternative.low == alternative.high == exact.high and all(
        _is_only(element(alternative, position).shape, shape) for position, shape in enumerate(exact.prefix)
    )


def _is_only(shape: Shape, exact: Shape) -> bool:
    return all(_is_among(alternative, exact.alternatives) for alternative in shape.alternatives)


def lowest(number: Number) -> Bound | None:
    """Where the numbers begin; integers after an exclusive or broken bound begin at the next integer."""
    if number.values is not None:
        return Bound(min(_compared_values(number)))
    low = number.low
    if low is None or number.integer < INTEGRAL:
        return low
    return Bound(math.floor(low.value) + 1 if low.exclusive else math.ceil(low.value))


def highest(number: Number) -> Bound | None:
    """Where the numbers end; integers before an exclusive or broken bound end at the integer before."""
    if number.values is not None:
        return Bound(max(_compared_values(number)))
    high = number.high
    if high is None or number.integer < INTEGRAL:
        return high
    return Bound(math.ceil(high.value) - 1 if high.exclusive else math.floor(high.value))


def _compared_values(number: Number) -> Iterator[int | Decimal]:
    """What a validator compares listed numbers as: their digits, and the nearest doubles where that may count.

    A whole number that is spelled as one is always compared by its digits.
    """
    for value in map(number_of, number.values or ()):
        yield value
        if number.integer < SPELLED and (_EXACT < value < _LARGEST or -_LARGEST < value < -_EXACT):
            yield Decimal(float(value))


def minimum_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``minimum`` and ``exclusiveMinimum``."""
    limit = _limit(value, source, location)
    if not isinstance(alternative, Number) or limit is None:
        return
    low = lowest(alternative)
    if low is None or low.value < limit.value or (low.value == limit.value and limit.exclusive > low.exclusive):
        yield location.gap(f"it may be {'at' if limit.exclusive else 'below'} the new schema's limit {limit.value}")


def maximum_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``maximum`` and ``exclusiveMaximum``."""
    limit = _limit(value, source, location)
    if not isinstance(alternative, Number) or limit is None:
        return
    high = highest(alternative)
    if high is None or high.value > limit.value or (high.value == limit.value and limit.exclusive > high.exclusive):
        yield location.gap(f"it may be {'at' if limit.exclusive else 'above'} the new schema's limit {limit.value}")


def _limit(value: Any, source: Source, location: ProofLocation) -> Bound | None:
    """The limit that a keyword sets; in draft 4 the exclusive one only tells whether the other is exclusive."""
    name = location.schema[-1]
    if isinstance(value, bool):
        return None
    strict = source.keywords().get("exclusive" + name[0].upper() + name[1:]) is True
    return Bound(exactly(value), strict or name.startswith("exclusive"))


def multiple_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``multipleOf``: by equality, or among integers."""
    if not isinstance(alternative, Number) or value_text(value) in alternative.multiples:
        return
    factors = [number_of(text) for text in alternative.multiples]
    if isinstance(value, int) and not isinstance(value, bool):
        if any(isinstance(factor, int) and factor % value == 0 and factor <= _EXACT for factor in factors):
            return
        if alternative.values is not None and all(_divides(value, number_of(text)) for text in alternative.values):
            return
        if value == 1 and alternative.integer >= INTEGRAL:
            return
    yield location.gap(f"it may be no multiple of {value}")


def _divides(value: int, number: int | Decimal) -> bool:
    return isinstance(number, int) and number % value == 0


def length_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``minLength`` and ``maxLength``."""
    if not isinstance(alternative, Text):
        return
    lengths = None if alternative.values is None else [len(text) for text in alternative.values]
    if location.schema[-1] == "minLength":
        if (alternative.low if lengths is None else min(lengths)) < value:
            yield location.gap(f"it may be shorter than {value}")
    elif (high := alternative.high if lengths is None else max(lengths)) is None or high > value:
        yield location.gap(f"it may be longer than {value}")


def text_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """``pattern`` and ``format``: by equality; single texts are shown to the oracle."""
    keyword = location.schema[-1]
    if not isinstance(alternative, Text) or value in (
        alternative.patterns if keyword == "pattern" else alternative.formats
    ):
        return
    schema = {keyword: value}
    if alternative.values is None or not all(check.accepts(schema, text) for text in alternative.values):
        yield location.gap(f"the new schema wants the {keyword} {value}", describe_alternative(alternative))


def opaque_rule(
    check: Check, alternative: Alternative, value: Any, source: Source, location: ProofLocation
) -> Iterator[Gap]:
    """Keywords that hold only of what was under the same ones before."""
    if isinstance(alternative, Text):
        yield location.gap(f"nothing shows that {value} holds")


RULES: dict[str, Rule] = {
    "type": kind_rule,
    "enum": listed_rule,
    "const": listed_rule,
    "minimum": minimum_rule,
    "exclusiveMinimum": minimum_rule,
    "maximum": maximum_rule,
    "exclusiveMaximum": maximum_rule,
    "multipleOf": multiple_rule,
    "minLength": length_rule,
    "maxLength": length_rule,
    "pattern": text_rule,
    "format": text_rule,
    "contentEncoding": opaque_rule,
    "contentMediaType": opaque_rule,
}
