"""What a value looks like, as finely as the converters can tell.

A shape says which type of JSON its values have, what they seem to mean, and which converters take every one of them.
A number counts as a moment where it is one from 2001 on in seconds, from 1970 on in milliseconds or from 1973 on in
nanoseconds, and none before 2100. Between these ranges lie microseconds, for which there is no converter.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from headrace.schema.entity.nodes import Converter, Field, Type
from headrace.schema.entity.values import FUNCTIONS, LAST_MS, is_iso

NULL = "null"

_S, _MS, _NANOS = "timestamp_s_to_iso", "timestamp_ms_to_iso", "timestamp_nanos_to_iso"
_NUMBER, _BOOLEAN = "string_to_number", "string_to_boolean"

#: Converters in the order in which each leaves to the next what is not its own.
ORDER = (_S, _MS, _NANOS, _NUMBER, _BOOLEAN, "number_to_string", "boolean_to_string")

_FIRST_S, _LAST_S = 1_000_000_000, LAST_MS // 1_000
_FIRST_MS = 9_999_999_999
_FIRST_NANOS, _LAST_NANOS = 10**17, LAST_MS * 1_000_000

_TRUTHS = ("true", "false", "yes", "no")
_BITS = ("0", "1")
#: Longer digits are names of something, and so are those that begin with zeros or a plus.
_QUANTITY = re.compile(r"\s*-?(?!0[0-9])[0-9.eE+-]{1,15}\s*")


class Shape(NamedTuple):
    """The type that values have, the type that they mean, and the converters that take them all."""

    kind: Type
    meaning: Type
    takes: frozenset[str] = frozenset()


def _number(meaning: Type, *moments: str) -> Shape:
    return Shape("number", meaning, frozenset((*moments, "number_to_string")))


SHAPES: dict[str, Shape] = {
    "boolean": Shape("boolean", "boolean", frozenset(["boolean_to_string"])),
    "array": Shape("array", "array"),
    "object": Shape("object", "object"),
    "number": _number("number"),
    "small": _number("number", _S, _MS, _NANOS),
    "small_fraction": _number("number", _S, _MS),
    "seconds": _number("date", _S, _MS, _NANOS),
    "seconds_fraction": _number("date", _S, _MS),
    "millis": _number("date", _MS, _NANOS),
    "millis_fraction": _number("date", _MS),
    "nanos": _number("date", _NANOS),
    "iso": Shape("string", "date"),
    "truth": Shape("string", "boolean", frozenset([_BOOLEAN])),
    "bit": Shape("string", "boolean", frozenset([_BOOLEAN, _NUMBER])),
    "quantity": Shape("string", "number", frozenset([_NUMBER])),
    "digits": Shape("string", "string", frozenset([_NUMBER])),
    "text": Shape("string", "string"),
}


def shape_of(value: Any) -> str:
    """The name of the shape of a JSON value."""
    match value:
        case None:
            return NULL
        case bool():
            return "boolean"
        case int() | float():
            return _of_number(value)
        case str():
            return _of_text(value)
    return "object" if isinstance(value, dict) else "array"


def converter_for(kind: Type, shape: str) -> str | None:
    """The converter that makes values of a type of those with a shape, by their magnitude."""
    return next((name for name in ORDER if name in SHAPES[shape].takes and FUNCTIONS[name].to_type == kind), None)


def converters(functions: set[str]) -> tuple[Converter, ...]:
    """Converters by name, in the order in which they are tried."""
    return tuple(
        Converter(FUNCTIONS[name].from_type, FUNCTIONS[name].to_type, name) for name in ORDER if name in functions
    )


def fits(kind: Type, shape: str) -> bool:
    """Whether values with a shape are of a type as they are."""
    return shape == "iso" if kind == "date" else SHAPES[shape].kind == kind


def accepts(field: Field, shape: str) -> bool:
    """Whether a field takes every value with a shape, as it is or converted."""
    takes = SHAPES[shape].takes
    return fits(field.type, shape) or any(converter.function in takes for converter in field.converters)


def _of_number(value: float) -> str:
    fraction = "" if isinstance(value, int) or value.is_integer() else "_fraction"
    if 0 <= value <= _LAST_S:
        return ("small" if value < _FIRST_S else "seconds") + fraction
    if _FIRST_MS < value <= LAST_MS:
        return "millis" + fraction
    return "nanos" if _FIRST_NANOS <= value <= _LAST_NANOS and not fraction else "number"


def _of_text(value: str) -> str:
    if is_iso(value):
        return "iso"
    bare = value.strip().lower()
    if bare in _TRUTHS or bare in _BITS:
        return "truth" if bare in _TRUTHS else "bit"
    if FUNCTIONS[_NUMBER].convert(value) is None:
        return "text"
    return "quantity" if _QUANTITY.fullmatch(value) else "digits"
