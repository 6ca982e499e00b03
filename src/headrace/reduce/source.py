"""A columns table as DuckDB expressions see it."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headrace.query.search import Search
from headrace.query.sql import identifier, predicate
from headrace.query.tree import Node


class Source:
    """The columns of events; ``known`` names columns that already say where a query is true."""

    def __init__(self, schema: pa.Schema, search: Search, known: Mapping[Node, str]) -> None:
        self._search = search
        self._known = known
        self.many = {field.name: _is_list(field.type) for field in schema}

    def holds(self, tree: Node) -> str:
        """Whether an event matches a query."""
        known = self._known.get(tree)
        return predicate(tree, self._search, self.many) if known is None else identifier(known)

    def one(self, field: str) -> str:
        """The value of a field where an event has exactly one, else null."""
        place = identifier(f"f.{field}")
        return f"(CASE WHEN len({place}) = 1 THEN {place}[1] END)" if self.many[f"f.{field}"] else place

    def at_most_one(self, field: str) -> str:
        """Whether an event has no two values of a field."""
        place = identifier(f"f.{field}")
        return f"coalesce(len({place}) = 1, true)" if self.many[f"f.{field}"] else "true"

    def different(self, field: str) -> str:
        """All the values of a field in some events, each once; an aggregate."""
        place = identifier(f"f.{field}")
        if self.many[f"f.{field}"]:
            return f"list_distinct(flatten(list({place}) FILTER ({place} IS NOT NULL)))"
        return f"list(DISTINCT {place}) FILTER ({place} IS NOT NULL)"


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
