"""The converters that there are: pure functions from one type to another, which give None where they cannot.

A moment becomes text by whole numbers alone, so nanoseconds beyond 2**53 are not rounded to the wrong millisecond.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import InvalidOperation
from typing import Any, NamedTuple

from headrace.schema.entity.nodes import Field, Type
from headrace.schema.entity.values import fits, kind
from headrace.schema.entries import exactly as exact_number
from headrace.schema.shape.canonical import exactly

#: What ``converted`` gives for a value that is not of the type and does not become so.
UNFIT: Any = object()

#: The start of the year 2100: what lies beyond is no moment in this unit.
LAST_MS = 4_102_444_800_000
#: Longer texts are no numbers that anybody wrote.
MOST_DIGITS = 400

_EPOCH = datetime(1970, 1, 1)  # of UTC; none of the arithmetic needs a zone
_NUMBER = re.compile(r"[+-]?[0-9]+(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Function(NamedTuple):
    """A converter: what it takes, what it makes, and how."""

    from_type: Type
    to_type: Type
    convert: Callable[[Any], Any]


def converted(field: Field, value: Any) -> Any:
    """The value if it is of the field's type, else what the first converter that can makes of it, else UNFIT."""
    if fits(value, field.type):
        return value
    given = kind(value)
    for converter in field.converters:
        if converter.from_type == given:
            function = FUNCTIONS[converter.function]
            made = function.convert(value) if function.to_type == field.type else None
            if made is not None:
                return made
    return UNFIT


def _moment(per_second: int, whole: bool = False) -> Callable[[Any], str | None]:
    """A converter of moments since 1970 in a unit, cut to milliseconds; some are of whole numbers only."""

    def convert(value: Any) -> str | None:
        exact = exactly(value)
        millis = exact * 1_000 // per_second
        if exact < 0 or millis > LAST_MS or (whole and not isinstance(exact, int)):
            return None
        return (_EPOCH + timedelta(milliseconds=int(millis))).isoformat(timespec="milliseconds") + "Z"

    return convert


def decimal(value: float) -> str:
    """The decimal digits of a number: never an exponent, no fraction of zeros, no negative zero."""
    exact = exactly(value)
    return str(exact) if isinstance(exact, int) else format(exact, "f")


def _number(text: str) -> int | float | None:
    found = _NUMBER.fullmatch(text.strip()) if len(text) <= MOST_DIGITS else None
    if found is None:
        return None
    if found["fraction"] is None and found["exponent"] is None:
        return int(found[0])
    number = float(found[0])
    if not math.isfinite(number):
        return None
    try:
        exact = exact_number(found[0])
    except InvalidOperation:
        return None
    if isinstance(exact, int):
        return exact
    return number if number or not exact else None


def _text(value: bool) -> str:
    return "true" if value else "false"


def _boolean(text: str) -> bool | None:
    return _BOOLEANS.get(text.strip().lower())


FUNCTIONS: dict[str, Function] = {
    "timestamp_nanos_to_iso": Function("number", "date", _moment(1_000_000_000, whole=True)),
    "timestamp_ms_to_iso": Function("number", "date", _moment(1_000)),
    "timestamp_s_to_iso": Function("number", "date", _moment(1)),
    "number_to_string": Function("number", "string", decimal),
    "string_to_number": Function("string", "number", _number),
    "boolean_to_string": Function("boolean", "string", _text),
    "string_to_boolean": Function("string", "boolean", _boolean),
}
