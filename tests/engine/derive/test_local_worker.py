"""The server makes states itself where no worker comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.derive import lease_scheduler, local_worker
from headrace.reduce.work_units import JobName
from support.feature_rig import ORDERS, SPENT, USERS, Pipelines, event, op, table
from support.polling import wait_until

JOBS: tuple[JobName, ...] = ("features",)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_worker, "WORKERS_FIRST_S", 0.05)
    monkeypatch.setattr(local_worker, "_PAUSE_S", 0.01)


def opened(tmp_path: Path, **settings: Any) -> Pipelines:
    facts: dict[str, Any] = {"storage": {"seal_rows": 4}, "features": {"fold_rows": 8}}
    return Pipelines(tmp_path / "data", helps=True, **{**facts, **settings})


def until(pipelines: Pipelines, holds: Callable[[], bool]) -> None:
    async def wait() -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.01)

    pipelines.run(wait())


def go_rounds(pipelines: Pipelines, count: int) -> None:
    """Wait until the worker has looked for work so often."""
    loop, done = pipelines.engine.local_worker._loop, asyncio.Semaphore(0)
    go_round = loop._round

    async def counted() -> float | None:
        try:
            return await go_round()
        finally:
            done.release()

    async def wait() -> None:
        loop._round = counted
        async with asyncio.timeout(20):
            for _ in range(count):
                await done.acquire()
        loop._round = go_round

    pipelines.run(wait())


def pushed(pipelines: Pipelines, count: int) -> None:
    for number in range(count):
        pipelines.push("Order", {"user": f"u{number % 3}", "amount": 1.0})
    pipelines.seal("Order")


def test_a_tail_that_is_too_long_becomes_states(tmp_path: Path) -> None:
    with opened(tmp_path) as pipelines:
        pipelines.register(ORDERS, USERS)
        pushed(pipelines, 30)
        until(pipelines, lambda: sum(state.count for state in pipelines.states("Users")) >= 22)
        assert pipelines.get("Users", "u0") == {"n": 10, "total": 10.0}
        pushed(pipelines, 3)
        assert pipelines.get("Users", "u0") == {"n": 11, "total": 11.0}


def test_a_short_tail_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as pipelines:
        pipelines.register(ORDERS, USERS)
        pushed(pipelines, 8)
        go_rounds(pipelines, 20)
        assert pipelines.states("Users") == []


def test_a_feature_that_is_added_is_backfilled(tmp_path: Path) -> None:
    with opened(tmp_path) as pipelines:
        pipelines.register(ORDERS, USERS)
        pushed(pipelines, 30)
        until(pipelines, lambda: bool(pipelines.states("Users")))
        more = {**SPENT, "greatest": op("max", field="amount")}
        pipelines.register(ORDERS, table("Users", "Order", ["user"], more))
        serving, stream = pipelines.engine.feature_reader, pipelines.find("events/Order")
        assert serving.current_base(serving.defined("Users"), stream).backfilling == {"greatest"}
        until(pipelines, lambda: not serving.current_base(serving.defined("Users"), stream).backfilling)
        assert pipelines.get("Users", "u1") == {"n": 10, "total": 10.0, "greatest": 1.0}


def test_work_is_left_to_workers_while_they_have_any(tmp_path: Path) -> None:
    with opened(tmp_path) as pipelines:
        pipelines.register(ORDERS, USERS)
        pushed(pipelines, 4)
        granted = pipelines.run(pipelines.engine.work.lease("someone", 1, JOBS))
        assert granted is not None
        pushed(pipelines, 30)
        go_rounds(pipelines, 20)
        assert pipelines.states("Users") == []
        pipelines.run(pipelines.engine.work.release(granted.lease.id, granted.lease.token))
        until(pipelines, lambda: bool(pipelines.states("Users")))


def test_the_server_folds_when_its_turn_comes_at_the_index_gate(tmp_path: Path) -> None:
    with opened(tmp_path) as pipelines:
        gate = pipelines.engine.gates.index
        pipelines.run(gate.__aenter__())
        pipelines.register(ORDERS, USERS)
        pushed(pipelines, 30)
        until(pipelines, lambda: gate.queued == 1)
        assert pipelines.states("Users") == []
        pipelines.run(gate.__aexit__())
        until(pipelines, lambda: bool(pipelines.states("Users")))


def test_who_waits_for_a_turn_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with opened(tmp_path) as pipelines:
        gate = pipelines.engine.gates.index
        pipelines.run(gate.__aenter__())
        pipelines.register(ORDERS, USERS)
        pushed(pipelines, 30)
        until(pipelines, lambda: gate.queued == 1)
    assert gate.active == 1
    assert gate.queued == 0


def test_events_that_retention_waits_for_are_folded_however_few(tmp_path: Path) -> None:
    source = event("Order", {"user": "str", "amount": "f64"}, keep_events_for="1h")
    with opened(tmp_path, pipeline={"min_rows": 1000}) as pipelines:
        pipelines.register(source, USERS)
        pushed(pipelines, 5)
        assert pipelines.run(pipelines.engine.work.lease("someone", 1, JOBS)) is None
        pipelines.clock.us += 2 * 3_600_000_000
        until(pipelines, lambda: bool(pipelines.states("Users")))
        pipelines.sweep()
        assert pipelines.find("events/Order").head.first_seq == 5
        assert pipelines.get("Users", "u0") == {"n": 2, "total": 2.0}


def test_what_is_half_done_at_the_end_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as pipelines:
        pipelines.register(ORDERS, USERS)
        pushed(pipelines, 30)
        working = asyncio.Event()
        rest = local_worker.FoldThread._rest

        def slow(thread: local_worker.FoldThread) -> None:
            loop.call_soon_threadsafe(working.set)
            thread.stopping.wait(10)
            rest(thread)

        async def begin() -> asyncio.AbstractEventLoop:
            return asyncio.get_running_loop()

        loop = pipelines.run(begin())
        monkeypatch.setattr(local_worker.FoldThread, "_rest", slow)
        pipelines.run(working.wait())  # type: ignore[arg-type]
        monkeypatch.setattr(local_worker.FoldThread, "_rest", rest)
        pipelines.reopen()
        until(pipelines, lambda: bool(pipelines.states("Users")))
        assert pipelines.get("Users", "u0") == {"n": 10, "total": 10.0}


@pytest.mark.parametrize(("events", "bound"), [(12, "PIPELINE_FIRST_S"), (30, "PIPELINE_FIRST_AWAITED_S")])
def test_with_a_pipeline_attached_the_server_waits_longer_and_then_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: int, bound: str
) -> None:
    """Of 12 events the server folds rows meanwhile; of 30 answers lack history."""
    with opened(tmp_path) as pipelines:
        pipelines.register(ORDERS, USERS)
        work = pipelines.engine.work
        work.attach("node-1", attached=True)
        pushed(pipelines, events)
        go_rounds(pipelines, 20)
        assert pipelines.states("Users") == []
        assert pipelines.get("Users", "u0")["n"] == (4 if events == 12 else None)
        monkeypatch.setattr(lease_scheduler, bound, 0.05)
        until(pipelines, lambda: sum(state.count for state in pipelines.states("Users")) >= events - 8)
        wait_until(lambda: pipelines.get("Users", "u0")["n"] == events // 3)
        assert set(work.workers.done_by_job) == {("server", "features")}


@pytest.mark.parametrize("ends", ["by itself", "in silence"])
def test_once_the_pipeline_is_gone_the_server_makes_states(tmp_path: Path, ends: str) -> None:
    with opened(tmp_path) as pipelines:
        pipelines.register(ORDERS, USERS)
        work = pipelines.engine.work
        work.attach("node-1", attached=True)
        pushed(pipelines, 30)
        go_rounds(pipelines, 5)
        assert pipelines.states("Users") == []
        if ends == "by itself":
            work.attach("node-1", attached=False)
        else:
            pipelines.clock.us += work.ttl_us
        until(pipelines, lambda: sum(state.count for state in pipelines.states("Users")) >= 22)
