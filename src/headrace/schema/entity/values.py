"""Values of the six types, as JSON has them."""

from __future__ import annotations

import math
import re
from datetime import date
from typing import Any

from headrace.schema.entity.nodes import Type

_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?)?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):?[0-5][0-9])?"
_DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ISO = re.compile(rf"{_DAY.pattern}(?:[T ]{_TIME}{_ZONE})?")
_PYTHON: dict[type, Type] = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    list: "array",
    tuple: "array",
    dict: "object",
}

#: Types whose values are all that Python has of a type; that of a float may be no number.
PLAIN: dict[Type, type] = {"string": str, "boolean": bool, "number": int, "array": list, "object": dict}


def kind(value: Any) -> Type | None:
    """The type of a JSON value, where a date is a string; null is of no type."""
    return _PYTHON.get(type(value))


def fits(value: Any, expected: Type) -> bool:
    """Whether a value is of a type."""
    if expected == "date":
        return isinstance(value, str) and is_iso(value)
    if expected == "number" and isinstance(value, float):
        return math.isfinite(value)
    return _PYTHON.get(type(value)) == expected


def is_iso(text: str) -> bool:
    """Whether a text is a day of the calendar, or such a day with a time, as ISO 8601 spells them."""
    return _ISO.fullmatch(text) is not None and is_day(text[:10])


def is_day(text: str) -> bool:
    """Whether a text is a day of the calendar."""
    if _DAY.fullmatch(text) is None:
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
