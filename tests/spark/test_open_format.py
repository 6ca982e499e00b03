"""Spark reads published segments as they are, with nothing of ours installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from published import COLUMNS, ORDERS, ORDERS_BY_USER, RAW, orders, raw
from rig import Rig

pytestmark = pytest.mark.spark


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[SparkSession]:
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        pytest.skip("Spark needs a Java")
    builder = SparkSession.builder.master("local[1]").appName("headrace-tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.local.dir": str(tmp_path / "scratch"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


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
