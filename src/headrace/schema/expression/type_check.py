"""Infer the type of an expression over typed fields, and find every fault in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

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
    Type,
    Unary,
    fold,
    render,
)

#: A type, None where there is only null, or ``unknown`` where a fault was found further in.
InferredType: TypeAlias = Type | Literal["unknown"] | None

ARITHMETIC = ("+", "-", "*", "/", "%")
ORDER = ("<", "<=", ">", ">=")
NUMBERS = ("i64", "f64")
TARGETS: dict[str, Type] = {"str": "str", "int": "i64", "float": "f64", "bool": "bool"}

_MAX_SHOWN = 60


def check(expr: Expr, types: Mapping[str, Type]) -> Type | None:
    """The type of an expression, None where it is always null; raises ExpressionError with the first fault."""
    inferred, problems = infer_type(expr, types)
    if problems:
        raise ExpressionError(-1, problems[0].message, problems[0].code)
    return None if inferred == "unknown" else inferred


def faults(expr: Expr, types: Mapping[str, Type]) -> list[Fault]:
    """Every fault of an expression over these fields."""
    return infer_type(expr, types)[1]


def infer_type(expr: Expr, types: Mapping[str, Type]) -> tuple[InferredType, list[Fault]]:
    """The type of an expression, as far as it has one, and its faults."""
    checker = _TypeChecker(types)
    return fold(expr, checker.type_of), list(dict.fromkeys(checker.faults))


def type_of_constant(value: Scalar) -> Type | None:
    """The type of a literal."""
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


class _TypeChecker:
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
                return self._require(expr, inner, ("bool",), "bool")
            case Unary():
                return self._require(expr, inner, NUMBERS, inner[0])
            case Quadkey():
                return self._quadkey(expr, inner)
            case Binary(sign=sign) if sign in ARITHMETIC:
                return self._require(expr, inner, NUMBERS, _arithmetic(sign, *inner))
            case Binary(sign=sign) if sign in ("and", "or"):
                return self._require(expr, inner, ("bool",), "bool")
        return self._comparison(expr, *inner)

    def _add_fault(self, code: str, expr: Expr, reason: str) -> InferredType:
        text = render(expr)
        shown = text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
        self.faults.append(Fault(code, f"{shown}: {reason}"))  # type: ignore[arg-type]
        return "unknown"

    def _field(self, name: str) -> InferredType:
        if name in self._types:
            return self._types[name]
        field_names = ", ".join(sorted(self._types)[:20]) or "none"
        self.faults.append(
            Fault("unknown_field_reference", f"there is no field {name!r} here; there are: {field_names}")
        )
        return "unknown"

    def _require(
        self, expr: Expr, inner: tuple[InferredType, ...], wanted: tuple[str, ...], result: InferredType
    ) -> InferredType:
        for part_type in inner:
            if part_type not in (*wanted, None, "unknown"):
                return self._add_fault("schema_mismatch", expr, f"takes {' or '.join(wanted)}, not {part_type}")
        return "unknown" if "unknown" in inner and wanted == NUMBERS else result

    def _cast(self, expr: Expr, source: InferredType, target: str) -> InferredType:
        if target not in TARGETS:
            return self._add_fault(
                "invalid_cast_target", expr, f"there is no cast to {target}, only {', '.join(TARGETS)}"
            )
        if source != "unknown" and not castable(source, target):
            self._add_fault("invalid_cast_target", expr, f"{source} cannot be taken as {target}")
        return TARGETS[target]

    def _quadkey(self, expr: Quadkey, inner: tuple[InferredType, ...]) -> InferredType:
        zoom = expr.zoom.value if isinstance(expr.zoom, Constant) else 1
        self._require(expr, inner[:2], NUMBERS, "str")
        self._require(expr, inner[2:], ("i64",), "str")
        if isinstance(zoom, int) and not isinstance(zoom, bool) and not 1 <= zoom <= MAX_ZOOM:
            self._add_fault("invalid_expression", expr, f"zoom is between 1 and {MAX_ZOOM}")
        return "str"

    def _comparison(self, expr: Expr, left: InferredType, right: InferredType) -> InferredType:
        if left in (None, "unknown") or right in (None, "unknown"):
            common_type = left if right in (None, "unknown") else right
        elif left == right:
            common_type = left
        elif left in NUMBERS and right in NUMBERS:
            common_type = "f64"
        else:
            self._add_fault("schema_mismatch", expr, f"{left} is not compared with {right}")
            return "bool"
        ordered = isinstance(expr, Binary) and expr.sign in ORDER
        if ordered and common_type in ("bool", "bytes"):
            self._add_fault("schema_mismatch", expr, f"{common_type} has no order")
        return "bool"


MAX_ZOOM = 23


def _arithmetic(sign: str, left: InferredType, right: InferredType) -> InferredType:
    if sign == "/":
        return "f64"
    if left is None or right is None:
        return left if right is None else right
    return "i64" if left == right == "i64" else "f64"
