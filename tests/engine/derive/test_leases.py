"""One worker at a time: leases, tokens, expiry and pauses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from engine.registries import change
from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.derive.leases import LeaseLost
from headrace.errors import BadRequest
from headrace.reduce.work_units import Result, Unit
from support.engine_rig import Rig
from support.work_rig import SECOND, Worker, covered, failures, listed, opened, publish, search, searched, spans


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
            assert refusal.value.code == "lease_lost"
            assert refusal.value.status == 409
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


def errors(units: Iterable[Unit]) -> list[Result]:
    return [Result(unit.unit, error="boom") for unit in units]


def parked(rig: Rig) -> list[tuple[int, int, str]]:
    found = rig.run(rig.engine.work.overview())
    return [(one.first_seq, one.end_seq, one.reason) for one in found.parked]


def test_a_unit_that_fails_is_tried_again_after_pauses_that_double_and_parked_in_the_end(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        for pause in (1, 2, 4, 8):
            grant = worker.granted()
            (told,) = worker.commit(grant, errors(grant.units)).settled
            assert told.outcome == "failed"
            assert told.reason == "boom"
            rig.clock.us += pause * SECOND - 1
            assert worker.lease() is None
            rig.clock.us += 1
        grant = worker.granted()
        (told,) = worker.commit(grant, errors(grant.units)).settled
        assert told.outcome == "parked"
        rig.clock.us += 3600 * SECOND
        assert worker.lease() is None
        assert parked(rig) == [(0, 10, "boom")]
        assert rig.engine.work.counts()["parked"] == 1


def fail_until_parked(rig: Rig, worker: Worker, first_seq: int) -> None:
    """Do everything but the unit that begins here."""
    for _ in range(20):
        rig.clock.us += 61 * SECOND
        grant = worker.lease()
        if grant is None:
            return
        done = [
            result for result, unit in zip(worker.made(grant), grant.units, strict=True) if unit.first_seq != first_seq
        ]
        worker.commit(grant, [*done, *errors(unit for unit in grant.units if unit.first_seq == first_seq)])
    raise AssertionError("it is never parked")


def test_what_is_parked_holds_up_nothing_else_and_is_tried_again_when_asked_for(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 30)
        worker = Worker(rig)
        fail_until_parked(rig, worker, 10)
        assert covered(rig, "s") == [(0, 10), (20, 30)]
        publish(rig, "s", 10)
        assert worker.work() == 1
        assert parked(rig) == [(10, 20, "boom")]
        rig.run(rig.engine.work.run(rig.find("s")))
        assert parked(rig) == []
        assert worker.work() == 1
        assert covered(rig, "s") == [(0, 10), (10, 20), (20, 30), (30, 40)]


def test_another_definition_is_worth_another_try(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 10)
        worker = Worker(rig)
        fail_until_parked(rig, worker, 0)
        change(rig, "s", search=search("city"))
        assert worker.work() == 1
        assert covered(rig, "s") == [(0, 10)]


def test_one_bad_segment_takes_no_others_along(directory: Path) -> None:
    with opened(directory, unit_bytes=1 << 20) as rig:
        searched(rig, "s", 40)
        worker = Worker(rig)
        grant = worker.granted()
        assert spans(grant.units) == [(0, 40)]
        worker.commit(grant, errors(grant.units))
        rig.clock.us += SECOND
        grant = worker.granted()
        assert spans(grant.units) == [(0, 10), (10, 20), (20, 30), (30, 40)]
        worker.commit(grant, [*worker.made(grant)[:2], *errors(grant.units[2:3]), *worker.made(grant)[3:]])
        fail_until_parked(rig, worker, 20)
        assert covered(rig, "s") == [(0, 10), (10, 20), (30, 40)]
        assert [(one.first_seq, one.attempts, one.parked) for one in failures(rig, "s")] == [(20, 5, 1)]


def test_the_unit_that_kills_workers_is_found_and_only_it_is_parked(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 50)
        worker, alone = Worker(rig), 0
        for _ in range(30):
            rig.clock.us += 121 * SECOND
            grant = worker.lease()
            if grant is None:  # the last lease has just ended
                rig.clock.us += 61 * SECOND
                grant = worker.lease()
            if grant is None:
                break
            alone += len(grant.units) == 1
            if (20, 30) not in spans(grant.units):
                worker.commit(grant)
        assert grant is None
        assert covered(rig, "s") == [(0, 10), (10, 20), (30, 40), (40, 50)]
        assert [one[:2] for one in parked(rig)] == [(20, 30)]
        assert alone >= 3


def test_what_is_not_retained_any_more_is_not_reported_as_parked(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 30)
        fail_until_parked(rig, Worker(rig), 0)
        size = rig.find("s").head.bytes
        rig.retain("s", size=size // 2)
        assert rig.find("s").head.first_seq == 10
        rig.publish("s")
        assert parked(rig) == []


def test_an_object_that_the_server_does_not_find_is_an_error_of_the_unit(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 20)
        worker = Worker(rig)
        grant = worker.granted()
        absent, cut = worker.made(grant)
        assert absent.companion is not None and cut.companion is not None
        keys = [info.key for info in rig.engine.objects.list("companions")]
        rig.engine.objects.delete([key for key in keys if absent.companion.name in key and "postings" in key])
        (short,) = [key for key in keys if cut.companion.name in key and "panes" in key]
        rig.engine.objects.put(short, b"")
        told = worker.commit(grant, [absent, cut]).settled
        assert [one.outcome for one in told] == ["failed", "failed"]
        assert [("not in the store" in str(one.reason), "0 bytes" in str(one.reason)) for one in told] == [
            (True, False),
            (False, True),
        ]
        assert covered(rig, "s") == []
