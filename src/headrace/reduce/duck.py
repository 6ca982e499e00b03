"""DuckDB as kernels use it: one database in memory per process, one thread per query, nothing from the network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

import duckdb
import pyarrow as pa

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}


def query(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """The answer to a query over these tables; may be called from any thread."""
    with _database(os.getpid()).cursor() as cursor:
        for name, table in tables.items():
            cursor.register(name, table)
        return cursor.sql(sql).to_arrow_table()


@cache
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """The database of this process; a forked one gets its own."""
    return duckdb.connect(":memory:", config=_SETTINGS)
