"""Who works for a server, since when, and what came of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.derive import work_overview
from headrace.engine.derive.work_overview import LOCAL_WORKER, MAX_STREAMS, WorkerFacts, WorkerList, WorkerStatus
from headrace.reduce.work_units import Result
from headrace.storage.work import DoneRow
from support.engine_rig import START_US, Rig
from support.work_rig import SECOND, Worker, opened, publish, searched


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


def workers(rig: Rig) -> dict[str, WorkerStatus]:
    found = rig.run(rig.engine.work.overview()).workers
    return {one.worker: one for one in found}


def did(status: WorkerStatus) -> tuple[int, int, int, int]:
    return status.done, status.failed, status.lost, status.released


def test_the_server_itself_is_a_worker_that_is_always_alive(directory: Path) -> None:
    with opened(directory) as rig:
        rig.clock.us += 1000 * SECOND
        (server,) = workers(rig).values()
        assert server.worker == LOCAL_WORKER
        assert server.local is True
        assert server.alive is True
        assert server.since_us == START_US
        assert server.seen_us == rig.clock.us


def test_what_each_worker_did_is_counted_once(directory: Path) -> None:
    with opened(directory, lease_s=60) as rig:
        searched(rig, "s", 40)
        one, other = Worker(rig, "one"), Worker(rig, "other")
        grant = one.granted(limit=3)
        results = one.made(grant)
        reported = [results[0], Result(results[1].unit, error="no")]
        for _ in range(2):
            one.commit(grant, reported)
        for _ in range(2):
            one.release(grant)
        other.granted(limit=1)
        rig.clock.us += 60 * SECOND
        found = workers(rig)
        assert did(found["one"]) == (1, 1, 0, 1)
        assert did(found["other"]) == (0, 0, 1, 0)


def test_a_worker_is_alive_until_it_was_silent_for_as_long_as_a_lease_lasts(directory: Path) -> None:
    with opened(directory, lease_s=60) as rig:
        idle = Worker(rig, "idle")
        rig.run(rig.engine.work.lease("idle", facts=WorkerFacts("node-1", "local[2]")))
        rig.run(rig.engine.work.lease("idle", facts=WorkerFacts("node-1", "local[2]", ui="http://node-1:4040")))
        rig.clock.us += 50 * SECOND
        assert idle.lease() is None
        rig.clock.us += 59 * SECOND
        found = workers(rig)["idle"]
        assert found.alive is True
        assert found.facts == ("node-1", "local[2]", "http://node-1:4040", None)
        assert found.since_us == START_US
        assert found.seen_us == START_US + 50 * SECOND
        rig.clock.us += SECOND
        found = workers(rig)["idle"]
        assert not found.alive
        assert rig.run(rig.engine.work.overview()).counts["workers"] == 1


def test_a_restart_forgets_nobody_who_worked_in_the_last_hour(directory: Path) -> None:
    with opened(directory, lease_s=60) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig, "w")
        worker.work()
        publish(rig, "s", 10)
        rig.clock.us += 5 * SECOND
        worker.granted()
        rig.reopen()
        found = workers(rig)["w"]
        assert did(found) == (2, 0, 0, 0)
        assert found.since_us == START_US
        assert found.seen_us == START_US + 5 * SECOND
        assert found.alive is True


def test_many_workers_are_bounded_and_the_longest_silent_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_overview, "MAX_WORKERS", 3)
    roster = WorkerList(60 * SECOND)
    roster.start([], 0)
    for number in range(5):
        roster.note_contact(f"w{number}", number)
    assert [one.worker for one in roster.statuses(5)] == [LOCAL_WORKER, "w4", "w3"]
    roster.note_contact("late", 86_400 * SECOND + 5)
    assert [one.worker for one in roster.statuses(5)] == [LOCAL_WORKER, "late"]
    roster.count("w0", ["committed"])


def test_pipelines_count_until_they_were_silent_for_as_long_as_a_lease_lasts() -> None:
    roster = WorkerList(ttl_us=10)
    roster.attach("one", 0, attached=True)
    roster.attach("two", 5, attached=True)
    assert [roster.count_pipelines(now_us) for now_us in (5, 9, 10, 14, 15)] == [2, 2, 1, 1, 0]
    roster.attach("two", 6, attached=False)
    assert [roster.count_pipelines(now_us) for now_us in (6, 9, 10)] == [1, 1, 0]


def test_what_was_done_is_counted_by_worker_and_job_and_survives_a_restart(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 40)
        assert Worker(rig, "one").work() > 0
        before = workers(rig)["one"].jobs
        streams = {row.stream for row in rig.engine.work._rows.done_units()}
        done = [row for stream in streams for row in rig.engine.work.workers.done_of(stream)]
        assert sum(before.values()) == sum(row.units for row in done) == workers(rig)["one"].done
    with opened(directory) as rig:
        assert workers(rig)["one"].jobs == before
        assert [row for stream in streams for row in rig.engine.work.workers.done_of(stream)] == done


def test_of_many_streams_the_newest_are_remembered() -> None:
    roster = WorkerList(ttl_us=10)
    for stream in (1, 2, *range(3, MAX_STREAMS + 1), 1, MAX_STREAMS + 1):
        roster.count_done(DoneRow("server", stream, "index", 1))
    assert roster.done_of(1) == [DoneRow("server", 1, "index", 2)]
    assert roster.done_of(2) == []
