"""Leases end by time whoever asks: a timer and every overview end them, and lists and counts agree."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from engine.registries import update
from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.derive.leases import STALLED, LeaseLost
from headrace.engine.derive.work_overview import Overview
from headrace.errors import Unavailable
from headrace.storage.background_requests import ErasureRow, Erasures
from headrace.storage.work import Work
from support.engine_rig import Rig
from support.work_rig import SECOND, Worker, covered, failures, opened, publish, searched, spans


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


def overview(rig: Rig) -> Overview:
    """What the engine says about work, after checking that its counts and lists agree."""
    found = rig.run(rig.engine.work.overview())
    open_units = [unit for _, units in found.leases for unit in units if unit.outcome is None]
    listed = {
        "due": len(found.due),
        "leases": len(found.leases),
        "units": len(open_units),
        "resting": len(found.resting),
        "parked": len(found.parked),
        "workers": sum(one.alive for one in found.workers),
        "pipelines": 0,
    }
    assert found.counts == listed
    return found


def facts(found: Overview) -> dict[str, Any]:
    """How many of each kind, without those that are not there."""
    return {name: count for name, count in found.counts.items() if count and name != "workers"}


def test_an_overview_ends_the_last_lease_of_a_lost_worker(directory: Path) -> None:
    with opened(directory, lease_s=60) as rig:
        searched(rig, "s", 20)
        Worker(rig, "dead").granted()
        assert facts(overview(rig)) == {"leases": 1, "units": 2}
        rig.clock.us += 60 * SECOND
        found = overview(rig)
        assert facts(found) == {"resting": 2}
        assert [(one.first_seq, one.end_seq, one.attempts) for one in found.resting] == [(0, 10, 1), (10, 20, 1)]
        rig.clock.us += 2 * SECOND
        assert overview(rig).due == ["s"]
        Worker(rig, "alive").work()
        assert facts(overview(rig)) == {}
        assert covered(rig, "s") == [(0, 10), (10, 20)]


def test_a_timer_ends_leases_while_nobody_asks(directory: Path) -> None:
    with opened(directory, lease_s=0.05) as rig:
        searched(rig, "s", 10)
        grant = Worker(rig, "dead").granted()
        rig.clock.us += SECOND

        async def ended() -> bool:
            until = monotonic() + 20
            while (row := Work(rig.engine._reader).lease(grant.lease.id)) is not None and row.ended_us is None:
                if monotonic() > until:
                    return False
                await asyncio.sleep(0.01)
            return True

        assert rig.run(ended())
        assert [one.reason for one in failures(rig, "s")] == ["its worker was not heard of any more"]


def test_leases_of_the_last_run_end_by_the_timer_after_a_restart(directory: Path) -> None:
    with opened(directory, lease_s=0.05) as rig:
        searched(rig, "s", 10)
        grant = Worker(rig, "dead").granted()
        rig.run(rig.engine.close())
        rig.clock.us += SECOND

        async def reopened() -> bool:
            rig.engine = await rig._open()
            until = monotonic() + 20
            while (row := Work(rig.engine._reader).lease(grant.lease.id)) is not None and row.ended_us is None:
                if monotonic() > until:
                    return False
                await asyncio.sleep(0.01)
            return True

        assert rig.run(reopened())


@pytest.mark.parametrize("end", ["released", "lost", "failed"])
def test_what_is_left_of_a_lease_is_due_however_little_it_is(directory: Path, end: str) -> None:
    with opened(directory, min_rows=20, lease_s=60) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        grant = worker.granted()
        assert spans(grant.units) == [(0, 10), (10, 20)]
        results = worker.made(grant)
        worker.commit(grant, results[:1])
        if end == "released":
            worker.release(grant)
        elif end == "failed":
            worker.commit(grant, [type(results[1])(results[1].unit, error="no")])
        rig.clock.us += 63 * SECOND
        overview(rig)
        rig.clock.us += 3 * SECOND
        assert overview(rig).due == ["s"]
        assert spans(worker.granted().units) == [(10, 20)]


def test_streams_that_were_not_looked_at_are_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(directory) as rig:
        for number in range(3):
            searched(rig, f"s{number}", 10)
        assert overview(rig).complete
        monkeypatch.setattr("headrace.engine.derive.lease_scheduler.NAMED", 2)
        found = rig.run(rig.engine.work.overview())
        assert len(found.due) == 2
        assert found.counts["due"] == 3
        assert found.complete is False


def test_a_server_that_cannot_end_a_lease_says_that_it_does_not_know_all(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(directory, lease_s=60) as rig:
        searched(rig, "s", 10)
        Worker(rig).granted()
        rig.clock.us += 61 * SECOND

        async def refuse(_: Any) -> None:
            raise Unavailable("the disk is full", reason="disk_full")

        with monkeypatch.context() as patched:
            patched.setattr(rig.engine.work, "_apply", refuse)
            found = rig.run(rig.engine.work.overview())
            assert found.due == []
            assert found.leases == []
            assert found.complete is False
        publish(rig, "s", 10)
        assert overview(rig).complete


def test_a_stream_that_waits_for_an_erasure_is_not_forgotten(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 10)
        row = ErasureRow("e", "ent_1", "u", rig.find("s").id, 5, "running", "log", 0, None, "{}", "{}", "{}")
        rig.run(rig.engine.apply(lambda batch: Erasures(batch.connection).add(row, [])))
        found = rig.run(rig.engine.work.overview())
        assert found.due == []
        assert found.counts["due"] == 1
        assert found.complete is False
        rig.run(rig.engine.apply(lambda batch: Erasures(batch.connection).end("e", batch.now_us, "{}")))
        assert overview(rig).due == ["s"]


def test_a_lost_unit_of_another_kind_makes_few_entries_worth_no_work(directory: Path) -> None:
    with opened(directory, min_rows=20, lease_s=60) as rig:
        searched(rig, "s", 20)
        Worker(rig).work()
        publish(rig, "s", 10)
        lost = Worker(rig, "dead")
        rig.run(_verify(rig))
        assert {unit.job for unit in lost.granted(jobs=["verify"]).units} == {"verify"}
        rig.clock.us += 61 * SECOND
        assert facts(overview(rig)) == {"resting": 3}
        assert Worker(rig).lease(jobs=["index"]) is None


async def _verify(rig: Rig) -> None:
    stream = rig.find("s")
    _, proposal = await rig.engine.schemas.propose(stream, update(schema={"type": "object", "title": "new"}))
    assert proposal is not None
    await rig.engine.verifier.begin(stream, proposal)


def beat_for(rig: Rig, worker: Worker, grant: Grant, seconds: int, done: int = 0) -> None:
    """Let a worker say every ten seconds that it is alive, and no more than that."""
    for _ in range(0, seconds, 10):
        rig.clock.us += 10 * SECOND
        worker.beat(grant, done, len(grant.units))


def test_a_worker_that_only_says_that_it_is_alive_loses_its_lease(directory: Path) -> None:
    with opened(directory, lease_s=30, stall_s=100) as rig:
        searched(rig, "s", 20)
        hanging, other = Worker(rig, "hanging"), Worker(rig, "other")
        grant = hanging.granted()
        beat_for(rig, hanging, grant, 90)
        until, _ = hanging.beat(grant)
        assert until == grant.lease.granted_us + 100 * SECOND
        rig.clock.us += 10 * SECOND
        with pytest.raises(LeaseLost):
            hanging.beat(grant)
        rig.run(rig.engine.work.overview())
        assert [(one.attempts, one.lost, one.parked, one.reason) for one in failures(rig, "s")] == [
            (1, 1, 0, STALLED)
        ] * 2
        rig.clock.us += 2 * SECOND
        assert spans(other.granted().units) == spans(grant.units)


def test_progress_of_any_kind_keeps_a_lease(directory: Path) -> None:
    with opened(directory, lease_s=30, stall_s=100) as rig:
        searched(rig, "s", 30)
        worker = Worker(rig)
        grant = worker.granted()
        beat_for(rig, worker, grant, 80)
        beat_for(rig, worker, grant, 80, done=1)
        results = worker.made(grant)
        worker.commit(grant, results[:1])
        beat_for(rig, worker, grant, 80, done=1)
        worker.commit(grant, results[1:])
        assert len(covered(rig, "s")) == 3
        assert failures(rig, "s") == []


@pytest.mark.parametrize("how", ["less and more again", "empty commits", "commits that are repeated"])
def test_what_looks_like_progress_and_is_none_keeps_no_lease(directory: Path, how: str) -> None:
    with opened(directory, lease_s=30, stall_s=100) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        grant = worker.granted()
        first = worker.made(grant)[:1]
        if how == "commits that are repeated":
            worker.commit(grant, first)
        with pytest.raises(LeaseLost):
            for number in range(100):
                rig.clock.us += 5 * SECOND
                if how == "less and more again":
                    worker.beat(grant, number % 2, 2)
                else:
                    worker.commit(grant, first if how == "commits that are repeated" else [])
                    worker.beat(grant)
        assert rig.clock.us <= grant.lease.granted_us + 116 * SECOND


def test_only_a_unit_that_stalls_alone_is_parked(directory: Path) -> None:
    """The unit from entry 10 on hangs whoever has it; the others are done in the end."""
    with opened(directory, lease_s=30, stall_s=100) as rig:
        searched(rig, "s", 30)
        worker = Worker(rig)
        for _ in range(40):
            grant = worker.lease()
            if grant is not None and (10, 20) not in spans(grant.units):
                worker.commit(grant)
            elif grant is not None:
                beat_for(rig, worker, grant, 90)
            rig.clock.us += 61 * SECOND
        assert covered(rig, "s") == [(0, 10), (20, 30)]
        (parked,) = failures(rig, "s")
        assert parked.first_seq == 10
        assert parked.parked == 1
        assert parked.reason == STALLED


def test_a_restart_gives_a_lease_its_time_again(directory: Path) -> None:
    with opened(directory, lease_s=30, stall_s=100) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        grant = worker.granted()
        beat_for(rig, worker, grant, 80)
        rig.reopen()
        beat_for(rig, worker, grant, 80)
        rig.clock.us += 40 * SECOND
        with pytest.raises(LeaseLost):
            worker.beat(grant)
