"""What a measure is: an event is lifted to a state, states merge, a state is finished to an answer.

``lift`` is the meaning, in plain Python; ``columns`` makes the same states of many events at once in DuckDB. Merging is
the same for all kinds and lives in ``state``. An event that lacks a measure is lifted to a count of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from headrace.reduce.source import Source
from headrace.reduce.state import State

NOTHING = State(count=0)


class Expression(NamedTuple):
    """A component of a state in DuckDB: an aggregate over events, and what makes states of the lists it gathers."""

    sql: str
    made: Callable[[pa.ListArray], pa.Array] | None = None


class Reducer(Protocol):
    """A measure over events."""

    def lift(self, document: Any) -> State:
        """The state of one event."""

    def columns(self, source: Source) -> dict[str, Expression]:
        """The components of the state of many events."""

    def finish(self, state: State) -> dict[str, Any]:
        """The answer as it goes over the wire."""


def number(value: float | None) -> float | None:
    """A number as JSON has it: whole ones without a fraction, none beyond the range of doubles."""
    if value is None or isinstance(value, int) or not math.isfinite(value):
        return value if isinstance(value, int) else None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value
