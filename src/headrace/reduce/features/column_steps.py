"""The steps from the events of a source to the rows of a table, over columns; `rows` has them row by row."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.reduce.features.column_expressions import evaluate
from headrace.reduce.features.rows import Types
from headrace.schema.descriptor.nodes import RowOp
from headrace.schema.descriptor.validate import types_after
from headrace.schema.expression import parse
from headrace.schema.expression.tree import Cast, Expr, FieldReference


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


def _evaluate(expr: Expr, types: Types, rows: pa.Table, kind: str) -> pa.Array:
    columns = {name: rows.column(name).combine_chunks() for name in rows.column_names if name in types}
    return evaluate(expr, types, columns, len(rows), kind)  # type: ignore[arg-type]


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
