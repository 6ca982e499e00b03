"""What type an expression has over fields of known types, and everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from headrace.schema.expression.text import render
from headrace.schema.expression.tree import (
    Binary,
    Cast,
    Constant,
    Expr,
    ExpressionError,
    Fault,
    FieldReference,
    IsNull,
    Quadkey,
    Scalar,
    Unary,
    fold,
)
from headrace.schema.field_type import Type

#: A type, None where there is only null, or ``unknown`` where a fault was found further in.
InferredType: TypeAlias = Type | Literal["unknown"] | None

ARITHMETIC = ("+", "-", "*", "/", "%")
ORDER = ("<", "<=", ">", ">=")
NUMBERS = ("i64", "f64")
TARGETS: dict[str, Type] = {"str": "str", "int": "i64", "float": "f64", "bool": "bool"}

_LONGEST = 60


def check(expr: Expr, types: Mapping[str, Type]) -> Type | None:
    """The type of an expression, None where it is always null; raises ExpressionError with the first fault."""
    found, problems = infer_type(expr, types)
    if problems:
        raise ExpressionError(-1, problems[0].message, problems[0].code)
    return None if found == "unknown" else found


def faults(expr: Expr, types: Mapping[str, Type]) -> list[Fault]:
    """Everything that is wrong with an expression over these fields."""
    return infer_type(expr, types)[1]


def infer_type(expr: Expr, types: Mapping[str, Type]) -> tuple[InferredType, list[Fault]]:
    """The type of an expression, as far as it has one, and what is wrong with it."""
    checking = _Checking(types)
    return fold(expr, checking.type_of), list(dict.fromkeys(checking.faults))


def type_of_constant(value: Scalar) -> Type | None:
    """The type of a value that is written down."""
    match value:
        case None:
            return None
        case bool():
            return "bool"
        case int():
            return "i64"
        case float():
            return "f64"
    return "str"


def castable(source: Type | None, target: str) -> bool:
    """Whether values of a type can be taken as another."""
    if source == "bytes":
        return False
    return target in TARGETS and (source != "datetime" or target == "str")


class _Checking:
    def __init__(self, types: Mapping[str, Type]) -> None:
        self.faults: list[Fault] = []
        self._types = types

    def type_of(self, expr: Expr, inner: tuple[InferredType, ...]) -> InferredType:
        """The type of an expression whose parts have these types."""
        match expr:
            case FieldReference(name=name):
                return self._field(name)
            case Constant(value=value):
                return type_of_constant(value)
            case IsNull():
                return "bool"
            case Cast(target=target):
                return self._cast(expr, inner[0], target)
            case Unary(sign="not"):
                return self._need(expr, inner, ("bool",), "bool")
            case Unary():
                return self._need(expr, inner, NUMBERS, inner[0])
            case Quadkey():
                return self._quadkey(expr, inner)
            case Binary(sign=sign) if sign in ARITHMETIC:
                return self._need(expr, inner, NUMBERS, _arithmetic(sign, *inner))
            case Binary(sign=sign) if sign in ("and", "or"):
                return self._need(expr, inner, ("bool",), "bool")
        return self._compared(expr, *inner)

    def _note(self, code: str, expr: Expr, reason: str) -> InferredType:
        text = render(expr)
        shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
        self.faults.append(Fault(code, f"{shown}: {reason}"))  # type: ignore[arg-type]
        return "unknown"

    def _field(self, name: str) -> InferredType:
        if name in self._types:
            return self._types[name]
        known = ", ".join(sorted(self._types)[:20]) or "none"
        self.faults.append(Fault("unknown_field_reference", f"there is no field {name!r} here; there are: {known}"))
        return "unknown"

    def _need(
        self, expr: Expr, inner: tuple[InferredType, ...], wanted: tuple[str, ...], result: InferredType
    ) -> InferredType:
        for found in inner:
            if found not in (*wanted, None, "unknown"):
                return self._note("schema_mismatch", expr, f"takes {' or '.join(wanted)}, not {found}")
        return "unknown" if "unknown" in inner and wanted == NUMBERS else result

    def _cast(self, expr: Expr, source: InferredType, target: str) -> InferredType:
        if target not in TARGETS:
            return self._note("invalid_cast_target", expr, f"there is no cast to {target}, only {', '.join(TARGETS)}")
        if source != "unknown" and not castable(source, target):
            self._note("invalid_cast_target", expr, f"{source} cannot be taken as {target}")
        return TARGETS[target]

    def _quadkey(self, expr: Quadkey, inner: tuple[InferredType, ...]) -> InferredType:
        zoom = expr.zoom.value if isinstance(expr.zoom, Constant) else 1
        self._need(expr, inner[:2], NUMBERS, "str")
        self._need(expr, inner[2:], ("i64",), "str")
        if isinstance(zoom, int) and not isinstance(zoom, bool) and not 1 <= zoom <= DEEPEST_ZOOM:
            self._note("invalid_expression", expr, f"zoom is between 1 and {DEEPEST_ZOOM}")
        return "str"

    def _compared(self, expr: Expr, left: InferredType, right: InferredType) -> InferredType:
        if left in (None, "unknown") or right in (None, "unknown"):
            known = left if right in (None, "unknown") else right
        elif left == right:
            known = left
        elif left in NUMBERS and right in NUMBERS:
            known = "f64"
        else:
            self._note("schema_mismatch", expr, f"{left} is not compared with {right}")
            return "bool"
        ordered = isinstance(expr, Binary) and expr.sign in ORDER
        if ordered and known in ("bool", "bytes"):
            self._note("schema_mismatch", expr, f"{known} has no order")
        return "bool"


DEEPEST_ZOOM = 23


def _arithmetic(sign: str, left: InferredType, right: InferredType) -> InferredType:
    if sign == "/":
        return "f64"
    if left is None or right is None:
        return left if right is None else right
    return "i64" if left == right == "i64" else "f64"
