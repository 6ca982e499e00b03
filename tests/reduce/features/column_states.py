"""What columns of events are folded to, as the states that rows fold to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.reduce.features.columns import fold_rows
from headrace.reduce.features.event_columns import AT_MS, SEQ, columns_of, number_texts
from headrace.reduce.features.table import KeyState, TableReducer


def fold_columns(
    reducer: TableReducer, seqs: Sequence[int], times_ms: Sequence[int], events: Sequence[Mapping[str, Any]]
) -> dict[bytes, KeyState]:
    """The state of every key, in order of keys."""
    columns = columns_of(reducer.source_types, events)
    columns |= {SEQ: pa.array(seqs, pa.int64()), AT_MS: pa.array(times_ms, pa.int64())}
    return states_of(reducer, number_texts(pa.table(columns)))


def states_of(reducer: TableReducer, events: pa.Table) -> dict[bytes, KeyState]:
    """The same of events that are columns already."""
    folded = fold_rows(reducer, events)
    assert not len(folded.keys) or folded.columns.keys() == {"", *(v.id for v in reducer.feature_versions.values())}
    held = {name: column.to_pylist() for name, column in folded.columns.items()}
    rows = [dict(zip(held, row, strict=True)) for row in zip(*held.values(), strict=True)]
    return {
        key: reducer.unpack({name: state for name, state in row.items() if state is not None})
        for key, row in zip(folded.keys.to_pylist(), rows, strict=True)
    }
