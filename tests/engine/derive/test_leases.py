"""One worker at a time: leases, tokens, expiry and pauses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.derive.workers import SECOND, Worker, covered, failures, listed, opened, publish, searched, spans
from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.derive.leases import LeaseLost
from headrace.errors import BadRequest
from support.engine_rig import Rig


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


def forged(grant: Grant) -> Grant:
    return grant._replace(lease=msgspec.structs.replace(grant.lease, token=grant.lease.token - 1))


def test_what_one_works_on_is_given_to_nobody_else(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 30)
        one, other = Worker(rig, "one"), Worker(rig, "other")
        first, second = one.granted(limit=2), other.granted()
        assert spans(first.units) + spans(second.units) == [(0, 10), (10, 20), (20, 30)]
        assert first.lease.token < second.lease.token
        assert other.lease() is None
        other.commit(second)
        one.commit(first)
        assert covered(rig, "s") == [(0, 10), (10, 20), (20, 30)]
        assert one.lease() is None


def test_a_worker_that_is_not_heard_of_loses_its_work(directory: Path) -> None:
    with opened(directory, lease_s=60) as rig:
        searched(rig, "s", 10)
        dead, alive = Worker(rig, "dead"), Worker(rig, "alive")
        lost = dead.granted()
        results = dead.made(lost)
        rig.clock.us += 61 * SECOND
        assert alive.lease() is None, "it is tried again after a pause"
        rig.clock.us += SECOND
        found = alive.granted()
        assert spans(found.units) == spans(lost.units)
        assert found.lease.token > lost.lease.token
        for late in (lambda: dead.commit(lost, results), lambda: dead.beat(lost)):
            with pytest.raises(LeaseLost) as refusal:
                late()
            assert (refusal.value.code, refusal.value.status) == ("lease_lost", 409)
        assert listed(rig, "s") == []
        alive.commit(found)
        assert covered(rig, "s") == [(0, 10)]
        assert failures(rig, "s") == []


def test_a_worker_that_is_heard_of_keeps_its_work(directory: Path) -> None:
    with opened(directory, lease_s=60) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        grant = worker.granted()
        for _ in range(5):
            rig.clock.us += 59 * SECOND
            until, dropped = worker.beat(grant)
            assert until == rig.clock.us + 60 * SECOND
            assert dropped == []
        worker.commit(grant)
        assert covered(rig, "s") == [(0, 10)]


def test_a_wrong_token_opens_nothing(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        grant = worker.granted()
        for attempt in (worker.commit, worker.beat, worker.release):
            with pytest.raises(LeaseLost):
                attempt(forged(grant))
            with pytest.raises(LeaseLost):
                attempt(grant._replace(lease=msgspec.structs.replace(grant.lease, id="unknown")))
        worker.commit(grant)


def test_tokens_are_never_given_twice_whatever_was_lost(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    tokens = []
    for number in range(3):
        with Rig(tmp_path / str(number), storage={"object_store": store}, pipeline={"min_rows": 0}) as rig:
            searched(rig, f"s{number}", 10)
            worker = Worker(rig)
            tokens.append(worker.granted().lease.token)
    assert tokens == sorted(set(tokens))


def test_work_that_is_given_back_is_free_at_once(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        grant = worker.granted()
        worker.commit(grant, worker.made(grant)[:1])
        worker.release(grant)
        worker.release(grant)
        with pytest.raises(LeaseLost):
            worker.commit(grant, worker.made(grant)[1:])
        assert spans(worker.granted().units) == [(10, 20)]
        assert failures(rig, "s") == []


def test_leases_outlive_a_restart(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        grant = worker.granted()
        worker.commit(grant, worker.made(grant)[:1])
        rig.reopen()
        assert worker.lease() is None
        worker.beat(grant)
        worker.commit(grant, worker.made(grant)[1:])
        assert covered(rig, "s") == [(0, 10), (10, 20)]


def test_a_pause_outlives_a_restart_and_what_was_given_out_goes_on(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        grant = worker.granted(limit=1)
        rig.run(rig.engine.work.pause(True))
        assert rig.engine.work.paused
        assert worker.lease() is None
        rig.reopen()
        assert rig.engine.work.paused
        worker.commit(grant)
        assert worker.lease() is None
        rig.run(rig.engine.work.pause(False))
        assert spans(worker.granted().units) == [(10, 20)]


def test_leases_that_ended_are_remembered_for_an_hour(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        grant = worker.granted()
        results = worker.made(grant)
        told = worker.commit(grant, results)
        rig.clock.us += 3599 * SECOND
        assert worker.commit(grant, results) == told
        rig.clock.us += 2 * SECOND
        publish(rig, "s", 10)
        worker.work()
        with pytest.raises(LeaseLost):
            worker.commit(grant, results)


def test_a_lease_has_no_units_of_others(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        first, second = worker.granted(limit=1), worker.granted(limit=1)
        with pytest.raises(BadRequest, match="no unit of this lease"):
            worker.commit(first, worker.made(second))
