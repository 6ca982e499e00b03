"""DuckDB as kernels use it: one database in memory per process, one thread per query, nothing from the network.

It writes no temporary files: a query that needs more memory than its limit is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cache

import duckdb
import pyarrow as pa

from headrace.deadline import Cancelled, Deadline
from headrace.errors import Unavailable

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "temp_directory": "",
}
_HELD = "SELECT coalesce(sum(memory_usage_bytes), 0)::BIGINT FROM duckdb_memory()"


def limit_memory(limit_bytes: int) -> None:
    """Let all queries of this process together take so much memory at most."""
    _SETTINGS["memory_limit"] = f"{limit_bytes // 1024}KiB"
    if _database.cache_info().currsize:
        with _database(os.getpid()).cursor() as cursor:
            cursor.execute(f"SET memory_limit = '{_SETTINGS['memory_limit']}'")


def held_bytes() -> int:
    """The memory that queries take now."""
    if not _database.cache_info().currsize:
        return 0
    with _database(os.getpid()).cursor() as cursor:
        return int(cursor.execute(_HELD).fetchall()[0][0])


def query(sql: str, tables: Mapping[str, pa.Table], deadline: Deadline | None = None) -> pa.Table:
    """The answer to a query over these tables; may be called from any thread. Raises Unavailable for want of memory.

    It is interrupted, and raises Cancelled, once the deadline is cancelled.
    """
    with _database(os.getpid()).cursor() as cursor:
        for name, table in tables.items():
            cursor.register(name, table)
        interrupting = nullcontext() if deadline is None else deadline.interrupting(cursor.interrupt)
        try:
            with interrupting:
                return cursor.sql(sql).to_arrow_table()
        except duckdb.InterruptException as reason:
            raise Cancelled from reason
        except duckdb.OutOfMemoryException as error:
            message = "the query needs more memory than limits.duckdb_bytes; ask for fewer groups or a shorter time"
            raise Unavailable(message, reason="memory", retry_after=2) from error


@cache
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """The database of this process; a forked one gets its own."""
    return duckdb.connect(":memory:", config=_SETTINGS)
