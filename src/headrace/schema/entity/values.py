"""Values of the six field types: checking, constraints and converters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import InvalidOperation
from typing import Any, NamedTuple

from headrace.schema import document
from headrace.schema.canonical import exactly
from headrace.schema.date_time import is_date_time
from headrace.schema.entity.nodes import Constraints, Definition, Field, Notice, Type
from headrace.schema.entries import exact_number

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


def type_of(value: Any) -> Type | None:
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


_TEXT: tuple[Type, ...] = ("string", "date")
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*\.?|\[[0-9A-Fa-f:.]+\])"
_URL = rf"[A-Za-z][A-Za-z0-9+.-]*://(?:[^\s/?#@]+@)?{_HOST}(?::[0-9]{{1,5}})?(?:[/?#]\S*)?"
_UUID = "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_PHONE = re.compile(r"\+?[0-9(][0-9 ().-]*[0-9]")


class FieldValidator(NamedTuple):
    """A validator: the types of its values, what it accepts, and a description of that."""

    types: tuple[Type, ...]
    accepts: Callable[[Any], bool]
    description: str


def _matching(pattern: str) -> Callable[[Any], bool]:
    compiled = re.compile(pattern)
    return lambda value: compiled.fullmatch(value) is not None


def _email(value: str) -> bool:
    """One local part without blanks and a domain of labels; the whole is no longer than mail allows."""
    local, at, domain = value.rpartition("@")
    if not at or not 1 <= len(local) <= 64 or len(domain) > 253 or ".." in local:
        return False
    return _LOCAL(local) and "." in domain and _DOMAIN(domain)


def _phone(value: str) -> bool:
    return _PHONE.fullmatch(value) is not None and 5 <= sum(map(str.isdigit, value)) <= 15


_LOCAL = _matching(r"[^\s@.\"(),:;<>\[\]\\](?:[^\s@\"(),:;<>\[\]\\]*[^\s@.\"(),:;<>\[\]\\])?")
_DOMAIN = _matching(rf"{_LABEL}(?:\.{_LABEL})*")

VALIDATORS: dict[str, FieldValidator] = {
    "email": FieldValidator(("string",), _email, "an address such as name@example.org"),
    "url": FieldValidator(("string",), _matching(_URL), "an absolute address such as https://example.org/page"),
    "iso_date": FieldValidator(_TEXT, is_day, "a day such as 2026-01-31"),
    "iso_datetime": FieldValidator(_TEXT, is_date_time, "a moment with a zone such as 2026-01-31T12:00:00Z"),
    "phone": FieldValidator(("string",), _phone, "a telephone number of 5 to 15 digits"),
    "currency": FieldValidator(("string",), _matching("[A-Z]{3}"), "a currency code of three capitals"),
    "country": FieldValidator(("string",), _matching("[A-Z]{2}"), "a country code of two capitals"),
    "slug": FieldValidator(
        ("string",), _matching("[a-z0-9]+(?:-[a-z0-9]+)*"), "small letters, digits and single hyphens"
    ),
    "uuid": FieldValidator(("string",), _matching(_UUID), "a UUID"),
    "non_empty": FieldValidator(
        ("string", "date", "array", "object"),
        lambda value: bool(value.strip() if isinstance(value, str) else value),
        "something that is not empty",
    ),
    "integer": FieldValidator(("number",), lambda value: value == value // 1, "a whole number"),
    "positive": FieldValidator(("number",), lambda value: value > 0, "a number above zero"),
    "non_negative": FieldValidator(("number",), lambda value: value >= 0, "a number not below zero"),
}


class Violation(NamedTuple):
    """A value that its field does not allow: the constraint that it violates, and a sentence."""

    field: str
    message: str
    constraint: str
    constraint_value: Any

    def notice(self) -> Notice:
        """The warning where such a value is stored nevertheless."""
        facts = self.constraint, self.constraint_value
        return Notice("CONSTRAINT_VIOLATION", self.message, (self.field,), *facts)


class ConstraintChecker:
    """The constraints of a definition, compiled once to check many entities."""

    def __init__(self, definition: Definition) -> None:
        self.rejects = definition.constraint_violation_policy == "reject"
        self._checks = {
            name: compile_check(name, field.constraints)
            for name, field in definition.fields.items()
            if field.constraints is not None
        }

    def violations(self, fields: Mapping[str, Any]) -> list[Violation]:
        """The first violation of each field; null violates nothing."""
        violations = []
        for name, check in self._checks.items():
            value = fields.get(name)
            violation = None if value is None else check(value)
            if violation is not None:
                violations.append(violation)
        return violations


def compile_check(name: str, constraints: Constraints) -> Callable[[Any], Violation | None]:
    """A function that returns the first violation by a value of a field, or None."""
    least, greatest = _exact(constraints.min), _exact(constraints.max)
    choices, banned = list(map(_exact, constraints.enum)), list(map(_exact, constraints.banned))
    pattern = None if constraints.pattern is None else document.Validator({"pattern": constraints.pattern})

    def violation(constraint: str, reason: str) -> Violation:
        return Violation(name, f"{name}: {reason}", constraint, getattr(constraints, constraint))

    def check(value: Any) -> Violation | None:
        exact = _exact(value)
        if least is not None and exact < least:
            return violation("min", f"is below {constraints.min}")
        if greatest is not None and exact > greatest:
            return violation("max", f"is above {constraints.max}")
        if choices and exact not in choices:
            return violation("enum", f"is none of {', '.join(map(repr, constraints.enum))}")
        if exact in banned:
            return violation("banned", "is a value that is banned")
        if pattern is not None and not pattern.accepts(value):
            return violation("pattern", f"does not match {constraints.pattern}")
        return None

    return check


def _exact(value: Any) -> Any:
    """A float as the number that its digits spell; other values as they are."""
    return exactly(value) if isinstance(value, float) else value


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern that runs in linear time."""
    return not document.problems({"pattern": text})


UNFIT: Any = object()

#: The start of the year 2100: a later time is taken to be in another unit.
LAST_MS = 4_102_444_800_000
#: Longer texts are not read as numbers.
MAX_DIGITS = 400

_EPOCH = datetime(1970, 1, 1)  # of UTC; none of the arithmetic needs a zone
_NUMBER = re.compile(r"[+-]?[0-9]+(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class ConverterFunction(NamedTuple):
    """A converter: what it takes, what it makes, and how."""

    from_type: Type
    to_type: Type
    convert: Callable[[Any], Any]


def convert_value(field: Field, value: Any) -> Any:
    """The value if it is of the field's type, else what the first converter that can makes of it, else UNFIT."""
    if fits(value, field.type):
        return value
    value_type = type_of(value)
    for converter in field.converters:
        if converter.from_type == value_type:
            function = FUNCTIONS[converter.function]
            made = function.convert(value) if function.to_type == field.type else None
            if made is not None:
                return made
    return UNFIT


def _moment(per_second: int, integral: bool = False) -> Callable[[Any], str | None]:
    """A converter of moments since 1970 in a unit, cut to milliseconds; some are of whole numbers only."""

    def convert(value: Any) -> str | None:
        exact = exactly(value)
        millis = exact * 1_000 // per_second
        if exact < 0 or millis > LAST_MS or (integral and not isinstance(exact, int)):
            return None
        return (_EPOCH + timedelta(milliseconds=int(millis))).isoformat(timespec="milliseconds") + "Z"

    return convert


def decimal(value: float) -> str:
    """The decimal digits of a number: never an exponent, no fraction of zeros, no negative zero."""
    exact = exactly(value)
    return str(exact) if isinstance(exact, int) else format(exact, "f")


def _number(text: str) -> int | float | None:
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= MAX_DIGITS else None
    if match is None:
        return None
    if match["fraction"] is None and match["exponent"] is None:
        return int(match[0])
    number = float(match[0])
    if not math.isfinite(number):
        return None
    try:
        exact = exact_number(match[0])
    except InvalidOperation:
        return None
    if isinstance(exact, int):
        return exact
    return number if number or not exact else None


def _text(value: bool) -> str:
    return "true" if value else "false"


def _boolean(text: str) -> bool | None:
    return _BOOLEANS.get(text.strip().lower())


FUNCTIONS: dict[str, ConverterFunction] = {
    "timestamp_nanos_to_iso": ConverterFunction("number", "date", _moment(1_000_000_000, integral=True)),
    "timestamp_ms_to_iso": ConverterFunction("number", "date", _moment(1_000)),
    "timestamp_s_to_iso": ConverterFunction("number", "date", _moment(1)),
    "number_to_string": ConverterFunction("number", "string", decimal),
    "string_to_number": ConverterFunction("string", "number", _number),
    "boolean_to_string": ConverterFunction("boolean", "string", _text),
    "string_to_boolean": ConverterFunction("string", "boolean", _boolean),
}
