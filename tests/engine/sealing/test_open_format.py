"""Published segments are plain Parquet: tools that know nothing of us read the same entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from headrace.schema.registry import KeySetting
from headrace.schema.update import Update
from headrace.types import JSON, OCTETS
from rig import START_US, Rig, array
from stored import placed

TEXT = {"type": "string"}
SHAPES = [
    {"type": "object", "properties": {"user": TEXT}, "required": ["user"], "additionalProperties": False},
    {"type": "object", "properties": {"user": TEXT, "note": TEXT}, "additionalProperties": False},
]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, storage={"seal_rows": 4}) as rig:
        yield rig


def _files(rig: Rig, name: str) -> list[str]:
    """The files of a stream's segments."""
    root = Path(rig.config.storage.data_dir) / "objects"
    files = [root / one.key for one in placed(rig, name)]
    assert all(file.suffix == ".parquet" for file in files)
    return [str(file) for file in files]


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def test_duckdb_reads_the_entries_of_a_json_stream(rig: Rig, database: duckdb.DuckDBPyConnection) -> None:
    stream = rig.create("orders", JSON)
    rig.run(rig.engine.schemas.apply(stream, Update(schema=SHAPES[0], routing_key=KeySetting("/user", False))))
    rig.append("orders", array({"user": "ann"}, {"user": "béa"}, {"user": "ann"}))
    rig.clock.us += 1_500_000
    rig.run(rig.engine.schemas.apply(stream, Update(schema=SHAPES[1])))
    for number in range(4):
        rig.append("orders", array({"user": "cy", "note": f"n{number}"}))
    rig.publish("orders")
    files = _files(rig, "orders")
    assert len(files) == 2
    found = database.execute(
        "SELECT seq, epoch_us(append_time), key, version, first, payload FROM read_parquet($files) ORDER BY seq",
        {"files": files},
    ).fetchall()
    began, later = START_US, START_US + 1_500_000
    expected = [
        (0, began, "ann", 1, True, '{"user":"ann"}'),
        (1, began, "béa", 1, False, '{"user":"béa"}'),
        (2, began, "ann", 1, False, '{"user":"ann"}'),
        *((3 + n, later, "cy", 2, True, f'{{"user":"cy","note":"n{n}"}}') for n in range(4)),
    ]
    assert found == expected
    kinds = database.execute("DESCRIBE SELECT * FROM read_parquet($files)", {"files": files}).fetchall()
    assert [kind for _, kind, *_ in kinds] == [
        "BIGINT",
        "TIMESTAMP WITH TIME ZONE",
        "VARCHAR",
        "INTEGER",
        "BOOLEAN",
        "VARCHAR",
    ]
    counted = database.execute(
        "SELECT payload ->> '$.user' AS name, count(*) FROM read_parquet($files) GROUP BY name ORDER BY name",
        {"files": files},
    ).fetchall()
    assert counted == [("ann", 2), ("béa", 1), ("cy", 4)]


def test_duckdb_reads_the_entries_of_a_stream_of_bytes(rig: Rig, database: duckdb.DuckDBPyConnection) -> None:
    rig.create("raw", OCTETS, b"\x00\xff")
    rig.append("raw", b"plain", key="k")
    rig.publish("raw")
    found = database.execute(
        "SELECT seq, key, version, first, payload FROM read_parquet($files)", {"files": _files(rig, "raw")}
    ).fetchall()
    assert found == [(0, None, 0, True, b"\x00\xff"), (1, "k", 0, True, b"plain")]


def test_a_fork_has_segments_of_its_own_entries_only(rig: Rig, database: duckdb.DuckDBPyConnection) -> None:
    rig.create("source", JSON, array(1, 2, 3))
    rig.fork("source", "fork", 2)
    rig.append("fork", array("own"))
    rig.publish("fork")
    found = database.execute("SELECT seq, payload FROM read_parquet($files)", {"files": _files(rig, "fork")}).fetchall()
    assert found == [(2, '"own"')]


def test_only_the_row_groups_of_a_key_have_to_be_read(rig: Rig, database: duckdb.DuckDBPyConnection) -> None:
    rig.create("s", OCTETS)
    for number in range(4):
        rig.append("s", b"x", key=f"key-{number}")
    rig.publish("s")
    [file] = _files(rig, "s")
    found = database.execute(
        "SELECT bloom_filter_excludes FROM parquet_bloom_probe($file, 'key', 'key-9')", {"file": file}
    ).fetchall()
    assert found == [(True,)]
    statistics = pq.read_metadata(file).row_group(0).column(2).statistics
    assert (statistics.min, statistics.max) == ("key-0", "key-3")


def test_the_columns_are_those_that_spark_reads_plainly(rig: Rig) -> None:
    rig.create("s", JSON, array(1))
    rig.publish("s")
    [file] = _files(rig, "s")
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
