"""Values of fields as arguments of keys: the same text for the same value, whoever computes it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from headrace.schema.date_time import is_date_time

_DECIMAL = re.compile("-?(?:0|[1-9][0-9]*)")
#: From here on a number is written with an exponent.
_LARGE = 1e21
_SMALLEST_PLAIN = -6


def encode_argument(value: Any, encoding: str) -> str | None:
    """A value as an argument; None where it has no form in this encoding."""
    return ENCODINGS[encoding](value)


def _string(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return _number(value)


def _number(value: Any) -> str | None:
    """A number in its fewest digits; a whole one without a fraction, however it was spelled."""
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, float) or not math.isfinite(value):
        return None
    shortest = repr(value)
    digits, _, exponent = shortest.partition("e")
    if value.is_integer() and abs(value) < _LARGE:
        return format(Decimal(shortest), "f").removesuffix(".0") if value else "0"
    if not exponent:
        return digits
    power = int(exponent)
    return format(Decimal(shortest), "f") if _SMALLEST_PLAIN <= power < 0 else f"{digits}e{power:+d}"


def _int64(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = value.strip()
        return value if _DECIMAL.fullmatch(value) else None
    if isinstance(value, float) and not value.is_integer():
        return None
    return _number(value)


def _bool(value: Any) -> str | None:
    return ("1" if value else "0") if isinstance(value, bool) else None


def _datetime(value: Any) -> str | None:
    if not isinstance(value, str) or not is_date_time(value):
        return None
    try:
        moment = datetime.fromisoformat(value).astimezone(UTC)
    except OverflowError:
        return None  # in its zone it is a moment of the years 1 to 9999, and in UTC it is not
    return moment.strftime("%Y-%m-%dT%H:%M:%S.").zfill(20) + f"{moment.microsecond // 1000:03d}Z"


def _bytes(value: Any) -> str | None:
    return value if isinstance(value, str) else None


#: How a field of a template is written.
ENCODINGS: dict[str, Callable[[Any], str | None]] = {
    "string": _string,
    "int64": _int64,
    "bool": _bool,
    "datetime": _datetime,
    "bytes": _bytes,
}
