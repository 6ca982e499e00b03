"""Shapes step by step: what is left where a value is present, put, taken away or replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.deadline import check_deadline
from headrace.schema.pointer import Pointer, index
from headrace.schema.shape.join import child, member, union, vacant
from headrace.schema.shape.meet import narrowest
from headrace.schema.shape.model import NOTHING, Alternative, Array, Member, Object, Shape, narrow, replace_values

#: Elements of an array behind this one are not told from each other, unless a schema speaks of each.
LAST_ELEMENT = 100


def split(shape: Shape, names: Pointer) -> tuple[Shape, Shape]:
    """The values that hold something at a pointer, and those that do not."""
    pairs = [_split(one, names) for one in shape.alternatives]
    if all(without is None for _, without in pairs):
        return shape, NOTHING
    present = tuple(one for one, _ in pairs if one is not None)
    absent = tuple(one for _, one in pairs if one is not None)
    return Shape(present) if present else NOTHING, shape if not present else Shape(absent)


def _split(one: Alternative, names: Pointer) -> tuple[Alternative | None, Alternative | None]:
    check_deadline()
    if not names:
        return one, None
    known = child(one, names[0])
    if vacant(known.shape):
        return None, one
    inside, outside = split(known.shape, names[1:])
    if known.required and outside is NOTHING:
        return one, None
    present = None if inside is NOTHING else _with(one, names[0], Member(inside, True))
    absent = _without(one, names[0]) if outside is NOTHING else _with(one, names[0], Member(outside, known.required))
    return present, absent


def _with(one: Alternative, name: str, known: Member) -> Alternative:
    """The values that hold what is known under a name, or nothing there unless it is required."""
    if isinstance(one, Object):
        return narrow(one, members={**one.members, name: known})
    assert isinstance(one, Array)
    position = int(name)
    low = max(one.low, position + 1) if known.required else one.low
    if _is_like_others(one, position) and (known.shape is one.rest or position > LAST_ELEMENT):
        return narrow(one, low=low)
    return narrow(one, prefix=_replaced(one, position, known.shape), low=low)


def _without(one: Alternative, name: str) -> Alternative:
    if isinstance(one, Object):
        return narrow(one, members={**one.members, name: Member(NOTHING)})
    assert isinstance(one, Array)
    return narrow(one, high=narrowest(one.high, int(name)))


def _is_like_others(array: Array, position: int) -> bool:
    """Whether nothing is known of an element but what is known of all behind the first."""
    return position >= len(array.prefix)


def _replaced(array: Array, position: int, *shapes: Shape) -> tuple[Shape, ...]:
    """The first elements, the one at a position replaced by others."""
    prefix = array.prefix + (array.rest,) * (position + 1 - len(array.prefix))
    return (*prefix[:position], *shapes, *prefix[position + 1 :])


def value_at(shape: Shape, names: Pointer) -> Shape:
    """What stands at a pointer."""
    for name in names:
        shape = union(*(child(one, name).shape for one in shape.alternatives))
    return shape


def edit(shape: Shape, names: Pointer, change: Callable[[Shape], Shape]) -> Shape:
    """The values with something else at a pointer, where all of them hold something."""
    if not names:
        return change(shape)
    return Shape(
        tuple(_edited(one, names[0], lambda inner: edit(inner, names[1:], change)) for one in shape.alternatives)
    )


def _edited(one: Alternative, name: str, change: Callable[[Shape], Shape]) -> Alternative:
    check_deadline()
    if isinstance(one, Object):
        known = member(one, name)
        return replace_values(one, members={**one.members, name: Member(change(known.shape), True)})
    position = index(name)
    if isinstance(one, Array) and position is not None:
        shape = change(child(one, name).shape)
        if _is_like_others(one, position) and position > LAST_ELEMENT:
            return replace_values(one, rest=union(one.rest, shape), unique=False)
        return replace_values(one, prefix=_replaced(one, position, shape), unique=False)
    return one


def put(shape: Shape, names: Pointer, value: Shape) -> Shape:
    """The values with another one at a pointer, where all of them hold the container it goes into."""
    if not names:
        return value

    def into(parent: Shape) -> Shape:
        return Shape(tuple(_put(one, names[-1], value) for one in parent.alternatives))

    return edit(shape, names[:-1], into)


def _put(one: Alternative, name: str, value: Shape) -> Alternative:
    if not isinstance(one, Object):
        return _edited(one, name, lambda _: value)
    known = member(one, name)
    counts: dict[str, Any] = {}
    if not known.required:
        counts["low"] = one.low + vacant(known.shape)
        counts["high"] = None if one.high is None else one.high + 1
    return replace_values(one, members={**one.members, name: Member(value, True)}, **counts)


def drop(shape: Shape, names: Pointer) -> Shape:
    """The values without what stands at a pointer, where all of them hold something."""

    def out_of(parent: Shape) -> Shape:
        return Shape(tuple(_drop(one, names[-1]) for one in parent.alternatives))

    return edit(shape, names[:-1], out_of)


def _drop(one: Alternative, name: str) -> Alternative:
    counts: dict[str, Any] = {}
    if isinstance(one, Object | Array):
        counts = {"low": max(one.low - 1, 0), "high": None if one.high is None else max(one.high - 1, 0)}
    if isinstance(one, Object):
        return replace_values(one, members={**one.members, name: Member(NOTHING)}, **counts)
    position = index(name)
    if isinstance(one, Array) and position is not None:
        prefix = one.prefix if _is_like_others(one, position) else _replaced(one, position)
        return replace_values(one, prefix=prefix, **counts)
    return one
