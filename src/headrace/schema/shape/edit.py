"""Edit shapes at a pointer: split them by whether there is a value, and put, drop or replace it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.deadline import check_deadline
from headrace.schema.pointer import Pointer, index
from headrace.schema.shape.algebra import child, member, narrowest, union, vacant
from headrace.schema.shape.model import NOTHING, Alternative, Array, Member, Object, Shape, narrow, replace_values

#: Elements of an array after this one share one shape, unless a schema declares each.
LAST_ELEMENT = 100


def split(shape: Shape, names: Pointer) -> tuple[Shape, Shape]:
    """The values that hold one at a pointer, and those that do not."""
    pairs = [_split_alternative(alternative, names) for alternative in shape.alternatives]
    if all(without is None for _, without in pairs):
        return shape, NOTHING
    present = tuple(alternative for alternative, _ in pairs if alternative is not None)
    absent = tuple(alternative for _, alternative in pairs if alternative is not None)
    return Shape(present) if present else NOTHING, shape if not present else Shape(absent)


def _split_alternative(alternative: Alternative, names: Pointer) -> tuple[Alternative | None, Alternative | None]:
    check_deadline()
    if not names:
        return alternative, None
    existing = child(alternative, names[0])
    if vacant(existing.shape):
        return None, alternative
    inside, outside = split(existing.shape, names[1:])
    if existing.required and outside is NOTHING:
        return alternative, None
    present = None if inside is NOTHING else _with_member(alternative, names[0], Member(inside, True))
    absent = (
        _without_member(alternative, names[0])
        if outside is NOTHING
        else _with_member(alternative, names[0], Member(outside, existing.required))
    )
    return present, absent


def _with_member(alternative: Alternative, name: str, new_member: Member) -> Alternative:
    """The values that hold this member under a name, or none unless it is required."""
    if isinstance(alternative, Object):
        return narrow(alternative, members={**alternative.members, name: new_member})
    assert isinstance(alternative, Array)
    position = int(name)
    low = max(alternative.low, position + 1) if new_member.required else alternative.low
    if _is_like_others(alternative, position) and (new_member.shape is alternative.rest or position > LAST_ELEMENT):
        return narrow(alternative, low=low)
    return narrow(alternative, prefix=_replace_element(alternative, position, new_member.shape), low=low)


def _without_member(alternative: Alternative, name: str) -> Alternative:
    if isinstance(alternative, Object):
        return narrow(alternative, members={**alternative.members, name: Member(NOTHING)})
    assert isinstance(alternative, Array)
    return narrow(alternative, high=narrowest(alternative.high, int(name)))


def _is_like_others(array: Array, position: int) -> bool:
    """Whether an element is described by the shape of the rest only."""
    return position >= len(array.prefix)


def _replace_element(array: Array, position: int, *shapes: Shape) -> tuple[Shape, ...]:
    """The first elements, the one at a position replaced by others."""
    prefix = array.prefix + (array.rest,) * (position + 1 - len(array.prefix))
    return (*prefix[:position], *shapes, *prefix[position + 1 :])


def value_at(shape: Shape, names: Pointer) -> Shape:
    """The shape of the values at a pointer."""
    for name in names:
        shape = union(*(child(alternative, name).shape for alternative in shape.alternatives))
    return shape


def edit(shape: Shape, names: Pointer, change: Callable[[Shape], Shape]) -> Shape:
    """The values with a changed one at a pointer, where all of them hold one."""
    if not names:
        return change(shape)
    return Shape(
        tuple(
            _edit_alternative(alternative, names[0], lambda inner: edit(inner, names[1:], change))
            for alternative in shape.alternatives
        )
    )


def _edit_alternative(alternative: Alternative, name: str, change: Callable[[Shape], Shape]) -> Alternative:
    check_deadline()
    if isinstance(alternative, Object):
        existing = member(alternative, name)
        return replace_values(alternative, members={**alternative.members, name: Member(change(existing.shape), True)})
    position = index(name)
    if isinstance(alternative, Array) and position is not None:
        shape = change(child(alternative, name).shape)
        if _is_like_others(alternative, position) and position > LAST_ELEMENT:
            return replace_values(alternative, rest=union(alternative.rest, shape), unique=False)
        return replace_values(alternative, prefix=_replace_element(alternative, position, shape), unique=False)
    return alternative


def put(shape: Shape, names: Pointer, value: Shape) -> Shape:
    """The values with another one put at a pointer, where all of them hold its container."""
    if not names:
        return value

    def into(parent: Shape) -> Shape:
        return Shape(tuple(_put_alternative(alternative, names[-1], value) for alternative in parent.alternatives))

    return edit(shape, names[:-1], into)


def _put_alternative(alternative: Alternative, name: str, value: Shape) -> Alternative:
    if not isinstance(alternative, Object):
        return _edit_alternative(alternative, name, lambda _: value)
    existing = member(alternative, name)
    counts: dict[str, Any] = {}
    if not existing.required:
        counts["low"] = alternative.low + vacant(existing.shape)
        counts["high"] = None if alternative.high is None else alternative.high + 1
    return replace_values(alternative, members={**alternative.members, name: Member(value, True)}, **counts)


def drop(shape: Shape, names: Pointer) -> Shape:
    """The values without the one at a pointer, where all of them hold one."""

    def out_of(parent: Shape) -> Shape:
        return Shape(tuple(_drop_alternative(alternative, names[-1]) for alternative in parent.alternatives))

    return edit(shape, names[:-1], out_of)


def _drop_alternative(alternative: Alternative, name: str) -> Alternative:
    counts: dict[str, Any] = {}
    if isinstance(alternative, Object | Array):
        counts = {
            "low": max(alternative.low - 1, 0),
            "high": None if alternative.high is None else max(alternative.high - 1, 0),
        }
    if isinstance(alternative, Object):
        return replace_values(alternative, members={**alternative.members, name: Member(NOTHING)}, **counts)
    position = index(name)
    if isinstance(alternative, Array) and position is not None:
        is_like_others = _is_like_others(alternative, position)
        prefix = alternative.prefix if is_like_others else _replace_element(alternative, position)
        return replace_values(alternative, prefix=prefix, **counts)
    return alternative
