"""Tables of stored columns: one below the other though one has lists, and bounds of what a piece holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.format.companion.layout import Zone

_BOUND_LETTERS = 64


def concat(tables: Sequence[Any]) -> Any:
    """Columns tables one below the other; a column with lists in one of them has lists in the whole."""
    widest = common_schema([table.schema for table in tables])
    return pa.concat_tables([widen(table, widest) for table in tables])


def common_schema(schemas: Sequence[Any]) -> Any:
    """The columns of tables put one below the other."""
    fields = [_wider([each.field(name) for each in schemas]) for name in schemas[0].names]
    return pa.schema(fields)


def widen(table: Any, widest: Any) -> Any:
    """The table with these columns: where they are wider, a value becomes a list of one."""
    columns = [
        pa.chunked_array([_wrap_in_lists(chunk, field.type) for chunk in table.column(field.name).chunks], field.type)
        for field in widest
    ]
    return pa.table(columns, schema=widest)


def zone(column: Any) -> Zone:
    """The bounds of an array."""
    nulls = column.null_count
    if pa.types.is_list(column.type):
        column = column.flatten()
    if pa.types.is_nested(column.type):
        return Zone(None, None, nulls)
    least, greatest = pc.min_max(column).as_py().values()
    if isinstance(least, str) and (len(least) > _BOUND_LETTERS or len(greatest) > _BOUND_LETTERS):
        return Zone(None, None, nulls)
    return Zone(least, greatest, nulls)


def _wider(fields: list[Any]) -> Any:
    lists = [field for field in fields if pa.types.is_list(field.type)]
    return (lists or fields)[0]


def _wrap_in_lists(array: Any, wanted: Any) -> Any:
    """Scalars as lists of one where lists are wanted; nulls stay nulls."""
    if not pa.types.is_list(wanted) or pa.types.is_list(array.type):
        return array if array.type == wanted else array.cast(wanted)
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(array.is_valid().cast(pa.int32()))])
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(ends, array.drop_null(), type=wanted, mask=mask)
