"""DuckDB on ready-made Parquet: what an aggregate costs where the same columns simply lie in a file."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.driver import DriverFailed
from bench.searching import data
from bench.searching.questions import AGGREGATES, Question, some

THREADS = 2
#: So that both threads have something to do.
_GROUP_ROWS = 100_000
_BUCKET = "CAST(floor(log2(greatest(abs(ms), 1))) AS INTEGER)"


def write(events: data.Block, path: Path) -> None:
    """The columns of events as one Parquet file."""
    columns = {
        "moment": events.at,
        "service": np.array(data.SERVICES)[events.service],
        "level": np.array(data.LEVELS)[events.level],
        "status": np.array(data.STATUSES)[events.status],
        "ms": events.ms,
    }
    pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=_GROUP_ROWS)


def aggregates(events: data.Block, space: Path) -> dict[str, float]:
    """The median time of every kind of aggregate in milliseconds, asked as servers are."""
    path, count = space / "columns.parquet", len(events.at)
    write(events, path)
    database = duckdb.connect(config={"threads": THREADS})
    try:
        return {
            name: _median(database, [sql(asked, path) for asked in some(ask, count)])
            for name, ask in AGGREGATES.items()
        }
    finally:
        database.close()
        path.unlink()


def sql(asked: Question, path: Path) -> str:
    """An aggregate request as SQL: the same groups, and of each what the answer tells of it."""
    keys = [f"moment // {data.HOUR_MS}", *asked.get("group_by", ())]
    within = f" AND ms >= {asked['q'].removeprefix('ms:>=')}" if "q" in asked else ""
    return (
        f"SELECT {', '.join(keys)}, count(*), count(ms), sum(ms), min(ms), max(ms), histogram({_BUCKET}) "
        f"FROM read_parquet('{path}') WHERE moment >= {asked['from']} AND moment < {asked['to']}{within} "
        f"GROUP BY ALL ORDER BY {', '.join(str(place) for place, _ in enumerate(keys, start=1))}"
    )


def _median(database: duckdb.DuckDBPyConnection, queries: list[str]) -> float:
    taken = []
    for query in queries:
        began = time.perf_counter()
        found = database.sql(query).to_arrow_table()
        taken.append(time.perf_counter() - began)
        if not found.num_rows:
            raise DriverFailed(f"DuckDB found nothing: {query}")
    return statistics.median(taken[1:]) * 1e3
