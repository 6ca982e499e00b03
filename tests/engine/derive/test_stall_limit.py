"""A worker that is alive and makes no progress loses its lease, and healthy units do not pay for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.derive.workers import SECOND, Worker, covered, failures, opened, searched, spans
from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.derive.leases import STALLED, LeaseLost
from support.engine_rig import Rig


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


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
        assert (parked.first_seq, parked.parked, parked.reason) == (10, 1, STALLED)


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
