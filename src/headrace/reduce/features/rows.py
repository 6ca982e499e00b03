"""Events of a source as rows of a table or of a derived event: numbers in the type of their field, then the steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.reduce.features.steps import steps
from headrace.schema.descriptor.nodes import Feature, Field, Op
from headrace.schema.descriptor.operators import inputs
from headrace.schema.expression import fields, parse

if TYPE_CHECKING:
    from headrace.schema.descriptor.resolve import Resolved


class Rows:
    """Makes the row of an event, or says that it has none."""

    def __init__(self, schema: Mapping[str, Field], ops: Iterable[Op], seen: Collection[str]) -> None:
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


def mentioned(resolved: Resolved) -> set[str]:
    """All names that the steps, the key and the features mention."""
    found = set(resolved.table.key)
    for op in resolved.ops:
        found |= _in_step(op)
    for feature in resolved.table.features.values():
        found |= _in_feature(feature)
    return found


def _in_step(op: Op) -> set[str]:
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
