"""The steps on rows between an event source and a table, compiled once into functions of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from headrace.schema.descriptor.nodes import Op, Type
from headrace.schema.descriptor.propagate import types_after
from headrace.schema.expression import compiled, parse
from headrace.schema.expression.tree import Cast, Field

Row: TypeAlias = dict[str, Any]
Types: TypeAlias = dict[str, Type]
#: A row, or None where it is filtered out. The row given is left as it is.
Step: TypeAlias = Callable[[Row], Row | None]


def steps(ops: Iterable[Op], types: Mapping[str, Type]) -> tuple[Step, ...]:
    """A function for every step, the first one over rows of these types."""
    made: list[Step] = []
    known = dict(types)
    for op in ops:
        after = types_after((op,), known)
        made.append(_MAKERS[op.op](op, known, after))
        known = after
    return tuple(made)


def _filter(op: Op, types: Types, after: Types) -> Step:
    holds = compiled(parse(op.expr or ""), types)
    return lambda row: row if holds(row) is True else None


def _project(op: Op, types: Types, after: Types) -> Step:
    names = tuple(after)
    return lambda row: {name: row.get(name) for name in names}


def _rename(op: Op, types: Types, after: Types) -> Step:
    mapping = op.mapping
    return lambda row: {mapping.get(name, name): value for name, value in row.items()}


def _with_columns(op: Op, types: Types, after: Types) -> Step:
    """Columns in the order of their names, each from the row with those before it."""
    columns, known = [], dict(types)
    for name in sorted(op.exprs):
        columns.append((name, compiled(parse(op.exprs[name]), known)))
        known[name] = after[name]

    def step(row: Row) -> Row:
        made = dict(row)
        for name, value in columns:
            made[name] = value(made)
        return made

    return step


def _cast(op: Op, types: Types, after: Types) -> Step:
    casts = {name: compiled(Cast(Field(name), target), types) for name, target in op.type_map.items()}
    return lambda row: {**row, **{name: value(row) for name, value in casts.items()}}


def _fillna(op: Op, types: Types, after: Types) -> Step:
    defaults = {name: float(value) if types[name] == "f64" else value for name, value in op.defaults.items()}

    def step(row: Row) -> Row:
        missing = {name: value for name, value in defaults.items() if row.get(name) is None}
        return {**row, **missing} if missing else row

    return step


_MAKERS: dict[str, Callable[[Op, Types, Types], Step]] = {
    "filter": _filter,
    "select": _project,
    "drop": _project,
    "rename": _rename,
    "with_columns": _with_columns,
    "cast": _cast,
    "fillna": _fillna,
}
