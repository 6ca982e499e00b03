"""Chains over rows: each step makes new rows of the ones before, and ``agg`` makes features of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.client.expressions import Expression, cast_target, text
from headrace.client.operators import Feature

if TYPE_CHECKING:
    from headrace.client.declared import EventSource

Step = Mapping[str, Any]


class Rows:
    """The rows of an event source after some steps; every method leaves it as it is and answers new rows."""

    def __init__(self, upstream: EventSource, steps: tuple[Step, ...] = ()) -> None:
        self.upstream = upstream
        self.steps = steps

    def filter(self, condition: Expression | str) -> Rows:
        """Only rows for which the condition is true."""
        return self._then("filter", expr=text(condition))

    def select(self, *fields: str) -> Rows:
        """Only these fields."""
        return self._then("select", fields=list(fields))

    def drop(self, *fields: str) -> Rows:
        """All fields but these."""
        return self._then("drop", fields=list(fields))

    def rename(self, /, **names: str) -> Rows:
        """Fields under other names: ``rename(old="new")``."""
        return self._then("rename", mapping=names)

    def with_columns(self, /, **columns: Expression | str) -> Rows:
        """New fields, or other values of fields that are there."""
        return self._then("with_columns", exprs={name: text(value) for name, value in columns.items()})

    def map(self, /, **columns: Expression | str) -> Rows:
        """Another name of ``with_columns``."""
        return self.with_columns(**columns)

    def cast(self, /, **types: type | str) -> Rows:
        """Fields as another type; null where they cannot be."""
        return self._then("cast", type_map={name: cast_target(to) for name, to in types.items()})

    def fillna(self, /, **values: str | float | bool) -> Rows:
        """Values in place of null."""
        if absent := [name for name, value in values.items() if value is None]:
            raise ValueError(f"null cannot stand in place of null: {', '.join(absent)}")
        return self._then("fillna", defaults=values)

    def group_by(self, *fields: str) -> Grouped:
        """The same rows by key."""
        return Grouped(self, fields)

    def agg(self, /, **features: Feature) -> Aggregated:
        """Features of these rows, by the key of the table."""
        return Aggregated(self, None, features)

    def _then(self, op: str, **members: Any) -> Rows:
        return Rows(self.upstream, (*self.steps, {"op": op, **members}))


class Grouped:
    """Rows by key."""

    def __init__(self, rows: Rows, key: tuple[str, ...]) -> None:
        self._rows = rows
        self._key = key

    def agg(self, /, **features: Feature) -> Aggregated:
        """Features of the rows of each key."""
        return Aggregated(self._rows, self._key, features)


class Aggregated:
    """Features of rows; the end of a chain."""

    def __init__(self, rows: Rows, key: tuple[str, ...] | None, features: Mapping[str, Feature]) -> None:
        if not features:
            raise TypeError("agg() needs features, such as agg(n=hr.count())")
        for name, feature in features.items():
            if not isinstance(feature, Feature):
                raise TypeError(f"{name} is {feature!r}, not a feature such as hr.count()")
        self.rows = rows
        self.key = key
        self.features = dict(features)
