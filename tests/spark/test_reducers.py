"""Spark merges panes, and makes sketches, as the reference does: many generated cases, one job for all of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.operators import sketches
from headrace.query.search import Kind
from headrace.reduce import rollup, spark
from headrace.reduce.answer import Aggregate
from headrace.reduce.state import MAX_COUNT, PANES
from reduce import oracle
from reduce.answers import buckets
from reduce.declarations import HOUR, MINUTE, SEARCH
from reduce.events import cuts, events, parts
from support import reference_columns as columns

pytestmark = pytest.mark.spark

CASES = 60
EVER = 2**60


@pytest.fixture
def session(request: pytest.FixtureRequest) -> SparkSession:
    """The session of all tests; its name is that of what is tested here."""
    found = request.getfixturevalue("spark")
    assert isinstance(found, SparkSession)
    return found


def cases() -> list[list[list[Any]]]:
    """Events cut into parts, generated."""
    found: list[list[list[Any]]] = []

    @settings(max_examples=CASES, phases=[Phase.generate], database=None)
    @given(events, cuts)
    def collect(documents: list[Any], at: list[int]) -> None:
        found.append(parts(documents, at))

    collect()
    return found


def merged(session: SparkSession, tables: list[tuple[int, pa.Table]]) -> list[pa.Table]:
    """The panes of every case, merged by one job."""
    numbered = [table.append_column("case", pa.repeat(pa.scalar(at, pa.int32()), len(table))) for at, table in tables]
    # Where one chunk of a table is empty, Spark reads no further.
    frame = session.createDataFrame(pa.concat_tables(numbered).combine_chunks())
    assert frame.select(*PANES.names).schema.simpleString() == f"struct<{simple(spark.SCHEMA)}>"
    found = spark.merge(frame, by=["case"]).toArrow()
    every = range(1 + max(at for at, _ in tables))
    return [found.filter(pa.compute.equal(found["case"], at)).drop(["case"]).cast(PANES) for at in every]


def simple(schema: str) -> str:
    return ",".join(part.strip().replace("`", "").replace(" ", ":", 1) for part in schema.split(", "))


@pytest.mark.parametrize("name", ["all", "operators"])
def test_spark_merges_panes_as_one_pass_would(session: SparkSession, name: str) -> None:
    generated, given_rollup = cases(), SEARCH.rollups[name]
    interval, by = HOUR if name == "all" else MINUTE, given_rollup.dimensions
    assert len(generated) == CASES
    tables = [
        (at, rollup.panes(columns.table(SEARCH, part), given_rollup, SEARCH, intervals=[interval]))
        for at, case in enumerate(generated)
        for part in case
    ]
    for case, panes in zip(generated, merged(session, tables), strict=True):
        plain = [event for part in case for event in part if not columns.is_odd(SEARCH, event)]
        asked = Aggregate(rollup=given_rollup, interval=interval, start=-EVER, end=EVER, group_by=by)
        expected = oracle.buckets(given_rollup, SEARCH, plain, interval=interval, start=-EVER, end=EVER, group_by=by)
        assert buckets(asked, SEARCH, history=[panes]) == expected
        # The server merges what Spark has merged.
        twice = buckets(asked, SEARCH, history=[panes, panes])
        assert [len(bucket["groups"]) for bucket in twice] == [len(bucket["groups"]) for bucket in expected]


def test_counts_stop_at_the_greatest_in_spark_too(session: SparkSession) -> None:
    table = pa.table(
        {
            **{name: pa.nulls(2, PANES.field(name).type) for name in PANES.names},
            "count": pa.array([MAX_COUNT, 5], pa.int64()),
            "histogram": pa.array([[(1, MAX_COUNT), (2, 1)], [(0, 7), (1, 1)]], PANES.field("histogram").type),
        },
        schema=PANES,
    )
    [found] = merged(session, [(0, table)])
    [row], [same] = found.to_pylist(), rollup.merge_panes([table]).to_pylist()
    assert row == same
    assert row["count"] == MAX_COUNT
    assert row["histogram"] == [(0, 7), (1, MAX_COUNT), (2, 1)]


VALUES: dict[Kind, list[Any]] = {
    Kind.KEYWORD: ["", "\uffff", "é", "🜁", *map(str, range(150))],
    Kind.INTEGER: [0, -1, 2**63 - 1, -(2**63), *range(1, 150)],
    Kind.DATE: [0, 1_774_432_800_000, -1],
    Kind.FLOAT: [0.0, 0.1, -1.5, 1e308, 5e-324, *(at + 0.5 for at in range(150))],
    Kind.BOOL: [True, False],
}


def test_sketches_of_spark_and_of_the_server_are_one(session: SparkSession) -> None:
    made = {kind: columns.column([[value] for value in values], columns.TYPES[kind]) for kind, values in VALUES.items()}
    longest = max(len(values) for values in VALUES.values())
    table = pa.table(
        {kind: pa.concat_arrays([array, pa.nulls(longest - len(array), array.type)]) for kind, array in made.items()}
    )
    distinct = [spark.distinct(F.col(kind), kind).alias(f"{kind}_distinct") for kind in VALUES]
    numbers = [spark.quantiles(F.col(kind)).alias(f"{kind}_quantiles") for kind in (Kind.INTEGER, Kind.FLOAT)]
    found = session.createDataFrame(table).agg(*distinct, *numbers).toArrow().to_pylist()[0]
    for kind, values in VALUES.items():
        theirs, ours = found[f"{kind}_distinct"], sketches.distinct(made[kind])
        # The empty string stands for a noncharacter, which is a value here as well.
        count = len(values) - (kind is Kind.KEYWORD)
        assert sketches.distinct_count(theirs) == sketches.distinct_count(ours) == count, kind
        assert sketches.distinct_count(sketches.union([theirs, ours])) == count, kind
    for kind in (Kind.INTEGER, Kind.FLOAT):
        ours = sketches.quantiles(made[kind].cast(pa.float64(), safe=False).to_numpy())
        assert sketches.distribution(found[f"{kind}_quantiles"]) == sketches.distribution(ours), kind
        both = sketches.distribution(sketches.union([found[f"{kind}_quantiles"], ours]))
        assert both["count"] == 2 * len(VALUES[kind])
