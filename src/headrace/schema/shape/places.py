"""What stands where in a shape: members and elements, and what can be shown to be empty."""

from __future__ import annotations

from headrace.deadline import check_deadline
from headrace.schema.pointer import index
from headrace.schema.shape.join import member
from headrace.schema.shape.model import NOTHING, Alternative, Array, Member, Object, Shape

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
        needed = [known.shape for known in alternative.members.values() if known.required]
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
