"""Steps and expressions over columns: many rows at once where Arrow means what `expression.compiled` means.

Other expressions are evaluated row by row. `rows` has the same steps for one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headrace.reduce.features.rows import Types
from headrace.schema.descriptor.nodes import RowOp, Type
from headrace.schema.descriptor.validate import types_after
from headrace.schema.expression import Expr, compiled, fields, parse
from headrace.schema.expression.tree import Binary, Cast, Constant, FieldReference, IsNull, Unary, fold
from headrace.schema.expression.type_check import type_of_constant

Columns: TypeAlias = Mapping[str, pa.Array]

_ARROW: dict[Type | None, pa.DataType] = {
    "i64": pa.int64(),
    "f64": pa.float64(),
    "bool": pa.bool_(),
    "str": pa.string(),
    "bytes": pa.string(),
    "datetime": pa.string(),
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_DOUBLE: dict[str, Callable[[Any, Any], Any]] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}
#: These stop at the ends of 64 bits instead.
_INTEGER: dict[str, Callable[[Any, Any], Any]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
}
_TEXTS, _NUMBERS = {"str", "bytes"}, {"i64", "f64"}


class _Other(Exception):
    """Arrow has another meaning for this, or none."""


class _Typed(NamedTuple):
    """A column or a scalar, and the type of its values."""

    values: Any
    kind: Type | None


def evaluate(expr: Expr, types: Mapping[str, Type], columns: Columns, count: int, kind: Type) -> pa.Array:
    """The values of a checked expression of this type over so many rows, just as `compiled` has them."""
    try:
        values = fold(expr, lambda here, inner: _node(here, inner, types, columns)).values
    except (_Other, pa.ArrowInvalid):  # an integer has left its 64 bits
        return _row_by_row(expr, types, columns, count, kind)
    return values if isinstance(values, pa.Array) else pa.repeat(values, count)


def _row_by_row(expr: Expr, types: Mapping[str, Type], columns: Columns, count: int, kind: Type) -> pa.Array:
    names, value = sorted(fields(expr)), compiled(expr, types)
    held = [columns[name].to_pylist() for name in names]
    rows = (dict(zip(names, row, strict=True)) for row in zip(*held, strict=True)) if names else ({},) * count
    return to_column([value(row) for row in rows], kind)


def to_column(values: Sequence[Any], kind: Type) -> pa.Array:
    """Values of a type as a column; numbers may be spelled as those of another type."""
    try:
        return pa.array(values, _ARROW[kind])
    except pa.ArrowInvalid:
        # Arrow takes no integer for a double that is not exactly that one.
        return pa.array([None if value is None else float(value) for value in values], _ARROW[kind])


def _node(expr: Expr, inner: tuple[_Typed, ...], types: Mapping[str, Type], columns: Columns) -> _Typed:
    match expr:
        case FieldReference(name=name):
            column = columns[name]
            return _Typed(column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column, types[name])
        case Constant(value=value) if value is not None:
            kind = type_of_constant(value)
            return _Typed(pa.scalar(value, _ARROW[kind]), kind)
        case Unary(sign="not") if inner[0].kind == "bool":
            return _Typed(pc.invert(inner[0].values), "bool")
        case Unary(sign="-") if inner[0].kind in _NUMBERS:
            negate = pc.negate_checked if inner[0].kind == "i64" else pc.negate
            return _Typed(negate(inner[0].values), inner[0].kind)
        case IsNull():
            return _Typed(pc.is_null(inner[0].values), "bool")
        case Binary(sign=sign) if sign in ("and", "or") and inner[0].kind == inner[1].kind == "bool":
            combine = pc.and_kleene if sign == "and" else pc.or_kleene
            return _Typed(combine(inner[0].values, inner[1].values), "bool")
        case Binary(sign=sign) if sign in _COMPARE:
            return _Typed(_COMPARE[sign](*_comparable(sign, *inner)), "bool")
        case Binary(sign=sign) if sign in _DOUBLE and inner[0].kind in _NUMBERS and inner[1].kind in _NUMBERS:
            return _arithmetic(sign, *inner)
    raise _Other


def _comparable(sign: str, left: _Typed, right: _Typed) -> tuple[Any, Any]:
    kinds = {left.kind, right.kind}
    if kinds <= _TEXTS or (len(kinds) == 1 and (kinds <= _NUMBERS or (kinds == {"bool"} and sign in ("==", "!=")))):
        return left.values, right.values
    if kinds == _NUMBERS:
        return _doubles(left), _doubles(right)
    raise _Other


def _arithmetic(sign: str, left: _Typed, right: _Typed) -> _Typed:
    if left.kind == right.kind == "i64" and sign != "/":
        return _Typed(_INTEGER[sign](left.values, right.values), "i64")
    values = _DOUBLE[sign](_doubles(left), _doubles(right))
    return _Typed(pc.if_else(pc.is_finite(values), values, pa.scalar(None, pa.float64())), "f64")


def _doubles(part: _Typed) -> Any:
    return part.values if part.kind == "f64" else pc.cast(part.values, pa.float64(), safe=False)


def apply_steps(ops: Sequence[RowOp], types: Types, rows: pa.Table) -> pa.Table:
    """The rows after the steps; other columns than those of fields stay as they are."""
    for op in ops:
        after = types_after((op,), types)
        rows = _apply(op, types, after, rows)
        types = after
    return rows


def _apply(op: RowOp, types: Types, after: Types, rows: pa.Table) -> pa.Table:
    match op.op:
        case "filter":
            return rows.filter(_evaluate(parse(op.expr or ""), types, rows, "bool"))  # null is left out, too
        case "select" | "drop":
            return rows.select([name for name in rows.column_names if name in after or name not in types])
        case "rename":
            return rows.rename_columns([op.mapping.get(name, name) for name in rows.column_names])
        case "with_columns":
            return _with_columns(op, types, after, rows)
        case "cast":
            casts = {name: Cast(FieldReference(name), target) for name, target in op.type_map.items()}
            made = {name: _evaluate(cast, types, rows, after[name]) for name, cast in casts.items()}
            return _with(rows, made)
    defaults = {name: float(value) if types[name] == "f64" else value for name, value in op.defaults.items()}
    return _with(rows, {name: _filled(rows, name, value) for name, value in defaults.items()})


def _with_columns(op: RowOp, types: Types, after: Types, rows: pa.Table) -> pa.Table:
    """Columns in the order of their names, each from the rows with those before it."""
    types_so_far = dict(types)
    for name in sorted(op.exprs):
        rows = _with(rows, {name: _evaluate(parse(op.exprs[name]), types_so_far, rows, after[name])})
        types_so_far[name] = after[name]
    return rows


def _evaluate(expr: Expr, types: Types, rows: pa.Table, kind: Type) -> pa.Array:
    columns = {name: rows.column(name).combine_chunks() for name in rows.column_names if name in types}
    return evaluate(expr, types, columns, len(rows), kind)


def _filled(rows: pa.Table, name: str, value: object) -> pa.Array:
    column = rows.column(name).combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    return pc.fill_null(column, pa.scalar(value, column.type))


def _with(rows: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    for name, column in columns.items():
        at = rows.schema.get_field_index(name)
        rows = rows.append_column(name, column) if at < 0 else rows.set_column(at, name, column)
    return rows
