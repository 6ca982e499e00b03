"""merge_array: the different values of the observations with the greatest priority, each from the best of them.

Values are in the order of their observations, the latest first, and in the order that each gives them. Two are the
same if JSON says so: 1 and 1.0 are, 1 and true are not. A scalar counts as one value, a text that is a JSON array as
its elements, and null as no value.

A state holds at most ``MAX_VALUES`` values. Of more, those that come first are kept, and the state records that there
were more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.reduce.policies.order import Key, Origin, comes_first
from headrace.schema.canonical import value_text

MAX_VALUES = 1_000

#: A value with its place in the order, and the observation it is from.
Element = tuple[Key, Origin, Any]


class ArrayState(msgspec.Struct, gc=False):
    """The different values of a field; ``first`` is the first observation that has the field, be it without values."""

    first: Origin
    elements: dict[str, Element]
    dropped: bool = False


def add_values(state: ArrayState | None, origin: Origin, value: Any) -> ArrayState:
    """The state with one more observation; the one given may be changed."""
    if state is None or origin.source_priority > state.first.source_priority:
        state = ArrayState(origin, {})
    elif origin.source_priority < state.first.source_priority:
        return state
    elif _order_key(origin, 0) <= _order_key(state.first, 0):
        state.first = _first_origin(origin, state.first)
    for position, element in enumerate(elements_of(value)):
        _put(state.elements, identity(element), (_order_key(origin, position), origin, element))
    # Twice as many are let in before any is dropped, so that an observation costs the same however many there were.
    return limit_values(state) if len(state.elements) > 2 * MAX_VALUES else state


def merge_elements(values: Iterable[tuple[int, Any]]) -> tuple[list[tuple[int, int, Any]], bool]:
    """The different elements of numbered values that come in their order, and whether there are more than are kept.

    Each has the number of the first value with it, and its position there.
    """
    by_identity: dict[str, tuple[int, int, Any]] = {}
    for number, value in values:
        for position, element in enumerate(elements_of(value)):
            by_identity.setdefault(identity(element), (number, position, element))
    elements = list(by_identity.values())
    return elements[:MAX_VALUES], len(elements) > MAX_VALUES


def merge_arrays(left: ArrayState, right: ArrayState) -> ArrayState:
    """The state of both; neither is changed."""
    if left.first.source_priority != right.first.source_priority:
        return left if left.first.source_priority > right.first.source_priority else right
    elements = dict(left.elements)
    for text, element in right.elements.items():
        _put(elements, text, element)
    return limit_values(ArrayState(_first_origin(left.first, right.first), elements, left.dropped or right.dropped))


def limit_values(state: ArrayState) -> ArrayState:
    """The same with at most as many values as are kept."""
    if len(state.elements) <= MAX_VALUES:
        return state
    kept = sorted(state.elements.items(), key=_in_order)[:MAX_VALUES]
    return ArrayState(state.first, dict(kept), True)


def order_values(state: ArrayState) -> list[Element]:
    """The values in their order."""
    return [element for _, element in sorted(limit_values(state).elements.items(), key=_in_order)]


def restore(first: Origin, elements: list[tuple[Origin, int, Any]], dropped: bool) -> ArrayState:
    """The state of values that are given with their observations and their positions in these."""
    by_identity = {
        identity(value): (_order_key(origin, position), origin, value) for origin, position, value in elements
    }
    return ArrayState(first, by_identity, dropped)


def elements_of(value: Any) -> list[Any]:
    """The elements of a value."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str) and value.strip()[:1] == "[":
        try:
            decoded = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return [value]
        return decoded if isinstance(decoded, list) else [value]
    return [] if value is None else [value]


def identity(value: Any) -> str:
    """One text for all spellings of a value."""
    return f'"{value}' if isinstance(value, str) else value_text(value)


def _order_key(origin: Origin, position: int) -> Key:
    return (-origin.observed_at_us, origin.id, position)


def _in_order(item: tuple[str, Element]) -> tuple[Key, str]:
    return item[1][0], item[0]


def _first_origin(left: Origin, right: Origin) -> Origin:
    ours, theirs = _order_key(left, 0), _order_key(right, 0)
    if ours == theirs:
        return left if comes_first(left, None, right, None) else right
    return left if ours < theirs else right


def _put(elements: dict[str, Element], text: str, element: Element) -> None:
    """Keep the better of an element and the one that is there."""
    held = elements.get(text)
    if held is None or element[0] < held[0] or (element[0] == held[0] and comes_first(*element[1:], *held[1:])):
        elements[text] = element
