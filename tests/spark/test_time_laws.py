"""The law of time on Spark: what it makes of many sources at once is what pandas computes of all their events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from headrace.engine.features.training_sets import HistoryAnswer, TrainingSets
from headrace.storage.background_requests import HistoryRow
from spark.working import work
from support.timed_source import TimedSource, small_files

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

EVENTS, ROWS = 60, 30


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[list[TimedSource]]:
    """Sources of one engine, so that one job on Spark is about all of them; all but the first have event time."""
    with small_files(tmp_path / "data") as rig:
        yield [TimedSource(rig, seed, by_append_time=seed == 1, name=f"E{seed}") for seed in range(1, 6)]


def push(sources: list[TimedSource]) -> None:
    """Events of all sources, all of which are published."""
    for source in sources:
        source.push(EVENTS)
        source.rig.seal(source.name)


def test_states_from_spark_and_a_live_tail_answer_as_pandas_computes(
    sources: list[TimedSource], spark: SparkSession
) -> None:
    rig = sources[0].rig
    for source in sources:
        source.register(list(source.features)[::2])
    push(sources)
    assert work(rig, spark, "features") > len(sources)
    # The others are computed from the past, and merged with their siblings.
    for source in sources:
        source.register(list(source.features))
    push(sources)
    assert work(rig, spark, "features") > len(sources)
    for source in sources:
        source.push(EVENTS // 3)
        for wait_ms in (0, 64, 10**6):
            source.check_now(list(source.features), wait_ms)


def test_training_sets_from_spark_are_what_pandas_computes(sources: list[TimedSource], spark: SparkSession) -> None:
    rig = sources[0].rig
    engine = rig.engine
    training = TrainingSets(
        apply=engine.apply,
        sealer=engine.sealer,
        job=engine.training._job,
        past_reader=engine.past_reader,
        reader=engine._reader,
        fold_rows=-1,
        workers_first_s=lambda usual_s: usual_s,
    )
    for source in sources:
        source.register(list(source.features))
    push(sources)
    asked = []
    for source in sources:
        source.push(EVENTS // 3)
        moments = source.moments(ROWS)
        begun = rig.run(training.request(source.table, moments))
        assert isinstance(begun, HistoryRow) and begun.state == "running"
        asked.append((source, moments, begun.id))
    assert work(rig, spark, "history") == len(sources)
    for source, moments, history in asked:
        told = training.find(source.table, history)
        assert told.state == "done" and told.answer is not None
        answer = msgspec.json.decode(told.answer, type=HistoryAnswer)
        source.check_past(list(source.features), moments, answer)
