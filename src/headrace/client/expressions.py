"""Expressions over the fields of a row: Python's operators write the text that the server reads."""

from __future__ import annotations

import math
import re

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_WORDS = {"and", "or", "not", "true", "false", "null"}

#: What ``cast`` may make of a value, by Python's type or by name.
_CASTS = {str: "str", int: "int", float: "float", bool: "bool"}


class Expression:
    """A value computed from a row; null wherever what it needs is null."""

    __slots__ = ("text",)
    __hash__ = None  # type: ignore[assignment]  # two of them compared are a third one

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        raise TypeError(f"{self.text} has no value here; combine expressions with &, | and ~, not with and, or and not")

    def __add__(self, other: object) -> Expression:
        return _joined(self, "+", other)

    def __radd__(self, other: object) -> Expression:
        return _joined(other, "+", self)

    def __sub__(self, other: object) -> Expression:
        return _joined(self, "-", other)

    def __rsub__(self, other: object) -> Expression:
        return _joined(other, "-", self)

    def __mul__(self, other: object) -> Expression:
        return _joined(self, "*", other)

    def __rmul__(self, other: object) -> Expression:
        return _joined(other, "*", self)

    def __truediv__(self, other: object) -> Expression:
        return _joined(self, "/", other)

    def __rtruediv__(self, other: object) -> Expression:
        return _joined(other, "/", self)

    def __mod__(self, other: object) -> Expression:
        return _joined(self, "%", other)

    def __rmod__(self, other: object) -> Expression:
        return _joined(other, "%", self)

    def __neg__(self) -> Expression:
        return Expression(f"(-{self.text})")

    def __gt__(self, other: object) -> Expression:
        return _joined(self, ">", other)

    def __ge__(self, other: object) -> Expression:
        return _joined(self, ">=", other)

    def __lt__(self, other: object) -> Expression:
        return _joined(self, "<", other)

    def __le__(self, other: object) -> Expression:
        return _joined(self, "<=", other)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return _joined(self, "==", other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _joined(self, "!=", other)

    def __and__(self, other: object) -> Expression:
        return _joined(self, "and", other)

    def __rand__(self, other: object) -> Expression:
        return _joined(other, "and", self)

    def __or__(self, other: object) -> Expression:
        return _joined(self, "or", other)

    def __ror__(self, other: object) -> Expression:
        return _joined(other, "or", self)

    def __invert__(self) -> Expression:
        return Expression(f"(not {self.text})")

    def isnull(self) -> Expression:
        """Whether it is null; never null itself."""
        return Expression(f"isnull({self.text})")

    def cast(self, to: type | str) -> Expression:
        """The value as another type; null where it cannot be."""
        return Expression(f"cast({self.text}, {cast_target(to)})")


def col(name: str) -> Expression:
    """The field of this name."""
    if not _FIELD.fullmatch(name) or name in _WORDS:
        raise ValueError(f"{name!r} cannot be the name of a field in an expression")
    return Expression(name)


def lit(value: object) -> Expression:
    """A value that is the same in every row."""
    return value if isinstance(value, Expression) else Expression(_literal(value))


def quadkey(lat: object, lon: object, zoom: object) -> Expression:
    """The tile of a map that contains a point, as text."""
    return Expression(f"quadkey({', '.join(lit(part).text for part in (lat, lon, zoom))})")


def text(value: Expression | str) -> str:
    """An expression as the server reads it; text goes as it is."""
    if isinstance(value, Expression):
        return value.text
    if isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is not an expression: write hr.col(...) or hr.lit(...)")


def cast_target(to: type | str) -> str:
    """The name of a type that values can be cast to."""
    target = to if isinstance(to, str) else _CASTS.get(to)
    if target is None:
        raise TypeError(f"nothing can be cast to {to!r}: only to str, int, float and bool")
    return target


def _joined(left: object, operator: str, right: object) -> Expression:
    return Expression(f"({lit(left).text} {operator} {lit(right).text})")


def _literal(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{value} is no number that an expression could hold")
            return repr(value)
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
    raise TypeError(f"{value!r} cannot stand in an expression: only None, bool, int, float and str")
