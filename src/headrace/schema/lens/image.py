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
    """What comes out, and what cannot go in."""

    shape: Shape
    complaints: tuple[Complaint, ...] = ()


def convert_shape(op: Convert, shape: Shape) -> Image:
    """What a conversion makes of the values of a shape."""
    images = [_converted(op, one) for one in shape.alternatives]
    complaints = dict.fromkeys(complaint for image in images for complaint in image.complaints)
    return Image(union(*(image.shape for image in images)), tuple(complaints))


def _converted(op: Convert, one: Alternative) -> Image:
    check_deadline()
    if not _is_of(one, op.from_type):
        return _failed(
            op, "type_mismatch", f"it may be {describe_alternative(one)}; the op converts {op.from_type} only"
        )
    if op.forward.table is not None:
        return _looked_up(op, one, op.forward.table)
    if op.forward.builtin not in BUILTINS:
        return _failed(op, "unknown_builtin", f"no builtin is called {op.forward.builtin}")
    return _computed(op, one, op.forward.builtin)


def _failed(op: Convert, rule: str, reason: str, outputs: list[Any] | None = None) -> Image:
    """What still comes out, of which nothing may be known but its type."""
    rest = shape_of(Root({"type": op.to_type}).source) if outputs is None else shape_of_values(outputs)
    return Image(rest, (Complaint(rule, reason),))


def _is_of(one: Alternative, name: str) -> bool:
    if isinstance(one, Number) and name == "integer":
        return one.integer >= WHOLE or (one.values is not None and all(map(is_whole, one.values)))
    return one.kind == name


def list_finite_values(one: Alternative) -> list[Any] | None:
    """The values of an alternative one by one, where they can be listed; numbers exactly."""
    match one:
        case Null():
            return [None]
        case Boolean(values=values):
            return sorted(values)
        case Number():
            known = texts(one)
            return None if known is None else sorted(map(number_of, known))
        case Text(values=frozenset() as known):
            return sorted(known)
    return None


def _looked_up(op: Convert, one: Alternative, table: dict[str, Any]) -> Image:
    default = op.forward.default
    values = list_finite_values(one)
    if values is None:
        if default is msgspec.UNSET:
            reason = f"it may be {describe_alternative(one)}; the table has no default for what it does not list"
            return _failed(op, "not_total", reason, [*table.values()])
        outputs = [default] if one.kind in ("object", "array") else [*table.values(), default]
        return _typed(op, outputs)
    unknown = [format_json(value) for value in values if text_of(value) not in table]
    if unknown and default is msgspec.UNSET:
        outputs = [table[text_of(value)] for value in values if text_of(value) in table]
        return _failed(op, "not_total", f"the table has no entry for {join_first(unknown)}, and no default", outputs)
    return _typed(op, [table.get(text_of(value), default) for value in values])


def _typed(op: Convert, outputs: list[Any]) -> Image:
    wrong = [format_json(output) for output in outputs if not is_type(output, op.to_type)]
    if wrong:
        return _failed(op, "result_type", f"it becomes {join_first(wrong)}; the op says {op.to_type}")
    return Image(shape_of_values(outputs))


def _computed(op: Convert, one: Alternative, name: str) -> Image:
    values = list_finite_values(one)
    if values is not None:
        return _each(op, values, name)
    match name, one:
        case "lowercase", Text():
            return Image(_cased(one, LOWERCASE_GROWTH))
        case "uppercase", Text():
            return Image(_cased(one, UPPERCASE_GROWTH))
        case "int_to_string", Number():
            return Image(Shape((Text(low=1, high=_digits(one)),)))
        case "rfc3339_to_unix_millis", Text() if DATE_TIME in one.formats:
            return Image(Shape((_MILLIS,)))
        case "unix_millis_to_rfc3339", Number() if _in_calendar(one):
            return Image(Shape((_spelled_time(one),)))
    return _failed(op, "not_total", f"{name} cannot take every value: it may be {describe_alternative(one)}")


_MILLIS = Number(integer=SPELLED, low=Bound(FIRST_MILLIS - _DAY_MS), high=Bound(LAST_MILLIS + _DAY_MS + 1))
"""The times of RFC 3339: years 0 to 9999, and offsets of less than a day."""


def _each(op: Convert, values: list[Any], name: str) -> Image:
    outputs = []
    for value in values:
        check_deadline()
        try:
            outputs.append(BUILTINS[name].function(value))
        except (ValueError, OverflowError) as reason:
            return _failed(op, "not_total", f"{name} cannot take {format_json(value)}: {reason}")
    return _typed(op, outputs)


def _cased(text: Text, growth: int) -> Shape:
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
