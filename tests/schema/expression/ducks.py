"""Expressions asked of DuckDB: all in one query, each of its own row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb

from headrace.schema.descriptor.nodes import Type
from headrace.schema.expression import Expr, sql
from headrace.schema.expression.duck import column_type, identifier


def answers(asked: Sequence[tuple[Expr, Mapping[str, Any]]], types: Mapping[str, Type]) -> list[Any]:
    """What DuckDB makes of each expression for its row."""
    columns = ", ".join(f"{identifier(name)} {column_type(kind)}" for name, kind in types.items())
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE asked (number INTEGER, {columns})")
        rows = [[at, *(row.get(name) for name in types)] for at, (_, row) in enumerate(asked)]
        connection.executemany(f"INSERT INTO asked VALUES (?{', ?' * len(types)})", rows)
        found: list[Any] = [None] * len(asked)
        for at, (expr, _) in enumerate(asked):
            (answer,) = connection.execute(f"SELECT {sql(expr, types)} FROM asked WHERE number = {at}").fetchall()
            found[at] = answer[0]
    return found
