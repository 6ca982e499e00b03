"""Many observations at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.reduce.policies.reducer import Row, TypeReducer
from headrace.schema.entity.observation import Observation

#: An observation with its sequence number and the time it was appended, µs.
Told = tuple[int, int, Observation]


def folded(
    reducer: TypeReducer, observations: Iterable[Told], rows: dict[bytes, Row] | None = None
) -> dict[bytes, Row]:
    """The state of every entity that is told of; rows that are given are gone on with, and changed."""
    rows = {} if rows is None else rows
    place, fold, held = reducer.place, reducer.fold, rows.get
    for seq, at_us, observation in observations:
        placed = place(observation)
        if placed is not None:
            key, row = placed
            rows[key] = fold(held(key), row, at_us // 1000, seq)
    return rows


def packed(reducer: TypeReducer, rows: dict[bytes, Row]) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    """Rows as they are kept, in the order of keys; none is left."""
    for key in sorted(rows):
        yield key, reducer.pack(rows.pop(key))


def reduced(reducer: TypeReducer, observations: Iterable[Told]) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    """Observations as rows that are kept."""
    return packed(reducer, folded(reducer, observations))
