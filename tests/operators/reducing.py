"""Rows of lanes as Catalyst reduces them, without Spark; a test on Spark holds its aggregates to the same answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa

from headrace.operators import moments, sketches
from headrace.operators.parts import COLUMNS

_PLAIN: dict[str, Callable[[list[Any]], Any]] = {"sum": sum, "min": min, "max": max}


def reduced(rows: pa.Table, by: Sequence[str], names: Sequence[str]) -> pa.Table:
    """One row for all that are alike in some columns."""
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        alike.setdefault(tuple(row[name] for name in by), []).append(row)
    made: dict[str, pa.Array] = {
        name: pa.array([key[at] for key in alike], rows.schema.field(name).type) for at, name in enumerate(by)
    }
    for name in names:
        parts = ([row[name] for row in one if row[name] is not None] for one in alike.values())
        kind = rows.schema.field(name).type
        made[name] = pa.array([_one(name, found) for found in parts], pa.list_(kind) if name == "exact" else kind)
    return pa.table(made)


def _one(name: str, parts: list[Any]) -> Any:
    if name == "exact" or not parts:
        return parts or None
    if not COLUMNS[name].gathers:
        return _PLAIN[COLUMNS[name].aggregate[:3]](parts)
    return reduce(moments.merge_moments, parts) if isinstance(parts[0], list) else sketches.union(parts)
