"""Events of a source as rows of a table or of a derived event: numbers in the type of their field, then the steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.schema.descriptor.nodes import EventField, Feature, RowOp, Type
from headrace.schema.descriptor.validate import inputs, types_after
from headrace.schema.expression import compiled, fields, parse
from headrace.schema.expression.tree import Cast, FieldReference

if TYPE_CHECKING:
    from headrace.schema.descriptor.validate import ResolvedTable


Row: TypeAlias = dict[str, Any]
Types: TypeAlias = dict[str, Type]
#: A row, or None where it is filtered out. The row given is left as it is.
Step: TypeAlias = Callable[[Row], Row | None]


def steps(ops: Iterable[RowOp], types: Mapping[str, Type]) -> tuple[Step, ...]:
    """A function for every step, the first one over rows of these types."""
    made: list[Step] = []
    types_so_far = dict(types)
    for op in ops:
        after = types_after((op,), types_so_far)
        made.append(_MAKERS[op.op](op, types_so_far, after))
        types_so_far = after
    return tuple(made)


def _filter(op: RowOp, types: Types, after: Types) -> Step:
    holds = compiled(parse(op.expr or ""), types)
    return lambda row: row if holds(row) is True else None


def _project(op: RowOp, types: Types, after: Types) -> Step:
    names = tuple(after)
    return lambda row: {name: row.get(name) for name in names}


def _rename(op: RowOp, types: Types, after: Types) -> Step:
    mapping = op.mapping
    return lambda row: {mapping.get(name, name): value for name, value in row.items()}


def _with_columns(op: RowOp, types: Types, after: Types) -> Step:
    """Columns in the order of their names, each from the row with those before it."""
    columns, types_so_far = [], dict(types)
    for name in sorted(op.exprs):
        columns.append((name, compiled(parse(op.exprs[name]), types_so_far)))
        types_so_far[name] = after[name]

    def step(row: Row) -> Row:
        made = dict(row)
        for name, value in columns:
            made[name] = value(made)
        return made

    return step


def _cast(op: RowOp, types: Types, after: Types) -> Step:
    casts = {name: compiled(Cast(FieldReference(name), target), types) for name, target in op.type_map.items()}
    return lambda row: {**row, **{name: value(row) for name, value in casts.items()}}


def _fillna(op: RowOp, types: Types, after: Types) -> Step:
    defaults = {name: float(value) if types[name] == "f64" else value for name, value in op.defaults.items()}

    def step(row: Row) -> Row:
        missing = {name: value for name, value in defaults.items() if row.get(name) is None}
        return {**row, **missing} if missing else row

    return step


_MAKERS: dict[str, Callable[[RowOp, Types, Types], Step]] = {
    "filter": _filter,
    "select": _project,
    "drop": _project,
    "rename": _rename,
    "with_columns": _with_columns,
    "cast": _cast,
    "fillna": _fillna,
}


class Rows:
    """Converts an event to its row, or to None if it has none."""

    def __init__(self, schema: Mapping[str, EventField], ops: Iterable[RowOp], seen: Collection[str]) -> None:
        """Rows of which only these fields of the source are seen."""
        types = {name: field.type for name, field in schema.items()}
        self._numbers = tuple(
            (name, float if kind == "f64" else int, int if kind == "f64" else float)
            for name, kind in types.items()
            if kind in ("f64", "i64") and name in seen
        )
        self._steps = steps(ops, types)
        self.has_steps = bool(self._steps)

    def of(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """The row, None where a filter leaves it out; the event is left as it is."""
        row: dict[str, Any] | None = event
        for name, wanted, other in self._numbers:
            if type(value := event.get(name)) is other:
                row = {**row, name: wanted(value)}  # type: ignore[dict-item]
        for step in self._steps:
            if (row := step(row)) is None:  # type: ignore[arg-type]
                return None
        return row


def mentioned_names(resolved: ResolvedTable) -> set[str]:
    """All names that the steps, the key and the features mention."""
    names = set(resolved.table.key)
    for op in resolved.ops:
        names |= _in_step(op)
    for feature in resolved.table.features.values():
        names |= _in_feature(feature)
    return names


def _in_step(op: RowOp) -> set[str]:
    texts = [*([op.expr] if op.expr is not None else []), *op.exprs.values()]
    return {
        *op.fields,
        *op.mapping,
        *op.type_map,
        *op.defaults,
        *(name for text in texts for name in fields(parse(text))),
    }


def _in_feature(feature: Feature) -> set[str]:
    where = feature.params.get("where")
    return {*inputs(feature), *(fields(parse(where)) if where is not None else ())}
