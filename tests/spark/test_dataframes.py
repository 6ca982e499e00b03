"""DataFrames on Spark are what HTTP reads give, in both modes and every version, in one job for all of them."""

from __future__ import annotations

from contextlib import closing
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headrace.spark
from headrace.query.definition import decode_exact
from headrace.spark.columns import CORRUPT
from spark.lives import Life
from support.http_caller import Caller

if TYPE_CHECKING:
    from tests.conftest import StartServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_dataframes_are_what_http_reads_give(spark: SparkSession, start_server: StartServer) -> None:
    server = start_server(storage__seal_age_s="3600")
    headrace.spark.register(spark)

    def load(stream: str, schema: str, **options: str) -> DataFrame:
        reader = spark.read.format("headrace").options(url=server.url, stream=stream, minPartitions="2", **options)
        frame = reader.schema(schema).load() if schema else reader.load()
        text = f.to_json(f.struct("*"), {"ignoreNullFields": "false"})
        label = f.lit(f"{stream} {options.get('mode')} {options.get('schemaVersion')}")
        return frame.select(label.alias("read"), text.alias("row"))

    with closing(Caller(server.url)) as caller:
        life, fork = Life(caller, 9_100), Life(caller, 9_101)
        life.begin()
        life.go_on(0)
        caller.done("POST", f"{life.name}/_seal", timeout="60000")
        while life.version < 2:
            life.evolve()
        life.append(9)
        fork.fork(life)
        fork.append(5)
        frames = [load(life.name, "", mode="typed"), load(fork.name, "", mode="envelope")]
        versions = range(1, life.version + 1)
        frames += [load(life.name, "payload string", mode="envelope", schemaVersion=str(v)) for v in versions]
        rows = reduce(DataFrame.union, frames).collect()
        found: dict[str, list[Any]] = {}
        for row in rows:
            found.setdefault(row["read"], []).append(decode_exact(row["row"]))
        wanted = caller.entries(life.name)
        check_typed(found.pop(f"{life.name} typed None"), wanted)
        stored = found.pop(f"{fork.name} envelope None")
        assert [row["key"] for row in stored] == fork.keys
        for version in versions:
            carried = found.pop(f"{life.name} envelope {version}")
            assert [decode_exact(row["payload"]) for row in carried] == caller.entries(
                life.name, schema_version=str(version)
            )
        assert not found
        spark.sql(f"CREATE TEMPORARY VIEW events USING headrace OPTIONS (url '{server.url}', stream '{life.name}')")
        assert spark.sql("SELECT count(*) AS events FROM events").collect()[0]["events"] == len(wanted)
        with pytest.raises(AnalysisException, match="did you mean mode"):
            load(life.name, "", moode="typed")


def check_typed(rows: list[Any], wanted: list[Any]) -> None:
    assert len(rows) == len(wanted)
    for row, event in zip(rows, wanted, strict=True):
        if row[CORRUPT] is not None:
            assert decode_exact(row[CORRUPT]) == event
            continue
        for name in row.keys() - {CORRUPT}:
            member = event.get(name)
            assert row[name] == member or decode_exact(row[name]) == member, (name, row, event)
