"""Measures that are sketches: quantiles and distinct counts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.query.search import Field
from headrace.query.values import values
from headrace.reduce import sketches
from headrace.reduce.reducer import NOTHING, Expression, number
from headrace.reduce.source import Source
from headrace.reduce.state import State


class Sketching:
    """How the numbers of the events that have exactly one are distributed."""

    def __init__(self, field: Field) -> None:
        self._field = field

    def lift(self, document: Any) -> State:
        """The sketch of one number, as a double."""
        found = values(self._field, document)
        given = _double(found[0]) if len(found) == 1 else None
        if given is None:
            return NOTHING
        return State(count=1, sketch=sketches.quantiles(np.array([given])))

    def columns(self, source: Source) -> dict[str, Expression]:
        """How many numbers, and their sketch."""
        value = source.one(self._field.name)
        numbers = f"list({value}::DOUBLE) FILTER ({value} IS NOT NULL)"
        return {"count": Expression(f"count({value})"), "sketch": Expression(numbers, _each(_quantiles))}

    def finish(self, state: State) -> dict[str, Any]:
        """How many, the least, the greatest, and quantiles."""
        if state.sketch is None:
            return {"count": 0, **dict.fromkeys(("min", "max", *sketches.RANKS))}
        return {name: number(value) for name, value in sketches.distribution(state.sketch).items()}


class Distinguishing:
    """How many values differ, all values of every event counted."""

    def __init__(self, field: Field) -> None:
        self._field = field

    def lift(self, document: Any) -> State:
        """The sketch of the values of one event; how many there were counts for nothing."""
        found = values(self._field, document)
        return State(count=0, sketch=sketches.distinct_of(found)) if found else NOTHING

    def columns(self, source: Source) -> dict[str, Expression]:
        """The sketch."""
        gathered = source.different(self._field.name)
        return {"count": Expression("0::BIGINT"), "sketch": Expression(gathered, _each(sketches.distinct))}

    def finish(self, state: State) -> dict[str, Any]:
        """About how many."""
        return {"distinct": 0 if state.sketch is None else sketches.distinct_count(state.sketch)}


def _double(value: Any) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def _quantiles(numbers: pa.Array) -> bytes:
    return sketches.quantiles(numbers.to_numpy())


def _each(sketch: Callable[[pa.Array], bytes]) -> Callable[[pa.ListArray], pa.Array]:
    """A sketch for every list; null for an empty one."""

    def made(lists: pa.ListArray) -> pa.Array:
        offsets, gathered = lists.offsets.to_pylist(), lists.values
        found = [
            sketch(gathered.slice(start, end - start)) if end > start else None for start, end in pairwise(offsets)
        ]
        return pa.array(found, pa.binary())

    return made
