"""Leases end by time whoever asks: a timer and every overview end them, and lists and counts agree."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from engine.derive.workers import SECOND, Worker, covered, failures, opened, publish, searched, spans
from engine.registries import update
from headrace.engine.derive.overview import Overview
from headrace.errors import Unavailable
from headrace.storage.erasures import ErasureRow, Erasures
from headrace.storage.work import Work
from support.engine_rig import Rig


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
        assert (len(found.due), found.counts["due"], found.complete) == (2, 3, False)


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
            assert (found.due, found.leases, found.complete) == ([], [], False)
        publish(rig, "s", 10)
        assert overview(rig).complete


def test_a_stream_that_waits_for_an_erasure_is_not_forgotten(directory: Path) -> None:
    with opened(directory) as rig:
        searched(rig, "s", 10)
        row = ErasureRow("e", "ent_1", "u", rig.find("s").id, 5, "running", "log", 0, None, "{}", "{}", "{}")
        rig.run(rig.engine.apply(lambda batch: Erasures(batch.connection).add(row, [])))
        found = rig.run(rig.engine.work.overview())
        assert (found.due, found.counts["due"], found.complete) == ([], 1, False)
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
