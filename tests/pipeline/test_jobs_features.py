"""The kernels of tables: what goes wrong with one unit is its result, and no failure of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headrace.engine.features.past_reader import RowMoment
from headrace.format.object_names import state_key
from headrace.pipeline.jobs import _result, _split_units, pack_folds, weight
from headrace.pipeline.kernels import features, history
from headrace.reduce.work_units import JobName, Unit
from headrace.server.routes.work import store_url
from support.feature_rig import ORDERS, SPENT, USERS, Pipelines, perform, table

FEATURES: tuple[JobName, ...] = ("features",)


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    settings = {"min_rows": 1, "unit_bytes": 100, "fan_out": 2}
    with Pipelines(tmp_path / "data", storage={"seal_rows": 4}, pipeline=settings, features={"fold_rows": 2}) as opened:
        opened.register(ORDERS, USERS)
        for number in range(8):
            opened.push("Order", {"user": "ab"[number % 2], "amount": 1.0})
        opened.seal("Order")
        yield opened


def leased(pipelines: Pipelines, *jobs: JobName) -> list[Unit]:
    granted = pipelines.run(pipelines.engine.work.lease("tests", 8, jobs))
    assert granted is not None
    pipelines.run(pipelines.engine.work.release(granted.lease.id, granted.lease.token))
    return granted.units


def store(pipelines: Pipelines) -> str:
    return store_url(pipelines.engine.objects, "")


def lost(pipelines: Pipelines, unit: Unit) -> None:
    """Remove an object that a unit reads."""
    stream = pipelines.find("events/Order")
    keys = [state_key(stream.name, stream.incarnation, state.name) for state in unit.states]
    pipelines.engine.objects.delete(keys[-1:] or [source.key for source in unit.segments[-1:]])


def damaged(pipelines: Pipelines, key: str) -> None:
    path = pipelines.engine.objects.local_path(key)
    assert path is not None
    path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")


def test_segments_and_states_that_are_gone_are_told(pipelines: Pipelines) -> None:
    unit = leased(pipelines, *FEATURES)[0]
    pipelines.work_once()
    merging = leased(pipelines, *FEATURES)[0]
    assert merging.states and weight(msgspec.to_builtins(merging)) == sum(state.bytes for state in merging.states)
    lost(pipelines, merging)
    assert perform(merging, store(pipelines)).gone
    lost(pipelines, unit)
    assert perform(unit, store(pipelines)).gone


def test_a_damaged_state_is_an_error(pipelines: Pipelines) -> None:
    pipelines.work_once()
    merging = leased(pipelines, *FEATURES)[0]
    stream = pipelines.find("events/Order")
    damaged(pipelines, state_key(stream.name, stream.incarnation, merging.states[0].name))
    error = perform(merging, store(pipelines)).error
    assert error is not None and error.startswith("CorruptData")


def test_segments_that_hold_other_events_than_a_unit_says_are_an_error(pipelines: Pipelines) -> None:
    unit = leased(pipelines, *FEATURES)[0]
    short = msgspec.structs.replace(unit, count=unit.count + 1)
    error = perform(short, store(pipelines)).error
    assert error is not None and "hold" in error


def test_tables_of_one_source_are_folded_together(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    pipelines.register(ORDERS, USERS, table("All", "Order", [], SPENT))
    units = leased(pipelines, *FEATURES)
    assert [unit.first_seq for unit in units] == [0, 0, 4, 4]
    (pack,) = pack_folds([msgspec.to_builtins(unit) for unit in units], 1)
    assert [len(group) for group in features.group_units(units)] == [2, 2]
    reads: list[str] = []
    batches = features.events
    monkeypatch.setattr(features, "events", lambda unit, here: reads.append(unit.unit) or batches(unit, here))
    results = features.perform(pack, store(pipelines))
    assert len(reads) == 2
    rows = {(result["state"].table, result["state"].first_seq): result["state"].rows for result in results}
    assert rows == {("Users", 0): 2, ("All", 0): 1, ("Users", 4): 2, ("All", 4): 1}


def test_a_table_that_cannot_be_folded_is_no_failure_of_the_others(
    pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines.register(ORDERS, USERS, table("All", "Order", [], SPENT))
    units = [msgspec.json.encode(unit) for unit in leased(pipelines, *FEATURES)]
    fold_table = features.fold_table

    def fold_users(unit: Unit, columns: pa.Table) -> Any:
        if unit.table != "Users":
            raise ValueError("no other")
        return fold_table(unit, columns)

    monkeypatch.setattr(features, "fold_table", fold_users)
    results = features.perform(units, store(pipelines))
    assert sorted(result["state"].table for result in results if "state" in result) == ["Users", "Users"]
    assert [result["error"] for result in results if "error" in result] == ["ValueError: no other"] * 2


def told(unit: Unit, where: str) -> dict[str, Any]:
    """What comes of a question, as Spark would bring it together."""
    known = {unit.unit: msgspec.json.encode(unit)}
    packs = [[one] for one in history.slices(unit)]
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(packs)))})
    read = pa.Table.from_batches(list(history.pieces(packs, known, where)(iter([numbers]))))
    order = [(name, "ascending") for name in history.SORTED]
    rows = [row for batch in history.rows(known)(iter(read.sort_by(order).to_batches())) for row in batch.to_pylist()]
    return _result(msgspec.to_builtins(unit), rows)


def test_rows_of_the_past_are_put_together_from_pieces(pipelines: Pipelines) -> None:
    times = pipelines.clock.us
    row: Any = pipelines.run(
        pipelines.engine.training.request(
            "Users", [RowMoment("a", times), RowMoment("b", times - 5_000_000), RowMoment("c", 5)]
        )
    )
    unit = leased(pipelines, "history")[0]
    assert unit.history == row.id
    assert told(unit, store(pipelines))["rows"] == [{"n": 4, "total": 4.0}, {"n": 1, "total": 1.0}, {}]
    broken = msgspec.structs.replace(unit, unit="broken")
    damaged(pipelines, unit.segments[0].key)
    assert "error" in told(broken, store(pipelines))
    pipelines.engine.objects.delete([unit.segments[0].key])
    assert told(broken, store(pipelines)) == {"unit": "broken", "gone": True}


def test_pieces_that_cannot_be_put_together_are_an_error_of_their_unit_alone(pipelines: Pipelines) -> None:
    pipelines.run(pipelines.engine.training.request("Users", [RowMoment("a", pipelines.clock.us)]))
    unit = leased(pipelines, "history")[0]
    known = {name: msgspec.json.encode(msgspec.structs.replace(unit, unit=name)) for name in ("broken", "fine")}
    packs = [[(name, kind, number)] for name in known for _, kind, number in history.slices(unit)]
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(packs)))})
    read = pa.Table.from_batches(list(history.pieces(packs, known, store(pipelines))(iter([numbers])))).to_pylist()
    spoilt = [{**row, "packed": b"\xc1"} if row["unit"] == "broken" else row for row in read]
    rows = list(history.batches_of_rows(iter(pa.Table.from_pylist(spoilt, history._PIECES).to_batches()), known))
    found = [row for batch in rows for row in batch.to_pylist()]
    assert {row["unit"] for row in found if row["failure"]} == {"broken"}
    assert any(row["unit"] == "fine" and row["row"] for row in found)


def test_a_definition_that_cannot_be_read_is_an_error_of_its_unit_alone(pipelines: Pipelines) -> None:
    pipelines.work_once()
    unit = leased(pipelines, *FEATURES)[0]
    broken = msgspec.structs.replace(unit, unit="broken", defined={"no": "definition"})
    units = {one.unit: msgspec.json.encode(one) for one in (unit, broken)}
    splits, failed = _split_units(units)
    assert list(splits) == [units[unit.unit]]
    assert [(one["unit"], list(one)) for one in failed] == [("broken", ["unit", "error"])]
