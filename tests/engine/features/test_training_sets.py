"""Training sets: questions about the past that are answered later, by workers or by the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.engine.features import training_sets
from headrace.engine.features.past_reader import RowMoment
from headrace.engine.features.training_sets import KEPT_US, HistoryAnswer, has_worker
from headrace.errors import BadRequest, NotFound, Overloaded
from headrace.reduce.features.definition import TableDefinition
from headrace.reduce.features.moments import KeyMoment, Question
from headrace.reduce.work_units import JobName, Result
from headrace.schema.descriptor.nodes import Event, Table
from headrace.storage.background_requests import HistoryRow
from headrace.storage.work import Work
from support.feature_rig import ORDERS, USERS, Pipelines, event

JOBS: tuple[JobName, ...] = ("history",)
LATE = 1 << 60


@pytest.fixture
def pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipelines]:
    monkeypatch.setattr(training_sets, "WORKERS_FIRST_S", 1e9)
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}, features={"fold_rows": 3}) as opened:
        opened.register(ORDERS, USERS)
        for number in range(10):
            opened.push("Order", {"user": "ab"[number % 2], "amount": 1.0})
        yield opened


def asked(pipelines: Pipelines, *rows: tuple[Any, ...]) -> HistoryRow:
    found = pipelines.run(pipelines.engine.training.request("Users", [RowMoment(*row) for row in rows]))
    assert isinstance(found, HistoryRow)
    return found


def leased(pipelines: Pipelines) -> Any:
    return pipelines.run(pipelines.engine.work.lease("tests", 8, JOBS))


def until(pipelines: Pipelines, holds: Callable[[], bool]) -> None:
    async def wait() -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.01)

    pipelines.run(wait())


def answer_of(row: HistoryRow) -> HistoryAnswer:
    assert row.answer is not None
    return msgspec.json.decode(row.answer, type=HistoryAnswer)


def test_a_question_is_given_to_one_worker_and_answered_once(pipelines: Pipelines) -> None:
    row = asked(pipelines, ("a", LATE), ("b", 5))
    granted = leased(pipelines)
    (unit,) = granted.units
    assert unit.history == row.id
    assert unit.table == "Users"
    assert unit.end_seq == 10
    assert sum(source.count for source in unit.segments) == 10
    assert leased(pipelines) is None
    commit = pipelines.engine.work.commit
    with pytest.raises(BadRequest, match="a result is"):
        pipelines.run(commit(granted.lease.id, granted.lease.token, [Result(unit.unit, rows=[], gone=True)]))
    told = [{"n": 5, "total": 5.0}, {}]
    settled = pipelines.run(commit(granted.lease.id, granted.lease.token, [Result(unit.unit, rows=told)])).settled
    assert [one.outcome for one in settled] == ["committed"]
    found = pipelines.engine.training.find("Users", row.id)
    assert found.state == "done"
    assert answer_of(found) == HistoryAnswer(told, True, 0)
    assert leased(pipelines) is None


def test_a_unit_of_another_job_gives_no_rows(pipelines: Pipelines) -> None:
    pipelines.seal("Order")
    granted = pipelines.run(pipelines.engine.work.lease("tests", 1, ("features",)))
    assert granted is not None
    with pytest.raises(BadRequest, match="asks for no rows"):
        result = Result(granted.units[0].unit, rows=[])
        pipelines.run(pipelines.engine.work.commit(granted.lease.id, granted.lease.token, [result]))


def test_a_question_that_fails_again_and_again_is_given_up(pipelines: Pipelines) -> None:
    row = asked(pipelines, ("a", LATE))
    for _ in range(5):
        granted = leased(pipelines)
        result = Result(granted.units[0].unit, error="out of luck")
        pipelines.run(pipelines.engine.work.commit(granted.lease.id, granted.lease.token, [result]))
        assert leased(pipelines) is None, "it rests for a while"
        pipelines.clock.us += 120_000_000
    found = pipelines.engine.training.find("Users", row.id)
    assert found.state == "failed"
    assert found.reason == "out of luck"


def test_the_server_answers_what_no_worker_takes_up(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    row = asked(pipelines, ("a", LATE), ("nobody", LATE))
    monkeypatch.setattr(training_sets, "WORKERS_FIRST_S", 0.0)
    pipelines.reopen()
    until(pipelines, lambda: pipelines.engine.training.find("Users", row.id).state == "done")
    found = answer_of(pipelines.engine.training.find("Users", row.id))
    assert found.rows == [{"n": 5, "total": 5.0}, {}]
    assert found.complete is True
    assert found.since == 0


def test_a_question_that_a_worker_has_is_left_to_it(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    row = asked(pipelines, ("a", LATE))
    granted = leased(pipelines)
    monkeypatch.setattr(training_sets, "WORKERS_FIRST_S", 0.0)
    rounds: list[bool] = []

    def counted(work: Work, row: HistoryRow) -> bool:
        rounds.append(has_worker(work, row))
        return rounds[-1]

    monkeypatch.setattr(training_sets, "has_worker", counted)
    until(pipelines, lambda: len(rounds) >= 2)
    assert all(rounds)
    assert pipelines.engine.training.find("Users", row.id).state == "running"
    pipelines.run(pipelines.engine.work.release(granted.lease.id, granted.lease.token))
    until(pipelines, lambda: pipelines.engine.training.find("Users", row.id).state == "done")


def test_questions_are_bounded_and_forgotten_after_a_day(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_sets, "MAX_RUNNING", 1)
    row = asked(pipelines, ("a", LATE))
    with pytest.raises(Overloaded):
        asked(pipelines, ("a", LATE))
    granted = leased(pipelines)
    result = Result(granted.units[0].unit, rows=[{}])
    pipelines.run(pipelines.engine.work.commit(granted.lease.id, granted.lease.token, [result]))
    pipelines.clock.us += KEPT_US + 1
    asked(pipelines, ("b", LATE))
    with pytest.raises(NotFound):
        pipelines.engine.training.find("Users", row.id)


def test_questions_go_with_their_event_source(pipelines: Pipelines) -> None:
    row = asked(pipelines, ("a", LATE))
    granted = leased(pipelines)
    pipelines.register(event("Other", {"x": "f64"}), force=True)
    result = Result(granted.units[0].unit, rows=[{}])
    settled = pipelines.run(pipelines.engine.work.commit(granted.lease.id, granted.lease.token, [result])).settled
    assert [one.outcome for one in settled] == ["dropped"]
    with pytest.raises(NotFound):
        pipelines.engine.training.find("Users", row.id)


def test_segments_that_were_appended_after_the_second_clock_are_not_read(pipelines: Pipelines) -> None:
    schema = {"user": "str", "amount": "f64", "at": "i64"}
    source = event("Order", schema, timestamp_field="at", timestamp_unit="us")
    pipelines.register(source, USERS, force=True)
    times_us = []
    for _ in range(12):
        pipelines.push("Order", {"user": "a", "amount": 1.0, "at": pipelines.clock.us - 9_000_000})
        times_us.append(pipelines.clock.us)
    pipelines.seal("Order")
    pipelines.work()
    asked(pipelines, ("a", times_us[-1]), ("a", times_us[1]))
    asked(pipelines, ("a", times_us[-1], times_us[1]), ("a", times_us[1], times_us[0]))
    few, every = sorted(leased(pipelines).units, key=lambda unit: len(unit.segments))
    assert every.states == few.states == ()
    assert (every.first_seq, every.end_seq) == (10, 22)
    assert 0 < len(few.segments) < len(every.segments)
    assert max(part.first_seq + part.count for part in every.segments) == every.end_seq


def test_questions_that_were_stored_without_a_second_clock_are_answered() -> None:
    defined = TableDefinition("T", "E", "events/E", {"E": Event("E", {}), "T": Table("T", "E", (), {})}, {})
    document = {"features": [], "asked": [["YQ==", 5], ["YQ==", 5, 7]], "defined": defined.dump()}
    question = msgspec.json.decode(msgspec.json.encode(document), type=Question)
    assert question.requests == (KeyMoment(b"a", 5), KeyMoment(b"a", 5, 7))
    stored = msgspec.json.decode(b'{"rows": [{"n": 1}], "complete": true, "since": 0}', type=HistoryAnswer)
    assert stored == HistoryAnswer([{"n": 1}], True, 0)
