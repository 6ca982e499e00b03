"""Whether a value is of a shape: the plain meaning of shapes, against which everything about them is tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.schema.canonical import exactly, json_number, value_text
from headrace.schema.document import Validator
from headrace.schema.shape.model import (
    INTEGRAL,
    SPELLED,
    Alternative,
    Array,
    Boolean,
    Null,
    Number,
    Object,
    Shape,
    Text,
)


def admits(shape: Shape, value: Any) -> bool:
    """Whether the shape holds the value."""
    return any(_holds(one, value) for one in shape.alternatives)


def _holds(one: Alternative, value: Any) -> bool:
    kinds: dict[type[Alternative], Callable[[Any, Any], bool]] = {
        Null: lambda _, given: given is None,
        Boolean: lambda boolean, given: isinstance(given, bool) and given in boolean.values,
        Number: _number,
        Text: _text,
        Object: _object,
        Array: _array,
    }
    return kinds[type(one)](one, value)


def _number(number: Number, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high, exact = number.low, number.high, exactly(value)
    return (
        (number.integer < INTEGRAL or isinstance(exact, int))
        and (number.integer < SPELLED or isinstance(value, int))
        and (low is None or exact > low.value or (exact == low.value and not low.exclusive))
        and (high is None or exact < high.value or (exact == high.value and not high.exclusive))
        and (number.values is None or value_text(value) in number.values)
        and all(Validator({"multipleOf": json_number(text)}).accepts(value) for text in number.multiples)
    )


def _text(text: Text, value: Any) -> bool:
    return (
        isinstance(value, str)
        and text.low <= len(value)
        and (text.high is None or len(value) <= text.high)
        and (text.values is None or value in text.values)
        and all(Validator({"pattern": pattern}).accepts(value) for pattern in text.patterns)
        and all(Validator({"format": name}).accepts(value) for name in text.formats)
    )


def _object(one: Object, value: Any) -> bool:
    if not isinstance(value, dict) or len(value) < one.low or (one.high is not None and len(value) > one.high):
        return False
    if not all(name in value for name, known in one.members.items() if known.required):
        return False
    return all(_member(one, name, inner) for name, inner in value.items())


def _member(one: Object, name: str, value: Any) -> bool:
    if name in one.members:
        return admits(one.members[name].shape, value)
    matching = [shape for text, shape in one.patterns.items() if Validator({"pattern": text}).accepts(name)]
    return all(admits(shape, value) for shape in matching or [one.rest])


def _array(one: Array, value: Any) -> bool:
    return (
        isinstance(value, list)
        and one.low <= len(value)
        and (one.high is None or len(value) <= one.high)
        and (not one.unique or len({value_text(item) for item in value}) == len(value))
        and all(admits(one.prefix[at] if at < len(one.prefix) else one.rest, item) for at, item in enumerate(value))
    )
