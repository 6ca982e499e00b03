"""The tree of an expression, a fold over it that needs no recursion, and its canonical text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from headrace.types import FieldType

#: How deep an expression may be nested.
MAX_DEPTH = 512

#: The types of the fields of events and rows.
Type: TypeAlias = FieldType
Scalar: TypeAlias = str | int | float | bool | None

T = TypeVar("T")


class Fault(NamedTuple):
    """A problem of an expression: a stable code and a sentence."""

    code: Literal["invalid_expression", "invalid_cast_target", "schema_mismatch", "unknown_field_reference"]
    message: str


class ExpressionError(Exception):
    """An invalid expression; ``position`` is the offset of the problem in characters, -1 for the whole."""

    def __init__(self, position: int, message: str, code: str = "invalid_expression") -> None:
        super().__init__(message)
        self.position = position
        self.message = message
        self.code = code


class FieldReference(msgspec.Struct, frozen=True):
    """The value of a field."""

    name: str


class Constant(msgspec.Struct, frozen=True):
    """A literal."""

    value: Scalar


class Unary(msgspec.Struct, frozen=True):
    """``not`` or a change of sign."""

    sign: Literal["not", "-"]
    part: Expr


class Binary(msgspec.Struct, frozen=True):
    """A binary operator and its operands."""

    sign: str
    left: Expr
    right: Expr


class Cast(msgspec.Struct, frozen=True):
    """A value taken as another type; the target may be unknown until it is checked."""

    part: Expr
    target: str


class IsNull(msgspec.Struct, frozen=True):
    """Whether there is no value."""

    part: Expr


class Quadkey(msgspec.Struct, frozen=True):
    """The map tile of a position, as text with one digit for every level of zoom."""

    lat: Expr
    lon: Expr
    zoom: Expr


Expr: TypeAlias = FieldReference | Constant | Unary | Binary | Cast | IsNull | Quadkey


def parts(expr: Expr) -> tuple[Expr, ...]:
    """The parts of an expression, in order."""
    match expr:
        case Unary(part=part) | Cast(part=part) | IsNull(part=part):
            return (part,)
        case Binary(left=left, right=right):
            return (left, right)
        case Quadkey(lat=lat, lon=lon, zoom=zoom):
            return (lat, lon, zoom)
    return ()


def fold(expr: Expr, combine: Callable[[Expr, tuple[T, ...]], T]) -> T:
    """Combine an expression bottom-up: ``combine`` gets each expression and the results of its parts."""
    waiting: list[tuple[Expr, bool]] = [(expr, False)]
    done: list[T] = []
    while waiting:
        here, ready = waiting.pop()
        inner = parts(here)
        if ready or not inner:
            kept = len(done) - len(inner)
            results = tuple(done[kept:])
            del done[kept:]
            done.append(combine(here, results))
        else:
            waiting.append((here, True))
            waiting += [(part, False) for part in reversed(inner)]
    return done[0]


def depth(expr: Expr) -> int:
    """How deep an expression is nested."""
    return fold(expr, lambda _, inner: 1 + max(inner, default=0))


def fields(expr: Expr) -> frozenset[str]:
    """The names of the fields in an expression."""
    names: set[str] = set()
    fold(expr, lambda here, _: names.add(here.name) if isinstance(here, FieldReference) else None)
    return frozenset(names)


def render(expr: Expr) -> str:
    """The canonical text: every operator in brackets, texts in single quotes."""
    return fold(expr, _render_node)


def _render_node(expr: Expr, inner: tuple[str, ...]) -> str:
    match expr:
        case FieldReference(name=name):
            return name
        case Constant(value=value):
            return _render_constant(value)
        case Unary(sign="not"):
            return f"(not {inner[0]})"
        case Unary():
            return f"(- {inner[0]})"
        case Binary(sign=sign):
            return f"({inner[0]} {sign} {inner[1]})"
        case Cast(target=target):
            return f"cast({inner[0]}, {target})"
        case IsNull():
            return f"isnull({inner[0]})"
    return f"quadkey({', '.join(inner)})"


def _render_constant(value: Scalar) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value)
