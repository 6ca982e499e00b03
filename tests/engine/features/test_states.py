"""States are listed in commits that let no event count twice; what is of no use is given up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.engine.derive.lease_scheduler import Grant
from headrace.engine.history.publisher import orphans
from headrace.errors import BadRequest
from headrace.format.object_names import state_key
from headrace.reduce.work_units import JobName, Result
from headrace.storage.work import UnitRow
from support.feature_rig import ORDERS, SPENT, USERS, Pipelines, event, op, table

JOBS: tuple[JobName, ...] = ("features",)


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    settings = {"min_rows": 1, "unit_bytes": 100, "fan_out": 2}
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}, pipeline=settings) as opened:
        opened.register(ORDERS, USERS)
        for _ in range(8):
            opened.push("Order", {"user": "a", "amount": 1.0})
        opened.seal("Order")
        yield opened


def leased(pipelines: Pipelines, limit: int = 8) -> Grant:
    granted = pipelines.run(pipelines.engine.work.lease("tests", limit, JOBS))
    assert granted is not None
    return granted


def committed(pipelines: Pipelines, granted: Grant, results: list[Result]) -> list[tuple[str, str | None]]:
    settled = pipelines.run(pipelines._commit(granted.lease.id, granted.lease.token, results))
    return [(one.outcome, one.reason) for one in settled]


def keys(pipelines: Pipelines) -> list[str]:
    return [info.key for info in pipelines.engine.objects.list("states")]


def test_a_state_is_listed_once_however_often_it_is_told(pipelines: Pipelines) -> None:
    granted = leased(pipelines, 1)
    results = pipelines.performed(granted)
    assert committed(pipelines, granted, results) == [("committed", None)]
    assert committed(pipelines, granted, results) == [("committed", None)]
    assert len(pipelines.states("Users")) == 1


def test_events_that_were_folded_already_are_not_folded_again(pipelines: Pipelines) -> None:
    slow = leased(pipelines, 1)
    results = pipelines.performed(slow)
    pipelines.clock.us += 61_000_000
    assert pipelines.engine.work.ttl_us == 60_000_000
    quick = leased(pipelines, 1)
    pipelines.clock.us += 2_000_000
    assert [unit.first_seq for unit in quick.units] != [unit.first_seq for unit in slow.units], "it rests at first"
    quick = leased(pipelines, 1)
    assert quick.units[0].first_seq == slow.units[0].first_seq
    assert committed(pipelines, quick, pipelines.performed(quick)) == [("committed", None)]
    # The lease was lost, and its result with it; even under a lease of one's own the same events are refused.
    stream = pipelines.find("events/Order").id
    again = msgspec.structs.replace(slow.units[0], unit="again")
    pipelines.run(pipelines.engine.apply(lambda batch: _given(batch, stream, quick, again)))
    outcome = committed(pipelines, quick, [msgspec.structs.replace(results[0], unit="again")])
    assert outcome == [("dropped", "its events were folded already")]
    assert pipelines.get("Users", "a") == {"n": 8, "total": 8.0}


def _given(batch: Any, stream: int, granted: Grant, unit: Any) -> None:
    batch.connection.execute("UPDATE leases SET ended_us = NULL WHERE id = ?", (granted.lease.id,))
    document = msgspec.json.encode(msgspec.structs.replace(unit, registry=None, defined=None)).decode()
    values = UnitRow(unit.unit, granted.lease.id, stream, "features", unit.first_seq, unit.count, document)
    marks = ", ".join("?" * len(UnitRow.__struct_fields__))
    batch.connection.execute(f"INSERT INTO units VALUES ({marks})", msgspec.structs.astuple(values))


@pytest.mark.parametrize("wrong", [{"table": "Other"}, {"count": 3}, {"level": 1}, {"lives": {}}, {"name": "x"}])
def test_a_state_that_its_unit_does_not_ask_for_is_refused(pipelines: Pipelines, wrong: dict[str, Any]) -> None:
    granted = leased(pipelines, 1)
    (result,) = pipelines.performed(granted)
    assert result.state is not None
    other = Result(result.unit, state=msgspec.structs.replace(result.state, **wrong))
    with pytest.raises(BadRequest) as refusal:
        committed(pipelines, granted, [other])
    assert refusal.value.facts["field"] == "results[0].state"


def test_a_state_whose_object_is_not_there_is_a_failure(pipelines: Pipelines) -> None:
    granted = leased(pipelines, 1)
    (result,) = pipelines.performed(granted)
    assert result.state is not None
    unit = granted.units[0]
    pipelines.engine.objects.delete([state_key(unit.stream, unit.incarnation, result.state.name)])
    ((outcome, reason),) = committed(pipelines, granted, [result])
    assert outcome == "failed" and reason is not None and "not in the store" in reason


def test_states_that_are_merged_are_replaced_and_an_old_merge_is_in_vain(pipelines: Pipelines) -> None:
    folding = leased(pipelines)
    assert all(outcome == "committed" for outcome, _ in committed(pipelines, folding, pipelines.performed(folding)))
    merging = leased(pipelines)
    assert all(unit.states and unit.level == 1 for unit in merging.units)
    results = pipelines.performed(merging)
    pipelines.register(ORDERS, table("Users", "Order", ["user"], {"again": op("count")}), force=True)
    pipelines.clock.us += 61_000_000
    pipelines.work()
    assert all("again" in state.lives for state in pipelines.states("Users"))
    assert pipelines.get("Users", "a") == {"again": 8}
    assert results[0].state is not None and results[0].state.name not in [one.name for one in pipelines.states("Users")]


def test_a_state_of_a_stream_that_is_gone_goes_with_it(pipelines: Pipelines) -> None:
    granted = leased(pipelines)
    results = pipelines.performed(granted)
    assert keys(pipelines)
    pipelines.register(event("Other", {"x": "f64"}), force=True)
    assert {outcome for outcome, _ in committed(pipelines, granted, results)} == {"dropped"}
    pipelines.clock.us += 120_000_000
    pipelines.clear()
    assert keys(pipelines) == []


def test_what_a_lost_worker_wrote_is_swept(pipelines: Pipelines) -> None:
    granted = leased(pipelines)
    pipelines.performed(granted)
    pipelines.run(pipelines.engine.work.release(granted.lease.id, granted.lease.token))
    pipelines.work()
    stream = pipelines.find("events/Order")
    listed = {state_key(stream.name, stream.incarnation, state.name) for state in pipelines.states("Users")}
    found = set(orphans(pipelines.engine.objects, pipelines.engine._reader, 1 << 62))
    assert len(found) == len(granted.units) and found.isdisjoint(listed)


def test_one_table_that_fails_does_not_hold_up_another(pipelines: Pipelines) -> None:
    pipelines.register(ORDERS, USERS, table("All", "Order", [], SPENT))
    for _ in range(5):
        granted = leased(pipelines)
        results = [
            Result(unit.unit, error="out of luck") if unit.table == "Users" else result
            for unit, result in zip(granted.units, pipelines.performed(granted), strict=True)
        ]
        committed(pipelines, granted, results)
        pipelines.clock.us += 120_000_000
        if not any(unit.table == "Users" for unit in granted.units):
            break
    assert pipelines.states("Users") == [] and pipelines.states("All")
    assert pipelines.get("Users", "a") == {"n": 8, "total": 8.0}
