"""What a conversion makes of a shape, and whether it can take all of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from headrace.deadline import check_deadline
from headrace.schema.canonical import number_of
from headrace.schema.containment.check import describe_alternative, format_json, join_first
from headrace.schema.containment.scalars import highest, lowest, texts
from headrace.schema.lens.builtins import BUILTINS, FIRST_MILLIS, LAST_MILLIS, is_type, text_of
from headrace.schema.lens.ops import Convert
from headrace.schema.shape.exact import is_whole, shape_of_values
from headrace.schema.shape.join import union
from headrace.schema.shape.model import (
    SPELLED,
    WHOLE,
    Alternative,
    Boolean,
    Bound,
    Null,
    Number,
    Shape,
    Text,
)
from headrace.schema.shape.read import shape_of
from headrace.schema.shape.source import Root

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
    """What a conversion makes of the values of a shape."""
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
        return alternative.integer >= WHOLE or (
            alternative.values is not None and all(map(is_whole, alternative.values))
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
