"""What ``convert`` does to one value: by a table from the text of the value, or by a function that is known by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec

from headrace.errors import BadRequest
from headrace.schema.entries import exactly
from headrace.schema.lens.ops import Scalar, Transform
from headrace.schema.lens.values import LensFailure, Raw, Value, encode_value, kind
from headrace.types import parse_timestamp_us, rfc3339

TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")

#: The milliseconds that RFC 3339 has a text for: the years 0 to 9999.
FIRST_MILLIS, LAST_MILLIS = -62_167_219_200_000, 253_402_300_799_999

#: What is longer is not spelled out.
MOST_DIGITS = 4_300

Conversion = Callable[[Value], Raw]

_SCALAR = msgspec.json.Decoder(float_hook=exactly)
_STRING = msgspec.json.Decoder(str)
_LEADING_INTEGER = re.compile(r"\s*([+-]?)0*(\d+)", re.ASCII)
_CONTAINERS: dict[str, Any] = {"object": {}, "array": []}

# Python's calendar begins with the year 1, RFC 3339 with the year 0, which looks like the year 400.
_YEAR_ONE_MS = -62_135_596_800_000
_FOUR_CENTURIES_MS = 146_097 * 86_400_000


class Builtin(NamedTuple):
    """A function from a value of one type to one of another; what it cannot take is a ValueError."""

    from_type: str
    to_type: str
    function: Callable[[Any], Scalar]


def is_type(value: Any, name: str) -> bool:
    """Whether a JSON value is of a type as JSON Schema has it: 1.0 is an integer, and an integer is a number."""
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, float | Decimal):
        return name == "number" or (name == "integer" and _Digits.of(value).are_whole)
    return name in _TYPES_OF[type(value)]


_TYPES_OF: dict[type, tuple[str, ...]] = {
    str: ("string",),
    int: ("integer", "number"),
    type(None): ("null",),
    dict: ("object",),
    list: ("array",),
}


class _Digits(NamedTuple):
    """A number by its decimal digits, without zeros at the end, and where the point stands among them."""

    sign: str
    text: str
    point: int

    @classmethod
    def of(cls, value: float | Decimal) -> _Digits:
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        sign, digits, exponent = exact.as_tuple()
        assert isinstance(exponent, int), "JSON has no infinities"
        text = "".join(map(str, digits)).lstrip("0")
        return cls("-" if sign and text else "", text.rstrip("0"), len(text) + exponent if text else 0)

    @property
    def are_whole(self) -> bool:
        return self.point >= len(self.text)

    def spelled_out(self) -> str:
        if self.are_whole:
            return self.sign + (self.text + "0" * (self.point - len(self.text)) or "0")
        before, after = self.text[: max(self.point, 0)], self.text[max(self.point, 0) :]
        return f"{self.sign}{before or '0'}.{'0' * -self.point}{after}"


def text_of(value: Scalar | Decimal) -> str:
    """The text by which a table knows a value: numbers as in canonical JSON (RFC 8785), equal ones alike."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return str(msgspec.json.encode(value), "ascii")
    digits = _Digits.of(value)
    if -6 < digits.point <= 21:
        return digits.spelled_out()
    first, others = digits.text[0], digits.text[1:]
    return f"{digits.sign}{first}{'.' if others else ''}{others}e{digits.point - 1:+d}"


def _string_to_int(text: str) -> int:
    match = _LEADING_INTEGER.match(text)
    if match is None:
        raise ValueError("the text does not begin with an integer")
    if len(match[2]) > MOST_DIGITS:
        raise ValueError(f"the integer has more than {MOST_DIGITS} digits")
    return int(match[1] + match[2])


def _int_to_string(value: float | Decimal) -> str:
    digits = _Digits.of(value)
    return digits.spelled_out() if digits.point <= MOST_DIGITS else text_of(value)


def _rfc3339_to_unix_millis(text: str) -> int:
    if text.isdigit():
        raise ValueError("the text is no RFC 3339 time")
    year_zero, leap_second = text.startswith("0000-"), text[17:19] == "60"
    plain = ("0400-" + text[5:]) if year_zero else text
    if leap_second:
        plain = plain[:17] + "59" + plain[19:]
    try:
        millis = parse_timestamp_us(plain, "time") // 1000
    except BadRequest as reason:
        raise ValueError("the text is no RFC 3339 time") from reason
    return millis - year_zero * _FOUR_CENTURIES_MS + leap_second * 1000


def _unix_millis_to_rfc3339(value: float | Decimal) -> str:
    if not FIRST_MILLIS <= value <= LAST_MILLIS:
        raise ValueError("the time lies outside the years 0 to 9999")
    millis = int(value)
    if millis < _YEAR_ONE_MS:
        return "0000" + _unix_millis_to_rfc3339(millis + _FOUR_CENTURIES_MS)[4:]
    return f"{rfc3339(millis // 1000 * 1_000_000)[:19]}.{millis % 1000:03d}Z"


BUILTINS: dict[str, Builtin] = {
    "lowercase": Builtin("string", "string", str.lower),
    "uppercase": Builtin("string", "string", str.upper),
    "string_to_int": Builtin("string", "integer", _string_to_int),
    "int_to_string": Builtin("integer", "string", _int_to_string),
    "rfc3339_to_unix_millis": Builtin("string", "integer", _rfc3339_to_unix_millis),
    "unix_millis_to_rfc3339": Builtin("integer", "string", _unix_millis_to_rfc3339),
}


def make_conversion(from_type: str, to_type: str, transform: Transform) -> Conversion:
    """A transform, ready to run: a value in, its bytes out, or LensFailure."""
    if transform.table is not None:
        return _table_conversion(from_type, to_type, transform.table, transform.default)
    builtin = BUILTINS[transform.builtin or ""]

    def convert(value: Value) -> Raw:
        try:
            result = builtin.function(_read(value, from_type))
        except ValueError as reason:
            raise LensFailure(str(reason)) from reason
        return _encode_checked(result, to_type)

    return convert


def _table_conversion(from_type: str, to_type: str, table: dict[str, Scalar], default: Any) -> Conversion:
    answers = {text: encode_value(value) for text, value in table.items() if is_type(value, to_type)}

    def convert(value: Value) -> Raw:
        decoded = _read(value, from_type)
        text = decoded if type(decoded) is str else None if isinstance(decoded, dict | list) else text_of(decoded)
        answer = answers.get(text)  # type: ignore[arg-type]
        if answer is not None:
            return answer
        if text in table:
            return _encode_checked(table[text], to_type)
        if default is msgspec.UNSET:
            raise LensFailure("the table has no entry for " + (from_type if text is None else repr(text)))
        return _encode_checked(default, to_type)

    return convert


def _read(value: Value, from_type: str) -> Any:
    """The value, which must be of the type; what is inside a container does not count."""
    try:
        if from_type == "string":
            return _STRING.decode(value)  # type: ignore[arg-type]
        kind_name = kind(value)
        result = _CONTAINERS[kind_name] if kind_name in _CONTAINERS else _SCALAR.decode(value)  # type: ignore[arg-type]
    except (msgspec.ValidationError, TypeError, InvalidOperation) as reason:
        raise LensFailure(f"the value is not of type {from_type}, or out of its range") from reason
    if not is_type(result, from_type):
        raise LensFailure(f"the value is not of type {from_type}")
    return result


def _encode_checked(result: Scalar, to_type: str) -> Raw:
    if not is_type(result, to_type):
        raise LensFailure(f"the result is not of type {to_type}")
    return encode_value(result)
