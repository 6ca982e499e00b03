"""Expressions and steps over columns answer as they do row by row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.reduce.features.column_expressions import apply_steps, evaluate, to_column
from headrace.reduce.features.rows import steps
from headrace.schema.descriptor.nodes import RowOp, Type
from headrace.schema.descriptor.validate import types_after
from headrace.schema.expression import Expr, compiled
from schema.expression.strategies import KINDS, TYPES, expressions, rows

STEPS = (
    RowOp("filter", expr="((i > 0) or isnull(b))"),
    RowOp("with_columns", exprs={"f": "(f * 2)", "made": "(f + i)", "text": "cast(i, str)"}),
    RowOp("cast", type_map={"j": "float", "b": "str"}),
    RowOp("fillna", defaults={"s": "none", "g": 1, "c": True}),
    RowOp("rename", mapping={"s": "renamed", "i": "s"}),
    RowOp("drop", fields=("z", "x")),
    RowOp("select", fields=("i", "j", "f", "g", "s", "b", "c")),
)


def columns_of(made: list[dict[str, Any]], numbered: bool) -> dict[str, pa.Array]:
    columns = {name: to_column([row[name] for row in made], kind) for name, kind in TYPES.items()}
    if numbered:  # as texts are that are decoded
        is_text = pa.types.is_string
        columns = {
            name: column.dictionary_encode() if is_text(column.type) else column for name, column in columns.items()
        }
    return columns


@given(
    st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), expressions(kind))),
    st.lists(rows, max_size=5),
    st.booleans(),
)
def test_an_expression_has_the_same_values_over_columns(
    typed: tuple[Type, Expr], made: list[dict[str, Any]], numbered: bool
) -> None:
    kind, expr = typed
    value = compiled(expr, TYPES)
    values = evaluate(expr, TYPES, columns_of(made, numbered), len(made), kind).to_pylist()
    assert list(map(repr, values)) == [repr(value(row)) for row in made]


@given(
    st.lists(st.sampled_from(STEPS), max_size=4, unique_by=lambda op: op.op),
    st.lists(rows, max_size=5),
    st.booleans(),
)
def test_steps_make_the_same_rows_of_columns(ops: list[RowOp], made: list[dict[str, Any]], numbered: bool) -> None:
    try:
        after = types_after(ops, dict(TYPES))
        taken = steps(ops, TYPES)
    except ValueError:
        return  # a step lacks a field that one before it has taken away
    wanted: list[Any] = made
    for step in taken:
        wanted = [row for row in map(step, wanted) if row is not None]
    columns = {**columns_of(made, numbered), "$seq": pa.array(range(len(made)), pa.int64())}
    found = apply_steps(ops, TYPES, pa.table(columns))
    assert set(found.column_names) == {*after, "$seq"}
    assert [repr(row) for row in found.select(sorted(after)).to_pylist()] == [
        repr({name: row[name] for name in sorted(after)}) for row in wanted
    ]
