"""Values of the types of fields, as JSON has them: strict, and nothing is parsed from text."""

from __future__ import annotations

import math
import re
from typing import Any

from headrace.schema.date_time import is_date_time
from headrace.schema.descriptor.nodes import Type
from headrace.types import format_duration, parse_duration_us

FOREVER = "forever"
#: A hundred years; more than any event will be kept.
LONGEST_MS = 100 * 366 * 86_400_000

_DURATION = re.compile(r"[1-9][0-9]{0,14}(?:ms|s|m|h|d)", re.ASCII)


def parse_duration_ms(given: Any) -> int | None:
    """The milliseconds of a duration; None where it is none."""
    if not isinstance(given, str) or _DURATION.fullmatch(given) is None or len(given) > 14:
        return None
    found = parse_duration_us(given, "duration") // 1000
    return found if found <= LONGEST_MS else None


def format_duration_ms(found: int | None) -> str:
    """A duration in its largest whole unit; None is for ever."""
    return FOREVER if found is None else format_duration(found * 1000)


#: What ``coerce_value`` gives for a value that is not of the type.
UNFIT: Any = object()

LEAST, GREATEST = -(2**63), 2**63 - 1

#: Base64 with padding, one spelling for all bytes: bits that do not count are zero.
BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"
_BASE64 = re.compile(BASE64)


def coerce_value(value: Any, kind: Type) -> Any:
    """The value as rows hold it: int for i64, float for f64, otherwise as it is; UNFIT where it is not of the type."""
    if isinstance(value, bool) or kind == "bool":
        return value if isinstance(value, bool) and kind == "bool" else UNFIT
    if kind in ("i64", "f64"):
        return _number(value, kind)
    if not isinstance(value, str) or any("\ud800" <= character <= "\udfff" for character in value):
        return UNFIT
    if kind == "bytes":
        return value if _BASE64.fullmatch(value) else UNFIT
    return value if kind == "str" or is_date_time(value) else UNFIT


def _number(value: Any, kind: Type) -> Any:
    if not isinstance(value, int | float):
        return UNFIT
    if kind == "f64":
        try:
            found = float(value)
        except OverflowError:
            return UNFIT
        return found if math.isfinite(found) else UNFIT
    if isinstance(value, float) and not value.is_integer():
        return UNFIT
    return int(value) if LEAST <= value <= GREATEST else UNFIT
