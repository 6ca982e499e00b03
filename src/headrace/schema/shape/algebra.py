"""Unions and intersections of shapes, their members and elements, and whether they hold any value.

Alternatives of a union are kept apart while they are few, and joined when they are many. An intersection may hold more
than both shapes have in common, never less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

from headrace.deadline import check_deadline
from headrace.schema.canonical import number_of
from headrace.schema.pointer import index
from headrace.schema.shape.model import (
    INTEGRAL,
    NOTHING,
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

MAX_ALTERNATIVES = 48
"""How many alternatives are kept apart."""


def union(*shapes: Shape) -> Shape:
    """The union of shapes."""
    distinct: list[Shape] = []
    for shape in shapes:
        check_deadline()
        if shape is not NOTHING and shape not in distinct:
            distinct.append(shape)
    if len(distinct) < 2:
        return distinct[0] if distinct else NOTHING

    def read() -> tuple[Alternative, ...]:
        return gather(alternative for shape in distinct for alternative in shape.alternatives)

    if all(shape.identity is not None for shape in distinct):
        return Shape.later(("union", frozenset(shape.identity for shape in distinct)), read)
    return Shape(read())


def gather(alternatives: Iterable[Alternative]) -> tuple[Alternative, ...]:
    """The alternatives without repetition; too many become one of each kind."""
    distinct: list[Alternative] = []
    for alternative in alternatives:
        check_deadline()
        if alternative not in distinct:
            distinct.append(alternative)
    if len(distinct) <= MAX_ALTERNATIVES:
        return tuple(distinct)
    kinds = {alternative.kind: alternative for alternative in reversed(distinct)}
    return tuple(reduce(join, [candidate for candidate in distinct if candidate.kind == kind]) for kind in kinds)


def merge(left: Shape, right: Shape) -> Shape:
    """The union of two shapes that come from the same one: corresponding alternatives are joined."""
    if left == right:
        return left
    if left.identity is not None and right.identity is not None:
        return union(left, right)
    first, second = left.alternatives, right.alternatives
    if len(first) == len(second) and all(a.kind == b.kind for a, b in zip(first, second, strict=True)):
        return Shape(tuple(join(a, b) for a, b in zip(first, second, strict=True)))
    return union(left, right)


def join(left: Alternative, right: Alternative) -> Alternative:
    """One alternative with the values of two of the same kind, and perhaps more."""
    check_deadline()
    facts = left.facts & right.facts
    match left, right:
        case Boolean(), Boolean():
            return Boolean(values=left.values | right.values, facts=facts)
        case Number(), Number():
            return _join_numbers(left, right)
        case Text(), Text():
            return _join_texts(left, right)
        case Object(), Object():
            return _join_objects(left, right)
        case Array(), Array():
            return _join_arrays(left, right)
    return Null(facts=facts)


def _join_numbers(left: Number, right: Number) -> Number:
    finite = left.values is not None and right.values is not None
    ends = [_ends(number) for number in (left, right)]
    return Number(
        integer=min(left.integer, right.integer),
        low=_outer([low for low, _ in ends], highest=False),
        high=_outer([high for _, high in ends], highest=True),
        multiples=left.multiples & right.multiples,
        values=(left.values or frozenset()) | (right.values or frozenset()) if finite else None,
        facts=left.facts & right.facts,
    )


def _ends(number: Number) -> tuple[Bound | None, Bound | None]:
    if not number.values:
        return number.low, number.high
    values = [number_of(text) for text in number.values]
    return Bound(min(values)), Bound(max(values))


def _outer(bounds: Sequence[Bound | None], *, highest: bool) -> Bound | None:
    limits = [bound for bound in bounds if bound is not None]
    if len(limits) < len(bounds):
        return None
    if highest:
        return max(limits, key=lambda bound: (bound.value, not bound.exclusive))
    return min(limits, key=lambda bound: (bound.value, bound.exclusive))


def _join_texts(left: Text, right: Text) -> Text:
    finite = left.values is not None and right.values is not None
    (low, high), (other_low, other_high) = _lengths(left), _lengths(right)
    return Text(
        low=min(low, other_low),
        high=widest(high, other_high),
        patterns=left.patterns & right.patterns,
        formats=left.formats & right.formats,
        values=(left.values or frozenset()) | (right.values or frozenset()) if finite else None,
        facts=left.facts & right.facts,
    )


def _lengths(text: Text) -> tuple[int, int | None]:
    if not text.values:
        return text.low, text.high
    lengths = [len(value) for value in text.values]
    return min(lengths), max(lengths)


def widest(left: int | None, right: int | None) -> int | None:
    """The larger of two limits, where None is no limit."""
    return None if left is None or right is None else max(left, right)


def member(alternative: Object, name: str) -> Member:
    """What an object may hold under a name."""
    return alternative.members.get(name) or Member(unnamed(alternative))


def unnamed(alternative: Object) -> Shape:
    """What an object may hold under a name that is not among its known ones."""
    return union(alternative.rest, *alternative.patterns.values()) if alternative.patterns else alternative.rest


def _join_objects(left: Object, right: Object) -> Object:
    members = {}
    for name in [*left.members, *(name for name in right.members if name not in left.members)]:
        left_member, right_member = member(left, name), member(right, name)
        members[name] = Member(
            _either(left_member.shape, right_member.shape), left_member.required and right_member.required
        )
    same = left.patterns.keys() == right.patterns.keys()
    return Object(
        members=members,
        patterns={name: _either(shape, right.patterns[name]) for name, shape in left.patterns.items()} if same else {},
        rest=_either(left.rest, right.rest) if same else union(unnamed(left), unnamed(right)),
        low=min(left.low, right.low),
        high=widest(left.high, right.high),
        facts=left.facts & right.facts,
    )


def _either(left: Shape, right: Shape) -> Shape:
    if left is NOTHING or right is NOTHING:
        return right if left is NOTHING else left
    return merge(left, right)


def _join_arrays(left: Array, right: Array) -> Array:
    length = max(len(left.prefix), len(right.prefix))
    left_elements, right_elements = [
        (*array.prefix, *[array.rest] * (length - len(array.prefix))) for array in (left, right)
    ]
    return Array(
        prefix=tuple(_either(a, b) for a, b in zip(left_elements, right_elements, strict=True)),
        rest=_either(left.rest, right.rest),
        low=min(left.low, right.low),
        high=widest(left.high, right.high),
        unique=left.unique and right.unique,
        facts=left.facts & right.facts,
    )


MAX_DEPTH = 3
"""How many levels a proof of emptiness descends."""


def element(alternative: Array, position: int) -> Member:
    """What an array may hold at a position."""
    if alternative.high is not None and position >= alternative.high:
        return Member(NOTHING)
    shape = alternative.prefix[position] if position < len(alternative.prefix) else alternative.rest
    return Member(shape, position < alternative.low)


def child(alternative: Alternative, name: str) -> Member:
    """What a value may hold under a name or index; scalars hold nothing."""
    if isinstance(alternative, Object):
        return member(alternative, name)
    if isinstance(alternative, Array) and (position := index(name)) is not None:
        return element(alternative, position)
    return Member(NOTHING)


def vacant(shape: Shape, depth: int = MAX_DEPTH) -> bool:
    """Whether no value is of this shape, as far as can be shown a few levels deep."""
    return depth > 0 and all(empty(alternative, depth) for alternative in shape.alternatives)


def empty(alternative: Alternative, depth: int = MAX_DEPTH) -> bool:
    """Whether no value is of this alternative, as far as can be shown a few levels deep."""
    check_deadline()
    if isinstance(alternative, Object):
        needed = [object_member.shape for object_member in alternative.members.values() if object_member.required]
        crowded = alternative.high is not None and len(needed) > alternative.high
        return crowded or any(vacant(shape, depth - 1) for shape in needed)
    if isinstance(alternative, Array):
        if alternative.high is not None and alternative.low > alternative.high:
            return True
        needed = list(alternative.prefix[: alternative.low])
        if alternative.low > len(alternative.prefix):
            needed.append(alternative.rest)
        return any(vacant(shape, depth - 1) for shape in needed)
    return False


Alternatives = tuple[Alternative, ...]


def meet_shapes(left: Shape, right: Shape) -> Shape:
    """The intersection of two shapes."""
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
    """The intersections of each left with each right alternative; the left ones themselves where these are too many."""
    both = [met for alternative in left for other in right if (met := meet(alternative, other)) is not None]
    return tuple(both) if len(both) <= MAX_ALTERNATIVES else left


def meet(left: Alternative, right: Alternative) -> Alternative | None:
    """The intersection of two alternatives; None where it is clearly empty."""
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
    return all((both := meet(alternative, other)) is None or empty(both, MAX_DEPTH) for other in shape.alternatives)


def _meet_numbers(left: Number, right: Number) -> Number | None:
    low = _inner([left.low, right.low], highest=True)
    high = _inner([left.high, right.high], highest=False)
    integer = max(left.integer, right.integer)
    values = _common(left.values, right.values)
    if values is not None:
        values = frozenset(text for text in values if _is_in_range(number_of(text), low, high, integer))
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


def _is_in_range(number: int | Decimal, low: Bound | None, high: Bound | None, integer: int) -> bool:
    if low and (number < low.value or (low.exclusive and number == low.value)):
        return False
    if high and (number > high.value or (high.exclusive and number == high.value)):
        return False
    return integer < INTEGRAL or isinstance(number, int)


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
    """The smaller of two limits, where None is no limit."""
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
    """The patterns of one side, each with what the other side allows under names that match it."""
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
