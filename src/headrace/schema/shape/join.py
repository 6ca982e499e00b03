"""Unions of shapes: alternatives are kept apart while they are few, and joined when they are many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

from headrace.deadline import check_deadline
from headrace.schema.canonical import number_of
from headrace.schema.pointer import index
from headrace.schema.shape.model import (
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

MOST = 48
"""How many alternatives are kept apart."""


def union(*shapes: Shape) -> Shape:
    """Everything that is of one of the shapes."""
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
    if len(distinct) <= MOST:
        return tuple(distinct)
    kinds = {alternative.kind: alternative for alternative in reversed(distinct)}
    return tuple(reduce(join, [candidate for candidate in distinct if candidate.kind == kind]) for kind in kinds)


def merge(left: Shape, right: Shape) -> Shape:
    """A union of two shapes that come from the same one: alternatives that correspond are run together."""
    if left == right:
        return left
    if left.identity is not None and right.identity is not None:
        return union(left, right)
    first, second = left.alternatives, right.alternatives
    if len(first) == len(second) and all(a.kind == b.kind for a, b in zip(first, second, strict=True)):
        return Shape(tuple(join(a, b) for a, b in zip(first, second, strict=True)))
    return union(left, right)


def join(left: Alternative, right: Alternative) -> Alternative:
    """One alternative that holds the values of two of the same kind."""
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
    """The larger of two limits, None being none."""
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


DEPTH = 3
"""How deep a proof of emptiness looks."""


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


def vacant(shape: Shape, depth: int = DEPTH) -> bool:
    """Whether no value is of this shape, as far as can be shown by looking a few levels deep."""
    return depth > 0 and all(empty(alternative, depth) for alternative in shape.alternatives)


def empty(alternative: Alternative, depth: int = DEPTH) -> bool:
    """Whether the alternative holds no value, likewise."""
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
