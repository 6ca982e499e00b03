"""One text for each JSON value, however it was spelled: two values are equal if their texts are.

A number means the decimal that its shortest spelling says, as validators have it: 1e22 is 10000000000000000000000.
"""

from __future__ import annotations

import json
from decimal import Context, Decimal
from typing import Any

_DIGITS = Context(prec=10_000)


def value_text(value: Any) -> str:
    """The text of a JSON value: members sorted, 1.0 as 1."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{value_text(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(value_text(item) for item in value) + "]"
    return str(exactly(value)) if isinstance(value, float | Decimal) else json.dumps(value)


def exactly(number: int | float | Decimal) -> int | Decimal:
    """The decimal a number means, as an integer where it is one."""
    if isinstance(number, int):
        return number
    decimal = Decimal(repr(number)) if isinstance(number, float) else number
    exact = decimal.normalize(_DIGITS)
    # Nothing is gained from the digits of an integer that nobody can write down.
    return int(exact) if 0 <= int(exact.as_tuple().exponent) < 1_000 else exact


def number_of(text: str) -> int | Decimal:
    """The number that a JSON text spells, exactly."""
    return json.loads(text, parse_float=Decimal)  # type: ignore[no-any-return]


def json_number(text: str) -> int | float:
    """The number that a JSON text spells, as an int or a float."""
    number: int | float = json.loads(text)
    return number


def same(left: Any, right: Any) -> bool:
    """Equal whatever the order of members and the spelling of numbers; true is not 1."""
    return value_text(left) == value_text(right)


def plain(value: Any) -> Any:
    """A JSON value whose whole numbers have no fraction."""
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, list):
        return [plain(member) for member in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
