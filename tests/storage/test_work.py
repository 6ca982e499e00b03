from __future__ import annotations

from pathlib import Path

import pytest

from headrace.storage import database
from headrace.storage.streams import StreamRow, Streams
from headrace.storage.work import FailureRow, LeaseRow, UnitRow, Work


@pytest.fixture
def connection(tmp_path: Path) -> database.Connection:
    """The streams 1 to 3, of which the last has no registry."""
    connection = database.connect(tmp_path / "log.db", cache_bytes=1 << 20)
    database.migrate(connection)
    for number in (1, 2, 3):
        row = StreamRow(name=str(number), content_type="x/y", created_us=5, epochs="[[0,0]]", revision=number % 3)
        Streams(connection).insert(row)
    return connection


@pytest.fixture
def work(connection: database.Connection) -> Work:
    return Work(connection)


def failure(first: int, stream: int = 1, parked: int = 0) -> FailureRow:
    return FailureRow(stream, "index", first, 10, 1, 5, 6, 0, parked, "boom")


def test_a_stream_is_due_once_since_it_was_marked_first(work: Work) -> None:
    work.mark(2, 10)
    work.mark(1, 20)
    work.mark(2, 30, run=True)
    work.mark(3, 40)
    work.mark(4, 40)
    assert [(row.stream, row.since_us, row.mark, row.run) for row in work.due(10)] == [(2, 10, 2, 1), (1, 20, 1, 0)]
    assert [row.stream for row in work.due(10, (10, 2))] == [1]
    work.requeue(2, 50)
    assert [row.stream for row in work.due(1)] == [1]


def test_who_has_not_seen_the_last_mark_takes_none_away(work: Work) -> None:
    work.mark(1, 10)
    work.mark(1, 20)
    work.unmark(1, 1)
    assert len(work.due(10)) == 1
    work.unmark(1, 2)
    assert work.due(10) == []


def test_all_streams_with_a_registry_can_be_marked(work: Work) -> None:
    work.mark(1, 10)
    work.mark_all(20)
    assert [(row.stream, row.mark) for row in work.due(10)] == [(1, 2), (2, 1)]


def test_a_lease_is_held_until_it_expires_or_ends(work: Work) -> None:
    for number in (1, 2, 3):
        units = [UnitRow(f"{number}{place}", str(number), 1, "index", place * 10, 10, "{}") for place in (1, 0)]
        work.grant(LeaseRow(str(number), number, "w", 0, 10 * number), units)
    work.end("3", 5)
    assert [lease.id for lease in work.active_leases(10)] == ["2"]
    assert [lease.id for lease in work.expired_leases(10)] == ["1"]
    work.renew("1", 11, 3, 4)
    found = work.lease("1")
    assert found is not None
    assert found.expires_us == 11
    assert found.done == 3
    assert found.total == 4
    assert [unit.id for unit in work.units("2")] == ["20", "21"]
    assert [unit.outcome for unit in work.units("3")] == ["released", "released"]
    assert work.counts(10) == {"due": 0, "leases": 2, "units": 4, "resting": 0, "parked": 0}
    work.end_unit("10", "committed", None)
    assert sorted(unit.id for unit in work.open_units(1)) == ["11", "20", "21"]
    work.forget_ended_leases(6)
    assert work.lease("3") is None and work.units("3") == []
    work.forget_leases()
    assert work.active_leases(0) == []


def test_the_work_of_a_dropped_stream_is_in_vain(work: Work) -> None:
    work.grant(
        LeaseRow("l", 1, "w", 0, 10),
        [UnitRow("a", "l", 1, "index", 0, 10, "{}"), UnitRow("b", "l", 2, "index", 0, 10, "{}")],
    )
    work.mark(1, 5)
    work.save_failure(failure(0))
    work.drop(1)
    assert {unit.id: unit.outcome for unit in work.units("l")} == {"a": "dropped", "b": None}
    assert work.due(10) == []
    assert work.failures(1) == []


def test_failures_are_forgotten_with_success_retention_or_forgiveness(work: Work) -> None:
    for first in (0, 10, 20, 30):
        work.save_failure(failure(first))
    work.save_failure(failure(0, stream=2, parked=1))
    work.forget_failures_on(1, "compact", 0, 100)
    work.forget_failures_on(1, "index", 5, 30)
    assert [one.first_seq for one in work.failures(1)] == [0, 30]
    work.forget_failures(1, 10)
    assert [one.first_seq for one in work.failures(1)] == [30]
    work.forget_failures(1)
    assert work.failures(1) == []
    assert work.parked(10) == [failure(0, stream=2, parked=1)]
    assert work.counts(0)["parked"] == 1
