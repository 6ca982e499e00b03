"""Spark reads published segments as they are, with nothing of ours installed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from support.engine_rig import Rig
from support.published_streams import COLUMNS, ORDERS, ORDERS_BY_USER, RAW, orders, raw

pytestmark = pytest.mark.spark


def _rows(frame: DataFrame) -> list[tuple[object, ...]]:
    """Plain values, times in microseconds."""
    found = frame.selectExpr("seq", "unix_micros(append_time)", "key", "version", "first", "payload").orderBy("seq")
    return [tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row) for row in found.collect()]


def test_spark_reads_entries_times_keys_and_documents(spark: SparkSession, tmp_path: Path) -> None:
    with Rig(tmp_path / "node", storage={"seal_rows": 4}) as rig:
        octets, events = spark.read.parquet(*raw(rig)), spark.read.parquet(*orders(rig))
        kinds = ["bigint", "timestamp", "string", "int", "boolean"]
        assert events.dtypes == list(zip(COLUMNS, [*kinds, "string"], strict=True))
        assert octets.dtypes == list(zip(COLUMNS, [*kinds, "binary"], strict=True))
        assert _rows(events) == ORDERS
        assert _rows(octets) == RAW
        users = events.selectExpr("get_json_object(payload, '$.user') AS name").groupBy("name").count().orderBy("name")
        assert [tuple(row) for row in users.collect()] == ORDERS_BY_USER
        notes = events.selectExpr("from_json(payload, 'user STRING, note STRING') AS event").where("event.note = 'n2'")
        assert [row.event.asDict() for row in notes.collect()] == [{"user": "cy", "note": "n2"}]
        assert [row.seq for row in events.where("key = 'béa'").collect()] == [1]
