"""DuckDB as kernels use it: one database in memory per process, one thread per query, nothing from the network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

import duckdb
import pyarrow as pa

from headrace.query.deadline import Cancelled, Deadline

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


def query(sql: str, tables: Mapping[str, pa.Table], deadline: Deadline | None = None) -> pa.Table:
    """The answer to a query over these tables; may be called from any thread.

    It is interrupted, and raises Cancelled, once the deadline is cancelled.
    """
    with _database(os.getpid()).cursor() as cursor:
        for name, table in tables.items():
            cursor.register(name, table)
        if deadline is None:
            return cursor.sql(sql).to_arrow_table()
        try:
            with deadline.interrupting(cursor.interrupt):
                return cursor.sql(sql).to_arrow_table()
        except duckdb.InterruptException as reason:
            raise Cancelled from reason


@cache
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """The database of this process; a forked one gets its own."""
    return duckdb.connect(":memory:", config=_SETTINGS)
