"""Intersections of shapes: what is of both, from above."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from headrace.deadline import check_deadline
from headrace.schema.canonical import number_of
from headrace.schema.shape.join import DEPTH, MOST, empty, member, union
from headrace.schema.shape.model import (
    NOTHING,
    WHOLE,
    Alternative,
    Array,
    Boolean,
    Bound,
    Member,
    Null,
    Number,
    Object,
    Shape,
    Text,
)

Alternatives = tuple[Alternative, ...]


def meet_shapes(left: Shape, right: Shape) -> Shape:
    """What is of both shapes."""
    if left is NOTHING or right is NOTHING:
        return NOTHING
    if left.identity == frozenset() or left == right:
        return right
    if right.identity == frozenset():
        return left
    if left.identity is None or right.identity is None:
        return Shape(meet_all(left.alternatives, right.alternatives))
    key = None if left.key is None or right.key is None else left.key | right.key
    identity = ("meet", frozenset((left.identity, right.identity))) if key is None else key
    return Shape.later(identity, lambda: meet_all(left.alternatives, right.alternatives), key)


def meet_all(left: Alternatives, right: Alternatives) -> Alternatives:
    """What is of one alternative here and of one there; the left ones alone where that would be too many."""
    both = [met for alternative in left for other in right if (met := meet(alternative, other)) is not None]
    return tuple(both) if len(both) <= MOST else left


def meet(left: Alternative, right: Alternative) -> Alternative | None:
    """What is of both alternatives; None where that is plainly nothing."""
    check_deadline()
    facts = left.facts | right.facts
    match left, right:
        case Null(), Null():
            return Null(facts=facts)
        case Boolean(), Boolean():
            values = left.values & right.values
            return Boolean(values=values, facts=facts) if values else None
        case Number(), Number():
            return _meet_numbers(left, right)
        case Text(), Text():
            return _meet_texts(left, right)
        case Object(), Object():
            return _meet_objects(left, right)
        case Array(), Array():
            return _meet_arrays(left, right)
    return None


def apart(alternative: Alternative, shape: Shape) -> bool:
    """Whether no value of the alternative is of the shape, as far as can be shown."""
    return all((both := meet(alternative, other)) is None or empty(both, DEPTH) for other in shape.alternatives)


def _meet_numbers(left: Number, right: Number) -> Number | None:
    low = _inner([left.low, right.low], highest=True)
    high = _inner([left.high, right.high], highest=False)
    integer = max(left.integer, right.integer)
    values = _common(left.values, right.values)
    if values is not None:
        values = frozenset(text for text in values if _within(number_of(text), low, high, integer))
    crossed = (
        low and high and (low.value > high.value or (low.value == high.value and (low.exclusive or high.exclusive)))
    )
    if crossed or values == frozenset():
        return None
    return Number(
        integer=integer,
        low=low,
        high=high,
        multiples=left.multiples | right.multiples,
        values=values,
        facts=left.facts | right.facts,
    )


def _inner(bounds: Iterable[Bound | None], *, highest: bool) -> Bound | None:
    limits = [bound for bound in bounds if bound is not None]
    if highest:
        return max(limits, key=lambda bound: (bound.value, bound.exclusive), default=None)
    return min(limits, key=lambda bound: (bound.value, not bound.exclusive), default=None)


def _within(number: int | Decimal, low: Bound | None, high: Bound | None, integer: int) -> bool:
    if low and (number < low.value or (low.exclusive and number == low.value)):
        return False
    if high and (number > high.value or (high.exclusive and number == high.value)):
        return False
    return integer < WHOLE or isinstance(number, int)


def _meet_texts(left: Text, right: Text) -> Text | None:
    low, high = max(left.low, right.low), narrowest(left.high, right.high)
    values = _common(left.values, right.values)
    if values is not None:
        values = frozenset(value for value in values if low <= len(value) and (high is None or len(value) <= high))
    if values == frozenset() or (high is not None and low > high):
        return None
    return Text(
        low=low,
        high=high,
        patterns=left.patterns | right.patterns,
        formats=left.formats | right.formats,
        values=values,
        facts=left.facts | right.facts,
    )


def _common(left: frozenset[str] | None, right: frozenset[str] | None) -> frozenset[str] | None:
    if left is None or right is None:
        return right if left is None else left
    return left & right


def narrowest(left: int | None, right: int | None) -> int | None:
    """The smaller of two limits, None being none."""
    if left is None or right is None:
        return right if left is None else left
    return min(left, right)


def _meet_objects(left: Object, right: Object) -> Object | None:
    members = {}
    for name in [*left.members, *(name for name in right.members if name not in left.members)]:
        left_member, right_member = member(left, name), member(right, name)
        met = Member(meet_shapes(left_member.shape, right_member.shape), left_member.required or right_member.required)
        if met.shape is NOTHING and met.required:
            return None
        members[name] = met
    return Object(
        members=members,
        patterns=_meet_patterns(left, right) | _meet_patterns(right, left),
        rest=meet_shapes(left.rest, right.rest),
        low=max(left.low, right.low),
        high=narrowest(left.high, right.high),
        facts=left.facts | right.facts,
    )


def _meet_patterns(left: Object, right: Object) -> dict[str, Shape]:
    """A name that matches a pattern on one side is under the pattern, another one or the rest on the other."""
    return {
        pattern: meet_shapes(shape, right.patterns.get(pattern) or union(right.rest, *right.patterns.values()))
        for pattern, shape in left.patterns.items()
    }


def _meet_arrays(left: Array, right: Array) -> Array | None:
    low, high = max(left.low, right.low), narrowest(left.high, right.high)
    if high is not None and low > high:
        return None
    length = max(len(left.prefix), len(right.prefix))
    left_elements, right_elements = [
        (*array.prefix, *[array.rest] * (length - len(array.prefix))) for array in (left, right)
    ]
    fields: dict[str, Any] = {"low": low, "high": high, "unique": left.unique or right.unique}
    return Array(
        prefix=tuple(meet_shapes(a, b) for a, b in zip(left_elements, right_elements, strict=True)),
        rest=meet_shapes(left.rest, right.rest),
        facts=left.facts | right.facts,
        **fields,
    )
