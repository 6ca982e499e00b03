"""What ``convert`` does: to one value, by a table or by a function known by name; and to a shape, for the proof."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec

from headrace.deadline import check_deadline
from headrace.errors import BadRequest
from headrace.schema.canonical import number_of
from headrace.schema.containment.check import describe_alternative, format_json, join_first
from headrace.schema.containment.scalars import highest, lowest, texts
from headrace.schema.entries import exact_number
from headrace.schema.lens.ops import Convert, Scalar, Transform
from headrace.schema.lens.values import LensFailure, Raw, Value, encode_value, kind
from headrace.schema.shape.algebra import union
from headrace.schema.shape.model import (
    INTEGRAL,
    SPELLED,
    Alternative,
    Boolean,
    Bound,
    Null,
    Number,
    Shape,
    Text,
    is_integral,
    shape_of_values,
)
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root
from headrace.types import parse_timestamp_us, rfc3339

TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")

#: The milliseconds that RFC 3339 has a text for: the years 0 to 9999.
FIRST_MILLIS, LAST_MILLIS = -62_167_219_200_000, 253_402_300_799_999

#: Longer integers are not spelled out.
MAX_DIGITS = 4_300

Conversion = Callable[[Value], Raw]

_SCALAR = msgspec.json.Decoder(float_hook=exact_number)
_STRING = msgspec.json.Decoder(str)
_LEADING_INTEGER = re.compile(r"\s*([+-]?)0*(\d+)", re.ASCII)
_CONTAINERS: dict[str, Any] = {"object": {}, "array": []}

# Python's calendar begins with the year 1, and RFC 3339 with the year 0, whose days are those of the year 400.
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
        return name == "number" or (name == "integer" and _Digits.of(value).are_integral)
    return name in _TYPES_OF[type(value)]


_TYPES_OF: dict[type, tuple[str, ...]] = {
    str: ("string",),
    int: ("integer", "number"),
    type(None): ("null",),
    dict: ("object",),
    list: ("array",),
}


class _Digits(NamedTuple):
    """A number as its decimal digits, without zeros at the end, and the position of the decimal point."""

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
    def are_integral(self) -> bool:
        return self.point >= len(self.text)

    def spelled_out(self) -> str:
        if self.are_integral:
            return self.sign + (self.text + "0" * (self.point - len(self.text)) or "0")
        before, after = self.text[: max(self.point, 0)], self.text[max(self.point, 0) :]
        return f"{self.sign}{before or '0'}.{'0' * -self.point}{after}"


def text_of(value: Scalar | Decimal) -> str:
    """The text of a value in a table: numbers as in canonical JSON (RFC 8785), so that equal ones have one text."""
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
    if len(match[2]) > MAX_DIGITS:
        raise ValueError(f"the integer has more than {MAX_DIGITS} digits")
    return int(match[1] + match[2])


def _int_to_string(value: float | Decimal) -> str:
    digits = _Digits.of(value)
    return digits.spelled_out() if digits.point <= MAX_DIGITS else text_of(value)


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
    """A function from a value to the bytes of the converted one; it raises LensFailure."""
    if transform.table is not None:
        return _table_conversion(from_type, to_type, transform.table, transform.default)
    builtin = BUILTINS[transform.builtin or ""]

    def convert(value: Value) -> Raw:
        try:
            converted = builtin.function(_read(value, from_type))
        except ValueError as reason:
            raise LensFailure(str(reason)) from reason
        return _encode_checked(converted, to_type)

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
    """The decoded value, which must be of the type; a container is decoded as empty."""
    try:
        if from_type == "string":
            return _STRING.decode(value)  # type: ignore[arg-type]
        kind_name = kind(value)
        converted = _CONTAINERS[kind_name] if kind_name in _CONTAINERS else _SCALAR.decode(value)  # type: ignore[arg-type]
    except (msgspec.ValidationError, TypeError, InvalidOperation) as reason:
        raise LensFailure(f"the value is not of type {from_type}, or out of its range") from reason
    if not is_type(converted, from_type):
        raise LensFailure(f"the value is not of type {from_type}")
    return converted


def _encode_checked(result: Scalar, to_type: str) -> Raw:
    if not is_type(result, to_type):
        raise LensFailure(f"the result is not of type {to_type}")
    return encode_value(result)


LOWERCASE_GROWTH, UPPERCASE_GROWTH = 2, 3
"""How many code points one can become, and none becomes less than one."""

DATE_TIME = "date-time"
_DAY_MS = 86_400_000
_FIRST_DATE_TIME_MS = -62_135_596_800_000
"""The year 1, with which the format begins; the builtins begin a year earlier."""


class Complaint(NamedTuple):
    """Why a conversion cannot take a value: a rule, and a sentence."""

    rule: str
    reason: str


class Image(NamedTuple):
    """The output shape of a conversion, and complaints about inputs that it cannot take."""

    shape: Shape
    complaints: tuple[Complaint, ...] = ()


def convert_shape(op: Convert, shape: Shape) -> Image:
    """The shape of the converted values of a shape."""
    images = [_convert_alternative(op, alternative) for alternative in shape.alternatives]
    complaints = dict.fromkeys(complaint for image in images for complaint in image.complaints)
    return Image(union(*(image.shape for image in images)), tuple(complaints))


def _convert_alternative(op: Convert, alternative: Alternative) -> Image:
    check_deadline()
    if not _is_of(alternative, op.from_type):
        return _failure(
            op, "type_mismatch", f"it may be {describe_alternative(alternative)}; the op converts {op.from_type} only"
        )
    if op.forward.table is not None:
        return _look_up_table(op, alternative, op.forward.table)
    if op.forward.builtin not in BUILTINS:
        return _failure(op, "unknown_builtin", f"no builtin is called {op.forward.builtin}")
    return _apply_builtin(op, alternative, op.forward.builtin)


def _failure(op: Convert, rule: str, reason: str, outputs: list[Any] | None = None) -> Image:
    """An image with a complaint; without known outputs only the type of the output is known."""
    rest = shape_of(Root({"type": op.to_type}).source) if outputs is None else shape_of_values(outputs)
    return Image(rest, (Complaint(rule, reason),))


def _is_of(alternative: Alternative, name: str) -> bool:
    if isinstance(alternative, Number) and name == "integer":
        return alternative.integer >= INTEGRAL or (
            alternative.values is not None and all(map(is_integral, alternative.values))
        )
    return alternative.kind == name


def list_finite_values(alternative: Alternative) -> list[Any] | None:
    """The values of an alternative one by one, where they can be listed; numbers exactly."""
    match alternative:
        case Null():
            return [None]
        case Boolean(values=values):
            return sorted(values)
        case Number():
            number_texts = texts(alternative)
            return None if number_texts is None else sorted(map(number_of, number_texts))
        case Text(values=frozenset() as number_texts):
            return sorted(number_texts)
    return None


def _look_up_table(op: Convert, alternative: Alternative, table: dict[str, Any]) -> Image:
    default = op.forward.default
    values = list_finite_values(alternative)
    if values is None:
        if default is msgspec.UNSET:
            reason = (
                f"it may be {describe_alternative(alternative)}; the table has no default for what it does not list"
            )
            return _failure(op, "not_total", reason, [*table.values()])
        outputs = [default] if alternative.kind in ("object", "array") else [*table.values(), default]
        return _check_result_type(op, outputs)
    unknown = [format_json(value) for value in values if text_of(value) not in table]
    if unknown and default is msgspec.UNSET:
        outputs = [table[text_of(value)] for value in values if text_of(value) in table]
        return _failure(op, "not_total", f"the table has no entry for {join_first(unknown)}, and no default", outputs)
    return _check_result_type(op, [table.get(text_of(value), default) for value in values])


def _check_result_type(op: Convert, outputs: list[Any]) -> Image:
    wrong = [format_json(output) for output in outputs if not is_type(output, op.to_type)]
    if wrong:
        return _failure(op, "result_type", f"it becomes {join_first(wrong)}; the op says {op.to_type}")
    return Image(shape_of_values(outputs))


def _apply_builtin(op: Convert, alternative: Alternative, name: str) -> Image:
    values = list_finite_values(alternative)
    if values is not None:
        return _apply_to_each(op, values, name)
    match name, alternative:
        case "lowercase", Text():
            return Image(_change_case(alternative, LOWERCASE_GROWTH))
        case "uppercase", Text():
            return Image(_change_case(alternative, UPPERCASE_GROWTH))
        case "int_to_string", Number():
            return Image(Shape((Text(low=1, high=_digits(alternative)),)))
        case "rfc3339_to_unix_millis", Text() if DATE_TIME in alternative.formats:
            return Image(Shape((_MILLIS,)))
        case "unix_millis_to_rfc3339", Number() if _in_calendar(alternative):
            return Image(Shape((_spelled_time(alternative),)))
    return _failure(op, "not_total", f"{name} cannot take every value: it may be {describe_alternative(alternative)}")


_MILLIS = Number(integer=SPELLED, low=Bound(FIRST_MILLIS - _DAY_MS), high=Bound(LAST_MILLIS + _DAY_MS + 1))
"""The times of RFC 3339: years 0 to 9999, and offsets of less than a day."""


def _apply_to_each(op: Convert, values: list[Any], name: str) -> Image:
    outputs = []
    for value in values:
        check_deadline()
        try:
            outputs.append(BUILTINS[name].function(value))
        except (ValueError, OverflowError) as reason:
            return _failure(op, "not_total", f"{name} cannot take {format_json(value)}: {reason}")
    return _check_result_type(op, outputs)


def _change_case(text: Text, growth: int) -> Shape:
    return Shape((Text(low=text.low, high=None if text.high is None else text.high * growth),))


def _digits(number: Number) -> int | None:
    low, high = lowest(number), highest(number)
    if low is None or high is None:
        return None
    return max(len(str(int(bound.value))) for bound in (low, high))


def _spelled_time(millis: Number) -> Text:
    low = lowest(millis)
    modern = low is not None and low.value >= _FIRST_DATE_TIME_MS
    return Text(low=24, high=24, formats=frozenset((DATE_TIME,)) if modern else frozenset())


def _in_calendar(number: Number) -> bool:
    low, high = lowest(number), highest(number)
    return low is not None and high is not None and low.value >= FIRST_MILLIS and high.value <= LAST_MILLIS
