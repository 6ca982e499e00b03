"""Published segments are plain Parquet: tools that know nothing of us read the same entries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pandas
import pyarrow.parquet as pq
import pytest

from headrace.types import JSON, OCTETS
from support.engine_rig import Rig, array
from support.published_streams import COLUMNS, ORDERS, ORDERS_BY_USER, RAW, orders, raw
from support.stored_objects import files


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, storage={"seal_rows": 4}) as rig:
        yield rig


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def test_duckdb_reads_the_entries_of_a_json_stream(rig: Rig, database: duckdb.DuckDBPyConnection) -> None:
    given = {"files": orders(rig)}
    found = database.execute(
        "SELECT seq, epoch_us(append_time), key, version, first, payload FROM read_parquet($files) ORDER BY seq", given
    ).fetchall()
    assert found == ORDERS
    kinds = database.execute("DESCRIBE SELECT * FROM read_parquet($files)", given).fetchall()
    assert [kind for _, kind, *_ in kinds] == [
        "BIGINT",
        "TIMESTAMP WITH TIME ZONE",
        "VARCHAR",
        "INTEGER",
        "BOOLEAN",
        "VARCHAR",
    ]
    counted = database.execute(
        "SELECT payload ->> '$.user' AS name, count(*) FROM read_parquet($files) GROUP BY name ORDER BY name", given
    ).fetchall()
    assert counted == ORDERS_BY_USER


def test_duckdb_reads_the_entries_of_a_stream_of_bytes(rig: Rig, database: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT seq, epoch_us(append_time), key, version, first, payload FROM read_parquet($files)"
    assert database.execute(sql, {"files": raw(rig)}).fetchall() == RAW


def _rows(frame: pandas.DataFrame) -> list[tuple[object, ...]]:
    """Plain values, times in microseconds and what is missing as None."""
    assert tuple(frame.columns) == COLUMNS
    assert str(frame.append_time.dtype) == "datetime64[us, UTC]"
    frame["append_time"] = frame.append_time.astype("int64")
    values = frame.astype(object)
    return list(values.where(values.notna(), None).itertuples(index=False, name=None))


def test_pandas_reads_the_entries_of_a_json_stream(rig: Rig) -> None:
    frame = pandas.concat(map(pandas.read_parquet, orders(rig)), ignore_index=True)
    documents = pandas.json_normalize(frame.payload.map(json.loads).tolist())
    assert list(documents.groupby("user").size().items()) == ORDERS_BY_USER
    assert _rows(frame) == ORDERS


def test_pandas_reads_the_entries_of_a_stream_of_bytes(rig: Rig) -> None:
    [file] = raw(rig)
    assert _rows(pandas.read_parquet(file)) == RAW


def test_pandas_reads_only_what_a_filter_leaves(rig: Rig) -> None:
    frame = pandas.read_parquet(orders(rig), columns=["seq", "payload"], filters=[("key", "==", "béa")])
    assert frame.to_dict("list") == {"seq": [1], "payload": ['{"user":"béa"}']}


def test_a_fork_has_segments_of_its_own_entries_only(rig: Rig, database: duckdb.DuckDBPyConnection) -> None:
    rig.create("source", JSON, array(1, 2, 3))
    rig.fork("source", "fork", 2)
    rig.append("fork", array("own"))
    rig.publish("fork")
    found = database.execute("SELECT seq, payload FROM read_parquet($files)", {"files": files(rig, "fork")}).fetchall()
    assert found == [(2, '"own"')]


def test_only_the_row_groups_of_a_key_have_to_be_read(rig: Rig, database: duckdb.DuckDBPyConnection) -> None:
    rig.create("s", OCTETS)
    for number in range(4):
        rig.append("s", b"x", key=f"key-{number}")
    rig.publish("s")
    [file] = files(rig, "s")
    found = database.execute(
        "SELECT bloom_filter_excludes FROM parquet_bloom_probe($file, 'key', 'key-9')", {"file": file}
    ).fetchall()
    assert found == [(True,)]
    statistics = pq.read_metadata(file).row_group(0).column(2).statistics
    assert statistics.min == "key-0"
    assert statistics.max == "key-3"


def test_the_columns_are_those_that_spark_reads_plainly(rig: Rig) -> None:
    rig.create("s", JSON, array(1))
    rig.publish("s")
    [file] = files(rig, "s")
    kinds = [(column.name, column.physical_type, str(column.logical_type)) for column in pq.ParquetFile(file).schema]
    assert [(name, kind) for name, kind, _ in kinds] == [
        ("seq", "INT64"),
        ("append_time", "INT64"),
        ("key", "BYTE_ARRAY"),
        ("version", "INT32"),
        ("first", "BOOLEAN"),
        ("payload", "BYTE_ARRAY"),
    ]
    assert "isAdjustedToUTC=true, timeUnit=microseconds" in kinds[1][2]
    assert pq.read_metadata(file).row_group(0).column(5).compression == "ZSTD"
