"""The values of a field in a document, in the one form in which they are compared.

=========  ====================================================  =====================================
kind       is read from                                          is compared as
=========  ====================================================  =====================================
keyword    a string                                              the string, in lower case if so declared
text       a string                                              the string; its words, for words and phrases
integer    a whole number, however spelled, or its digits        an integer of any size
float      a finite number or its decimal text                   a double
date       a number of milliseconds or its digits, ISO 8601 text milliseconds since 1970
bool       ``true``, ``false`` or their text                     a boolean
=========  ====================================================  =====================================

Everything else, ``null`` included, is no value. The elements of an array are values of their own, however deep.
A text of 4, 7, 8 or 14 digits is a date of ISO 8601 without its signs, and never a number of milliseconds: a year, a
day of a year, a day of a month, or that day with a time. A text of 6 or 10 digits is no value: it may be a month, an
hour or seconds since 1970, and as milliseconds all of these would lie in 1970.
"""

from __future__ import annotations

import math
import re
from calendar import isleap
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from headrace.query.search import Field, Kind
from headrace.schema import pointer
from headrace.schema.canonical import exactly
from headrace.types import DATE_DIGITS

_WORD = re.compile(r"[^\W_]+")


def lower(text: str) -> str:
    """Lower case, letter by letter, so that a part of a text stays a part of it.

    Two letters would break that promise: a capital sigma has another form at the end of a word, a dotted capital I
    becomes two characters. Here there is one small sigma and one small i.
    """
    return text.replace("İ", "i").lower().replace("ς", "σ")


def words(text: str) -> list[str]:
    """The words of a text: runs of letters and digits of any script, in lower case."""
    return _WORD.findall(lower(text))


def has_words(text_words: list[str], wanted: list[str], *, prefix: bool) -> bool:
    """Whether all words are there in any order; with ``prefix``, the last one is the beginning of a word."""
    *leading, last = wanted
    if not set(leading) <= set(text_words):
        return False
    return any(word.startswith(last) for word in text_words) if prefix else last in text_words


def has_phrase(text_words: list[str], wanted: list[str], *, prefix: bool) -> bool:
    """Whether the words follow each other; with ``prefix``, the last one is the beginning of a word."""
    *leading, last = wanted
    return any(
        text_words[start : start + len(leading)] == leading and (word.startswith(last) if prefix else word == last)
        for start, word in enumerate(text_words[len(leading) :])
    )


Canonical = str | int | float | bool

#: A text of so many digits is no number of milliseconds.
NOT_MILLISECONDS = DATE_DIGITS | {6, 10}
#: As many digits as Python and our JSON decoder read.
MAX_DIGITS = 4_300

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_MOMENT = re.compile(
    r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))?)?)?)?"
)
_BASIC = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})(?:([0-9]{2})([0-9]{2})([0-9]{2}))?")
_DAY_OF_YEAR = re.compile(r"([0-9]{4})([0-9]{3})")


def values(field: Field, document: Any) -> list[Canonical]:
    """The canonical values of a field in a document of the newest shape."""
    canonical_values = (canonical(field, raw) for raw in raw_values(field, document))
    return [value for value in canonical_values if value is not None]


def raw_values(field: Field, document: Any) -> Iterator[Any]:
    """What lies where the field is bound, arrays flattened, in order."""
    is_present, value = resolve(document, field.pointer)
    pending = [value] if is_present else []
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(reversed(value))
        else:
            yield value


def resolve(document: Any, path: pointer.Pointer) -> tuple[bool, Any]:
    """Whether there is something at a place of a document, and what."""
    for name in path:
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and (at := pointer.index(name)) is not None and at < len(document):
            document = document[at]
        else:
            return False, None
    return True, document


def canonical(field: Field, value: Any) -> Canonical | None:
    """The form in which a value is compared, or None where it is no value of this field."""
    if field.kind is Kind.KEYWORD and field.lowercase:
        return lower(value) if isinstance(value, str) else None
    return _READERS[field.kind](value)


def number(kind: Kind, value: Any) -> int | float | None:
    """A JSON number as fields of a kind compare it, an integer for dates; None where it is no such number."""
    if isinstance(value, str):
        return None
    return _float(value) if kind is Kind.FLOAT else _integer(value)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: Any) -> int | None:
    match value:
        case bool():
            return None
        case int():
            return value
        case float():
            return int(exactly(value)) if value.is_integer() else None
        case Decimal():
            return _to_integer(value)
        case str():
            text = value.strip()
            return int(text) if len(text.removeprefix("-")) <= MAX_DIGITS and _INTEGER.fullmatch(text) else None
    return None


def _to_integer(value: Decimal) -> int | None:
    """A decimal as an integer, or None where it has a fraction or more digits than are read."""
    return int(value) if value.adjusted() < MAX_DIGITS and value == value.to_integral_value() else None


def _float(value: Any) -> float | None:
    if isinstance(value, str):
        value = value.strip()
        if not _DECIMAL.fullmatch(value):
            return None
    elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number + 0.0 if math.isfinite(number) else None


def _date(value: Any) -> int | None:
    match value:
        case bool():
            return None
        case int():
            return value
        case float():
            return int(exactly(value)) if math.isfinite(value) else None
        case Decimal():
            return int(value) if value.adjusted() < MAX_DIGITS else None
        case str():
            text = value.strip()
            moment = _MOMENT.fullmatch(_with_separators(text))
            return _moment(moment) if moment else _milliseconds(text)
    return None


def _milliseconds(text: str) -> int | None:
    """A number by the count of its digits; a sign always makes it one."""
    return None if len(text) in NOT_MILLISECONDS and text.isdigit() else _integer(text)


def _with_separators(text: str) -> str:
    """A date of digits alone with the signs of ISO 8601; other texts, and days that no year has, as they are."""
    if basic := _BASIC.fullmatch(text):
        year, month, day, *time = basic.groups()
        return f"{year}-{month}-{day}" + ("" if time[0] is None else f"T{':'.join(time)}")
    if ordinal := _DAY_OF_YEAR.fullmatch(text):
        year, number = map(int, ordinal.groups())
        if year and 1 <= number <= 365 + isleap(year):
            return (date(year, 1, 1) + timedelta(days=number - 1)).isoformat()
    return text


def _moment(match: re.Match[str]) -> int | None:
    """Milliseconds since 1970 of an ISO 8601 text; what it leaves out is the least, or UTC."""
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = match.groups()
    try:
        moment = datetime(int(year), int(month or 1), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0))
    except ValueError:
        return None
    shift = timedelta()
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            return None
        shift = timedelta(hours=int(hours), minutes=int(minutes)) * (-1 if sign == "-" else 1)
    milliseconds = (moment.replace(tzinfo=UTC) - _EPOCH - shift) // timedelta(milliseconds=1)
    return milliseconds + int((fraction or "").ljust(3, "0")[:3])


def _bool(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None


_READERS: dict[Kind, Callable[[Any], Canonical | None]] = {
    Kind.KEYWORD: _string,
    Kind.TEXT: _string,
    Kind.INTEGER: _integer,
    Kind.FLOAT: _float,
    Kind.DATE: _date,
    Kind.BOOL: _bool,
}
