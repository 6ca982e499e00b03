"""An expression as a Python function of a row, with the same answers as the SQL of ``duck``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from headrace.schema.expression.tree import Binary, Cast, Constant, Expr, FieldReference, IsNull, Type, Unary, fold
from headrace.schema.expression.type_check import ARITHMETIC, MAX_ZOOM, TARGETS, type_of_constant
from headrace.types import parse_timestamp_us

Row: TypeAlias = Mapping[str, Any]
Closure: TypeAlias = Callable[[Row], Any]
Typed: TypeAlias = tuple[Closure, Type | None]

LEAST, GREATEST = -(2**63), 2**63 - 1
#: Latitudes beyond have no place on the map of quadkeys.
NORTHMOST = 85.05112878

INTEGER = r"(-?)0*([0-9]{1,19})"
DECIMAL = r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_INTEGER = re.compile(INTEGER)
_DECIMAL = re.compile(DECIMAL)


def compiled(expr: Expr, types: Mapping[str, Type]) -> Closure:
    """The value of a checked expression for a row; a field the row does not have is null.

    Rows hold int for i64, float for f64, and the text of the event for str, bytes and datetime.
    """
    return fold(expr, lambda here, inner: _compile_node(here, inner, types))[0]


def _compile_node(expr: Expr, inner: tuple[Typed, ...], types: Mapping[str, Type]) -> Typed:
    match expr:
        case FieldReference(name=name):
            return (lambda row: row.get(name)), types[name]
        case Constant(value=value):
            return (lambda _: value), type_of_constant(value)
        case Unary(sign="not"):
            return _not(inner[0][0]), "bool"
        case Unary():
            return _null_propagating(_negate if inner[0][1] == "i64" else operator.neg, inner[0][0]), inner[0][1]
        case IsNull():
            part = inner[0][0]
            return (lambda row: part(row) is None), "bool"
        case Cast(target=target):
            return _cast(*inner[0], target), TARGETS[target]
        case Binary(sign="and"):
            return _and(inner[0][0], inner[1][0]), "bool"
        case Binary(sign="or"):
            return _or(inner[0][0], inner[1][0]), "bool"
        case Binary(sign=sign) if sign in ARITHMETIC:
            return _arithmetic(sign, *inner)
        case Binary(sign=sign, left=FieldReference(name=name), right=Constant(value=value)) if value is not None:
            return _compare_field(sign, name, types[name], value), "bool"
        case Binary(sign=sign):
            return _compare_parts(sign, *inner), "bool"
    return _quadkey(*(part for part, _ in inner)), "str"


def _null_propagating(function: Callable[[Any], Any], part: Closure) -> Closure:
    """A function of a value; of null it is null."""

    def of(row: Row) -> Any:
        value = part(row)
        return None if value is None else function(value)

    return of


def _null_propagating_pair(function: Callable[[Any, Any], Any], left: Closure, right: Closure) -> Closure:
    """A function of two values; where one is null it is null."""

    def of(row: Row) -> Any:
        first = left(row)
        if first is None:
            return None
        second = right(row)
        return None if second is None else function(first, second)

    return of


def _not(part: Closure) -> Closure:
    return _null_propagating(operator.not_, part)


def _and(left: Closure, right: Closure) -> Closure:
    def of(row: Row) -> bool | None:
        first = left(row)
        if first is False:
            return False
        second = right(row)
        return False if second is False else None if first is None or second is None else True

    return of


def _or(left: Closure, right: Closure) -> Closure:
    def of(row: Row) -> bool | None:
        first = left(row)
        if first is True:
            return True
        second = right(row)
        return True if second is True else None if first is None or second is None else False

    return of


def _arithmetic(sign: str, left: Typed, right: Typed) -> Typed:
    are_integers = left[1] == right[1] == "i64"
    if are_integers and sign != "/":
        return _null_propagating_pair(_INTEGER_ARITHMETIC[sign], left[0], right[0]), "i64"
    return _null_propagating_pair(_DOUBLE[sign], left[0], right[0]), "f64" if sign == "/" or "f64" in (
        left[1],
        right[1],
    ) else "i64"


def _clamp_integer(value: int) -> int:
    return LEAST if value < LEAST else GREATEST if value > GREATEST else value


def _negate(value: int) -> int:
    return _clamp_integer(-value)


def _remainder(first: int, second: int) -> int | None:
    if second == 0:
        return None
    rest = abs(first) % abs(second)
    return -rest if first < 0 else rest


_INTEGER_ARITHMETIC: dict[str, Callable[[int, int], int | None]] = {
    "+": lambda first, second: _clamp_integer(first + second),
    "-": lambda first, second: _clamp_integer(first - second),
    "*": lambda first, second: _clamp_integer(first * second),
    "%": _remainder,
}


def _finite_or_null(value: float) -> float | None:
    return value if math.isfinite(value) else None


_DOUBLE: dict[str, Callable[[float, float], float | None]] = {
    "+": lambda first, second: _finite_or_null(float(first) + float(second)),
    "-": lambda first, second: _finite_or_null(float(first) - float(second)),
    "*": lambda first, second: _finite_or_null(float(first) * float(second)),
    "/": lambda first, second: _finite_or_null(float(first) / float(second)) if second else None,
    "%": lambda first, second: math.fmod(float(first), float(second)) if second else None,
}

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compare_parts(sign: str, left: Typed, right: Typed) -> Closure:
    compare = _COMPARE[sign]
    if "datetime" in (left[1], right[1]):
        return _null_propagating_pair(lambda first, second: compare(moment(first), moment(second)), left[0], right[0])
    if {left[1], right[1]} == {"i64", "f64"}:
        return _null_propagating_pair(lambda first, second: compare(float(first), float(second)), left[0], right[0])
    return _null_propagating_pair(compare, left[0], right[0])


def _compare_field(sign: str, name: str, kind: Type, constant: Any) -> Closure:
    """A field compared with a constant, as in most conditions; one call instead of three."""
    compare = _COMPARE[sign]
    if kind == "i64" and isinstance(constant, float):
        return _compare_parts(sign, ((lambda row: row.get(name)), kind), ((lambda _: constant), "f64"))
    bound = float(constant) if kind == "f64" else constant

    def of(row: Row) -> bool | None:
        value = row.get(name)
        return None if value is None else compare(value, bound)

    return of


@lru_cache(maxsize=4096)
def moment(text: str) -> int:
    """Microseconds since 1970 of a datetime."""
    return parse_timestamp_us(text, "datetime")


def _cast(part: Closure, source: Type | None, target: str) -> Closure:
    return _null_propagating(conversion(source, target), part)


def conversion(source: Type | None, target: str) -> Callable[[Any], Any]:
    """The function that casts a type to another."""
    convert = _CONVERSIONS.get((source, target))
    return convert if convert is not None else lambda value: value


def _parse_integer(text: str) -> int | None:
    match = _INTEGER.fullmatch(text)
    value = GREATEST + 1 if match is None else int(match[1] + match[2])
    return value if LEAST <= value <= GREATEST else None


def _parse_decimal(text: str) -> float | None:
    return _finite_or_null(float(text)) if _DECIMAL.fullmatch(text) is not None else None


def _truncate(value: float) -> int | None:
    truncated = int(value)
    return truncated if LEAST <= truncated <= GREATEST else None


_CONVERSIONS: dict[tuple[Type | None, str], Callable[[Any], Any]] = {
    ("str", "int"): _parse_integer,
    ("str", "float"): _parse_decimal,
    ("str", "bool"): {"true": True, "false": False}.get,
    ("i64", "str"): str,
    ("i64", "float"): float,
    ("i64", "bool"): bool,
    ("f64", "str"): repr,
    ("f64", "int"): _truncate,
    ("f64", "bool"): bool,
    ("bool", "str"): {True: "true", False: "false"}.get,
    ("bool", "int"): int,
    ("bool", "float"): float,
}


def _quadkey(lat: Closure, lon: Closure, zoom: Closure) -> Closure:
    def of(row: Row) -> str | None:
        north, east, levels = lat(row), lon(row), zoom(row)
        if north is None or east is None or levels is None or not 1 <= levels <= MAX_ZOOM:
            return None
        return quadkey(float(north), float(east), levels)

    return of


def quadkey(lat: float, lon: float, zoom: int) -> str:
    """The tile of a position; positions off the map count as at its edge."""
    sine = math.sin(math.radians(min(max(lat, -NORTHMOST), NORTHMOST)))
    across = (min(max(lon, -180.0), 180.0) + 180.0) / 360.0
    down = 0.5 - math.log((1.0 + sine) / (1.0 - sine)) / (4.0 * math.pi)
    tiles = 2**zoom
    x, y = (min(max(int(fraction * tiles), 0), tiles - 1) for fraction in (across, down))
    return "".join(str((x >> at & 1) + 2 * (y >> at & 1)) for at in reversed(range(zoom)))
